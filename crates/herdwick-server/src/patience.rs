use std::time::Duration;

/// How long a worker looks for work in memory before it sleeps.
///
/// The kernel takes several times `base` to wake a thread, so a worker that is woken soon after it
/// fell asleep had better stayed awake: each time that happens it looks twice as long, until that
/// would no longer help. (KVM waits for halted guests by the same rule.)
#[derive(Debug)]
pub(crate) struct Patience {
    base: Duration,
    longest: Duration,
    now: Duration,
}

/// The longest look, in multiples of the shortest.
const GROWTH: u32 = 16;

impl Patience {
    /// One that begins with `base`, and stays there unless the worker has a CPU of its own: on a
    /// shared one it would keep those from running whose requests it waits for.
    pub(crate) fn new(base: Duration, own_cpu: bool) -> Self {
        Self {
            base,
            longest: base.saturating_mul(if own_cpu { GROWTH } else { 1 }),
            now: base,
        }
    }

    /// How long to look.
    pub(crate) fn get(&self) -> Duration {
        self.now
    }

    /// Work was found, so long after the work before it.
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

    fn after(own_cpu: bool, gaps: &[u64]) -> u128 {
        let mut patience = Patience::new(BASE, own_cpu);
        for &gap in gaps {
            patience.learn(Duration::from_micros(gap));
        }
        patience.get().as_micros()
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
        let mut none = Patience::new(Duration::ZERO, true);
        none.learn(Duration::from_micros(1));
        assert_eq!(none.get(), Duration::ZERO);
    }
}
