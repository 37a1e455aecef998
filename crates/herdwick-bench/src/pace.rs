//! When requests start: a closed loop, or an open loop at a fixed rate without coordinated
//! omission.

/// Decides when requests start: as soon as there is room (closed loop), or on a fixed schedule that
/// does not wait for answers (open loop).
///
/// Latency counts from the start that this returns. Under an open loop the latency of a request
/// that could not be sent in time includes the delay since it was due, which avoids coordinated
/// omission.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    open: Option<Schedule>,
}

#[derive(Clone, Debug)]
struct Schedule {
    /// When operation 0 was due.
    start_ns: u64,
    interval_ns: f64,
    /// Operations taken so far.
    taken: u64,
}

impl Schedule {
    fn due_ns(&self, operation: u64) -> u64 {
        // A product instead of repeated addition, so that rounding does not accumulate.
        self.start_ns + (operation as f64 * self.interval_ns) as u64
    }
}

impl Pace {
    /// Returns a closed loop: a request starts when it is sent.
    #[must_use]
    pub(crate) fn closed() -> Self {
        Self { open: None }
    }

    /// Returns an open loop of `per_second` operations per second (above 0), evenly spaced from
    /// `start_ns`.
    #[must_use]
    pub(crate) fn open(per_second: f64, start_ns: u64) -> Self {
        Self {
            open: Some(Schedule {
                start_ns,
                interval_ns: 1e9 / per_second,
                taken: 0,
            }),
        }
    }

    /// Returns whether an operation may start now.
    #[inline]
    #[must_use]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.open
            .as_ref()
            .is_none_or(|schedule| schedule.due_ns(schedule.taken) <= now_ns)
    }

    /// Takes `operations` that start together; returns the time at which the first was due.
    #[inline]
    pub(crate) fn take(&mut self, operations: u64, now_ns: u64) -> u64 {
        match &mut self.open {
            None => now_ns,
            Some(schedule) => {
                let due = schedule.due_ns(schedule.taken);
                schedule.taken += operations;
                due
            }
        }
    }

    /// Returns the time at which the next operation is due, or `None` in a closed loop.
    #[must_use]
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        let schedule = self.open.as_ref()?;
        Some(schedule.due_ns(schedule.taken))
    }

    /// Returns the due times before `until_ns` of operations that were not taken: requests that
    /// were never sent.
    pub(crate) fn owed(&self, until_ns: u64) -> impl Iterator<Item = u64> + '_ {
        self.open.iter().flat_map(move |schedule| {
            let due = (schedule.taken..).map(|operation| schedule.due_ns(operation));
            due.take_while(move |due| *due < until_ns)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_loop_starts_the_next_request_at_once() {
        let mut pace = Pace::closed();
        assert!(pace.is_due(5));
        assert_eq!(pace.take(1, 5), 5);
        assert_eq!(pace.next_due_ns(), None);
        assert_eq!(pace.owed(100).count(), 0);
    }

    #[test]
    fn open_loop_keeps_its_schedule_when_late() {
        let mut pace = Pace::open(1e6, 10_000);
        assert!(!pace.is_due(9_999));
        assert!(pace.is_due(10_000));
        assert_eq!(pace.take(1, 10_000), 10_000);
        assert_eq!(pace.next_due_ns(), Some(11_000));
        assert_eq!(pace.take(3, 500_000), 11_000);
        assert_eq!(pace.take(1, 500_000), 14_000);
        assert_eq!(
            pace.owed(18_000).collect::<Vec<_>>(),
            [15_000, 16_000, 17_000]
        );
    }

    #[test]
    fn the_schedule_does_not_drift() {
        let mut pace = Pace::open(3.0, 0);
        let last = (0..3_000_001).map(|_| pace.take(1, 0)).last().unwrap();
        assert!(last.abs_diff(1_000_000_000_000_000) < 1_000, "{last}");
    }
}
