//! The state of cleaning between requests: the segment that is walked, and the copies that are allowed.

/// Bytes of copies that a cache may make for each byte stored ...
pub(super) const COPY_RATE: usize = 3;
/// ... of which unused ones accumulate up to so many segments.
const COPIES_MAX: isize = 4;

/// The segment that is being walked.
#[derive(Clone, Copy)]
pub(crate) struct Walk {
    pub(super) number: usize,
    pub(super) at: usize,
    pub(super) end: usize,
    /// Whether its segments are free only when all of its items are gone.
    pub(super) whole: bool,
    /// Bytes stored since the uses of its items are counted.
    pub(super) age: u64,
}

/// The bytes of copies that are allowed, and what an item has to be worth.
#[derive(Default)]
pub(crate) struct Copies {
    pub(super) allowed: isize,
    /// Uses of the items that were walked over, their bytes times their ages, and their bytes:
    /// recent ones in full.
    uses: f64,
    volume: f64,
    bytes: usize,
    /// Bytes that were moved since the start for adjacent segments to be free.
    pub(super) gathered: usize,
}

impl Copies {
    pub(super) fn earn(&mut self, len: usize, segment: usize) {
        let most = segment as isize * COPIES_MAX;
        self.allowed = (self.allowed + (len * COPY_RATE) as isize).min(most);
    }

    /// Records an item that was walked over. Returns whether it is worth a copy.
    pub(super) fn weigh(&mut self, uses: u8, len: usize, age: u64, usable: usize) -> bool {
        let (uses, volume) = (f64::from(uses), len as f64 * age as f64);
        self.uses += uses;
        self.volume += volume;
        self.bytes += len;
        if self.bytes > usable / 8 {
            self.bytes /= 2;
            self.uses /= 2.0;
            self.volume /= 2.0;
        }
        self.allowed > 0 && uses * self.volume > self.uses * volume
    }
}
