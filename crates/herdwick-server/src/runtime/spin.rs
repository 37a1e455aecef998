//! How long a worker polls for work before it sleeps.

use std::time::Duration;

/// The time a worker polls before it sleeps: `base` for work announced by events; for work in
/// memory adaptive, between `base` and [`LONGEST`].
///
/// The kernel takes tens of microseconds to wake a thread, so a worker that is woken soon after it
/// fell asleep had better polled on. Each time that happens the polling time doubles, up to the
/// limit where polling no longer helps; a longer gap resets it. KVM's halt polling follows the same
/// rule.
#[derive(Debug)]
pub(crate) struct AdaptiveSpin {
    base: Duration,
    longest: Duration,
    now: Duration,
}

/// Longest polling time, unless `base` is longer: a few times the cost of a wakeup.
const LONGEST: Duration = Duration::from_micros(320);

impl AdaptiveSpin {
    /// Starts at `base`. It adapts only if `base` is not 0 and there are `spare_cpus`: without a
    /// spare CPU the worker would keep the clients that it waits for from running.
    pub(crate) fn new(base: Duration, spare_cpus: bool) -> Self {
        let longest = if spare_cpus && !base.is_zero() {
            base.max(LONGEST)
        } else {
            base
        };
        Self {
            base,
            longest,
            now: base,
        }
    }

    /// Returns the polling time for work announced by events.
    pub(crate) fn base(&self) -> Duration {
        self.base
    }

    /// Returns the polling time for work in memory.
    pub(crate) fn get(&self) -> Duration {
        self.now
    }

    /// Adapts to work found `gap` after the previous work was done.
    pub(crate) fn learn(&mut self, gap: Duration) {
        if gap > self.longest {
            self.now = self.base;
        } else if gap > self.now {
            self.now = self.now.saturating_mul(2).min(self.longest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Duration = Duration::from_micros(20);

    fn after(pinned: bool, gaps: &[u64]) -> u128 {
        let mut spin = AdaptiveSpin::new(BASE, pinned);
        for &gap in gaps {
            spin.learn(Duration::from_micros(gap));
        }
        spin.get().as_micros()
    }

    #[test]
    fn spin_grows_if_longer_polling_would_have_found_work() {
        assert_eq!(after(true, &[5, 19, 1]), 20);
        assert_eq!(after(true, &[50]), 40);
        assert_eq!(after(true, &[50, 50, 50, 1]), 80);
        assert_eq!(after(true, &[300; 10]), 320);
    }

    #[test]
    fn spin_resets_after_a_long_pause() {
        assert_eq!(after(true, &[300, 300, 1_000_000]), 20);
        assert_eq!(after(true, &[1_000_000; 10]), 20);
    }

    #[test]
    fn spin_does_not_grow_on_a_shared_cpu_or_when_off() {
        assert_eq!(after(false, &[50; 10]), 20);
        let mut none = AdaptiveSpin::new(Duration::ZERO, true);
        none.learn(Duration::from_micros(1));
        assert_eq!(none.get(), Duration::ZERO);
    }

    #[test]
    fn long_base_spin_does_not_change() {
        let base = Duration::from_millis(20);
        let mut spin = AdaptiveSpin::new(base, true);
        for gap in [1, 30, 10] {
            spin.learn(Duration::from_millis(gap));
            assert_eq!(spin.get(), base);
        }
    }
}
