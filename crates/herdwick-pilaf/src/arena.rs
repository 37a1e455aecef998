//! The allocator of extents: a buddy system over memory of a fixed size. Its own state is private, so
//! that nothing a client does can confuse it.

/// Bytes of the smallest block.
pub(crate) const UNIT: usize = 64;
/// The largest block has `UNIT << ORDER_MAX` bytes: 128 KiB, above the longest extent.
const ORDER_MAX: usize = 11;
/// Marks the end of a list.
const NONE: u32 = u32::MAX;
/// State of a unit that does not begin a free block.
const NOT_FREE: u8 = u8::MAX;

/// Memory from which extents are taken, in units of [`UNIT`] bytes. An extent takes exactly the units
/// that it needs: the rest of its block is free again at once.
#[derive(Debug)]
pub(crate) struct ExtentArena {
    /// The order of the free block that begins at a unit.
    state: Vec<u8>,
    /// The free blocks of each order, linked both ways.
    next: Vec<u32>,
    before: Vec<u32>,
    first: [u32; ORDER_MAX + 1],
    used: usize,
}

impl ExtentArena {
    /// Takes over `bytes` bytes of free memory, as far as they are whole units.
    pub(crate) fn new(bytes: usize) -> Self {
        // A link has 32 bits, and its largest number stands for none.
        let units = (bytes / UNIT).min(NONE as usize);
        let mut arena = Self {
            state: vec![NOT_FREE; units],
            next: vec![NONE; units],
            before: vec![NONE; units],
            first: [NONE; ORDER_MAX + 1],
            // All of it, until `release` gives it back.
            used: units,
        };
        arena.release(0, units);
        arena
    }

    /// Returns the bytes in use.
    pub(crate) fn used_bytes(&self) -> usize {
        self.used * UNIT
    }

    /// Takes `len` bytes; returns the offset of the first, or `None` if no block is large enough.
    pub(crate) fn take(&mut self, len: usize) -> Option<u64> {
        let units = len.div_ceil(UNIT).max(1);
        let order = units.next_power_of_two().trailing_zeros() as usize;
        let found = (order..=ORDER_MAX).find(|order| self.first[*order] != NONE)?;
        let at = self.first[found] as usize;
        self.unlink(at, found);
        self.used += 1 << found;
        self.release(at + units, (1 << found) - units);
        Some((at * UNIT) as u64)
    }

    /// Gives back what [`ExtentArena::take`] returned for `len` bytes.
    pub(crate) fn give(&mut self, offset: u64, len: usize) {
        let at = usize::try_from(offset).map_or(usize::MAX, |offset| offset / UNIT);
        self.release(at, len.div_ceil(UNIT).max(1));
    }

    /// Frees a run of units, as the largest aligned blocks that it consists of.
    fn release(&mut self, mut at: usize, units: usize) {
        let end = at + units;
        while at < end {
            let aligned = at.trailing_zeros() as usize;
            // 0 has 64 trailing zeros: `ORDER_MAX` bounds them.
            let order = aligned.min((end - at).ilog2() as usize).min(ORDER_MAX);
            self.release_block(at, order);
            at += 1 << order;
        }
    }

    /// Frees a block, joined with its buddies as far as they are free.
    fn release_block(&mut self, mut at: usize, mut order: usize) {
        self.used -= 1 << order;
        while order < ORDER_MAX {
            let buddy = at ^ 1 << order;
            if self.state.get(buddy).copied() != Some(order as u8) {
                break;
            }
            self.unlink(buddy, order);
            at &= !(1 << order);
            order += 1;
        }
        let old = std::mem::replace(&mut self.first[order], at as u32);
        (self.next[at], self.before[at]) = (old, NONE);
        if let Some(before) = self.before.get_mut(old as usize) {
            *before = at as u32;
        }
        self.state[at] = order as u8;
    }

    /// Takes a block off the list of its order.
    fn unlink(&mut self, at: usize, order: usize) {
        let (next, before) = (self.next[at], self.before[at]);
        match self.next.get_mut(before as usize) {
            Some(link) => *link = next,
            None => self.first[order] = next,
        }
        if let Some(link) = self.before.get_mut(next as usize) {
            *link = before;
        }
        self.state[at] = NOT_FREE;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a list of ranges: no two extents overlap, and what is given back is whole again.
        #[test]
        fn extents_never_overlap_and_memory_returns_whole(
            units in 1..5000_usize,
            steps in prop::collection::vec((any::<prop::sample::Index>(), 1..9000_usize, any::<bool>()), 1..200),
        ) {
            let mut arena = ExtentArena::new(units * UNIT + 17);
            let mut held: Vec<(u64, usize)> = Vec::new();
            for (index, len, give) in steps {
                if give && !held.is_empty() {
                    let (at, len) = held.swap_remove(index.index(held.len()));
                    arena.give(at, len);
                } else if let Some(at) = arena.take(len) {
                    let end = at + len as u64;
                    prop_assert!(end <= (units * UNIT) as u64);
                    for (other, other_len) in &held {
                        prop_assert!(end <= *other || at >= other + *other_len as u64);
                    }
                    held.push((at, len));
                }
                let used: usize = held.iter().map(|(_, len)| len.div_ceil(UNIT) * UNIT).sum();
                prop_assert_eq!(arena.used_bytes(), used);
            }
            for (at, len) in held {
                arena.give(at, len);
            }
            prop_assert_eq!(arena.used_bytes(), 0);
            let whole = arena.take(units.min(1 << ORDER_MAX).next_power_of_two() / 2 * UNIT);
            prop_assert!(whole.is_some(), "the largest block is there again");
        }
    }
}
