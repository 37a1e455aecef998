use std::time::Duration;

/// How long a worker looks for work before it sleeps: `base`; in memory perhaps longer, never less.
///
/// The kernel takes tens of microseconds to wake a thread, so a worker that is woken soon after it
/// fell asleep had better stayed awake: each time that happens it looks twice as long, until that
/// would no longer help. (KVM waits for halted clients by the same rule.)
#[derive(Debug)]
pub(crate) struct AdaptiveSpin {
    base: Duration,
    longest: Duration,
    now: Duration,
}

/// The longest look, unless `base` is longer: a few times what a wake takes.
const LONGEST: Duration = Duration::from_micros(320);

impl AdaptiveSpin {
    /// One that begins with `base`. It stays there if that is 0, or unless there are `spare_cpus`:
    /// else the worker would keep those from running whose requests it waits for.
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

    /// How long to look where work comes by events.
    pub(crate) fn base(&self) -> Duration {
        self.base
    }

    /// How long to look in memory.
    pub(crate) fn get(&self) -> Duration {
        self.now
    }

    /// Work was found, so long after the work before it was done.
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
    fn it_grows_where_a_longer_look_had_found_work() {
        assert_eq!(after(true, &[5, 19, 1]), 20);
        assert_eq!(after(true, &[50]), 40);
        assert_eq!(after(true, &[50, 50, 50, 1]), 80);
        assert_eq!(after(true, &[300; 10]), 320);
    }

    #[test]
    fn it_is_gone_after_a_rest() {
        assert_eq!(after(true, &[300, 300, 1_000_000]), 20);
        assert_eq!(after(true, &[1_000_000; 10]), 20);
    }

    #[test]
    fn it_stays_short_on_a_shared_cpu_and_where_there_is_none() {
        assert_eq!(after(false, &[50; 10]), 20);
        let mut none = AdaptiveSpin::new(Duration::ZERO, true);
        none.learn(Duration::from_micros(1));
        assert_eq!(none.get(), Duration::ZERO);
    }

    #[test]
    fn a_long_base_stays() {
        let base = Duration::from_millis(20);
        let mut spin = AdaptiveSpin::new(base, true);
        for gap in [1, 30, 10] {
            spin.learn(Duration::from_millis(gap));
            assert_eq!(spin.get(), base);
        }
    }
}
