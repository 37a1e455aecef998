//! Windows onto shared memory: places that its owner changes under one rkey.

use herdwick_mem::{Span, WORD, Words};

/// The windows of a region of shared memory.
///
/// The addresses of such a region are those of its windows, one after the other. Each window shows the
/// memory from a place on that the owner of the memory chooses, and may choose anew at any time
/// ([`Windows::bind`]): rkey and address stay. The places are words at the beginning of the memory, one for
/// each window, so binding is a store, and a READ looks the word up when it is executed. A window that was
/// never bound shows the memory from its beginning.
///
/// A READ that is executed after a window was bound anew returns what is at the new place. One that is under way
/// may return words of the old place and of the new. One that leaves its window, or the memory, fails, or
/// returns zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    count: u32,
    shift: u32,
}

/// Most bytes of a window, as a power of two.
const SHIFT_MAX: u32 = 31;

impl Windows {
    /// Describes `count` windows, each of 2^`shift` bytes; `None` for windows of more than 2 GiB, or none.
    #[must_use]
    pub fn new(count: u32, shift: u32) -> Option<Self> {
        // At least a word, so that no window begins within one.
        let fits = count > 0 && (3..=SHIFT_MAX).contains(&shift);
        fits.then_some(Self { count, shift })
    }

    /// Returns the number of windows.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the bytes of a window, as a power of two.
    #[must_use]
    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// Returns the bytes at the beginning of the memory that say where the windows are.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        self.count as usize * WORD
    }

    /// Returns the length of a region with these windows.
    #[must_use]
    pub fn region_len(&self) -> usize {
        // At most 2^32 windows of 2^31 bytes: no overflow in 64 bits.
        (self.count as usize) << self.shift
    }

    /// Returns the address of a window in its region.
    #[must_use]
    pub fn addr(&self, window: u32) -> u64 {
        u64::from(window) << self.shift
    }

    /// Has a window show the memory from byte `place` on. `table` is the beginning of the memory. What was
    /// stored before is visible to a reader that finds the place.
    ///
    /// # Panics
    /// If there is no such window.
    #[inline]
    pub fn bind(&self, table: &Span, window: u32, place: usize) {
        assert!(window < self.count, "window {window} of {}", self.count);
        // Pairs with the acquire in `resolve`.
        table.store_release(window as usize, place as u64);
    }

    /// Returns where the `len` bytes at `addr` of a region are in `memory`; `None` if they leave the window or
    /// the memory.
    #[inline]
    #[must_use]
    pub fn resolve(&self, memory: &Span, addr: u64, len: usize) -> Option<usize> {
        let window = u32::try_from(addr >> self.shift).ok()?;
        // Below 2^31.
        let within = (addr & ((1 << self.shift) - 1)) as usize;
        // The length is the peer's; a READ must not run into the next window.
        if window >= self.count || within.checked_add(len)? > 1 << self.shift {
            return None;
        }
        // Pairs with the release by which the window was bound.
        // The place is not trusted either: the memory may be a host's, and its reader a client.
        let place = usize::try_from(memory.load_acquire(window as usize)).ok()?;
        let start = place.checked_add(within)?;
        (start.checked_add(len)? <= memory.len()).then_some(start)
    }
}
