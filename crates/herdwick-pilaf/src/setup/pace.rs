//! How fast a table grows, and when it is tried again.

/// Growth that failed is tried again later, after twice as many passes each time: what was short may be
/// there again, but an attempt copies the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrowthRetry {
    left: u32,
    next: u32,
}

/// Passes after the first failure, and at most.
const RETRY_PASSES: u32 = 1 << 12;
const RETRY_PASSES_MAX: u32 = 1 << 30;

/// Buckets that a pass copies while the table grows: a few microseconds, so that a port that this thread
/// drives answers READs as before.
const SLICE: u64 = 64;
/// And for each key that it stores besides, so that the larger table is there before the old one is full.
const SLICE_PER_KEY: u64 = 16;
/// And while a PUT waits for it: less than a millisecond.
const SLICE_URGENT: u64 = 2048;

impl GrowthRetry {
    pub(super) const FIRST: Self = Self {
        left: 0,
        next: RETRY_PASSES,
    };

    pub(super) fn failed(&mut self) {
        self.left = self.next;
        self.next = (2 * self.next).min(RETRY_PASSES_MAX);
    }

    /// Counts a pass; returns whether it is time.
    pub(super) fn is_due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}

/// Returns how many buckets a pass copies that stored so many new keys.
pub(super) fn slice(stored: u64, put_waits: bool) -> u64 {
    match put_waits {
        true => SLICE_URGENT,
        false => (SLICE + SLICE_PER_KEY * stored).min(SLICE_URGENT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pass_copies_more_than_one_for_which_a_put_waits() {
        assert_eq!(slice(0, false), SLICE);
        assert!(slice(4, false) > slice(1, false));
        // What 1,024 clients store in a pass.
        for stored in [0, 124, 125, 1 << 15, u64::MAX / SLICE_PER_KEY - SLICE] {
            assert!(slice(stored, false) <= slice(stored, true));
        }
    }
}
