//! The random numbers of the seeded fabric: the only source of its faults.

use std::time::Duration;

/// Draws of faults and of times.
pub(super) struct Rng(herdwick_check::Rng);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(herdwick_check::Rng::new(seed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.bits()
    }

    pub(super) fn next_u32(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    /// Returns a number below `bound`, which is not zero.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(super) fn chance(&mut self, per_mille: u16) -> bool {
        // A fault that is off draws no number, so that it does not change what the others draw.
        per_mille > 0 && self.below(1000) < per_mille.into()
    }

    /// Returns a duration from `from` to `to`, both included.
    pub(super) fn between(&mut self, from: Duration, to: Duration) -> Duration {
        // Less than the largest number, since 1 is added.
        let spread = u64::try_from(to.saturating_sub(from).as_nanos()).unwrap_or(u64::MAX - 1);
        if spread == 0 {
            return from;
        }
        from + Duration::from_nanos(self.below(spread + 1))
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = usize::try_from(self.below(i as u64 + 1)).unwrap_or(0);
            items.swap(i, j);
        }
    }
}
