use herdwick_mica::HashKey;

use crate::{counters::RunCounters, pace::Pace, workload::Trace};

/// A way to a server that requests can be driven through: one thread's connections, or one
/// thread's HERD session.
pub(crate) trait Target {
    /// Sends requests of `load.trace` when `load.pace` lets them start, and counts the answers in
    /// `load.counters`, until `clock` (nanoseconds since any start) reaches `until_ns`, or until
    /// the trace has ended and everything is answered. Requests in flight stay in flight: the next
    /// call counts their answers.
    ///
    /// # Errors
    /// The way is gone, or the server does not speak our language.
    fn drive(
        &mut self,
        load: &mut Load<'_>,
        until_ns: u64,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), DriveError>;

    /// The key under which this way wants every request hashed beforehand, if it does.
    fn hash_key(&mut self) -> Option<HashKey> {
        None
    }

    /// When the requests still in flight were due.
    fn in_flight(&self) -> impl Iterator<Item = u64>;
}

/// What a [`Target`] drives.
#[derive(Debug)]
pub(crate) struct Load<'a> {
    /// What to ask, in order.
    pub trace: &'a mut Trace,
    /// When.
    pub pace: &'a mut Pace,
    /// What came back.
    pub counters: &'a mut RunCounters,
    /// Version of the next value written.
    pub version: u32,
}

impl Load<'_> {
    /// Counts the age of what an open loop has due before `now_ns` and not answered: the end of a
    /// measurement must not hide a server that stands still.
    pub(crate) fn count_unanswered(&mut self, in_flight: impl Iterator<Item = u64>, now_ns: u64) {
        if self.pace.next_due_ns().is_none() {
            return;
        }
        for due in in_flight.chain(self.pace.owed(now_ns)) {
            self.counters.latency(due, now_ns);
        }
    }
}

/// Why driving ended early.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The connection failed.
    #[error("the connection to the server failed: {0}")]
    Io(#[from] std::io::Error),
    /// The server closed the connection.
    #[error(
        "the server closed the connection: does it still run, and does it take so many connections (-c)?"
    )]
    Closed,
    /// A reply that no memcached gives.
    #[error(
        "the server said {0:?}, which is no reply to what was asked: is it a memcached server?"
    )]
    Reply(String),
    /// More than a request line and its overflow area hold.
    #[error("a value of {0} bytes does not fit HERD's request: take smaller ones, or --fabric tcp")]
    TooLarge(usize),
    /// A value larger than any of ours.
    #[error(
        "the server returned a value of {0} bytes for one of our keys: it holds data of other sizes, so flush it or use another"
    )]
    ForeignValue(u64),
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::workload::{Dist, Mix};

    /// A server with a window of 64 that answers in 5 us, but stands still for a while; its time
    /// is a number.
    struct Stalling {
        now_ns: u64,
        stall_ns: std::ops::Range<u64>,
        waiting: VecDeque<u64>,
    }

    impl Target for Stalling {
        fn drive(
            &mut self,
            load: &mut Load<'_>,
            until_ns: u64,
            _clock: &mut impl FnMut() -> u64,
        ) -> Result<(), DriveError> {
            while self.now_ns < until_ns {
                while self.waiting.len() < 64 && load.pace.is_due(self.now_ns) {
                    load.trace.take();
                    self.waiting.push_back(load.pace.take(1, self.now_ns));
                }
                self.now_ns += 5_000;
                if self.stall_ns.contains(&self.now_ns) {
                    continue;
                }
                if let Some(start) = self.waiting.pop_front() {
                    load.counters.hits += 1;
                    load.counters.latency(start, self.now_ns);
                }
            }
            Ok(())
        }

        fn in_flight(&self) -> impl Iterator<Item = u64> {
            self.waiting.iter().copied()
        }
    }

    /// One second of 100,000 operations a second beside a stall.
    fn second_with(stall_ns: std::ops::Range<u64>, mut pace: Pace) -> RunCounters {
        let mut counters = RunCounters::new();
        let mut trace = Trace::new(Mix::GetShare(1.0), Dist::Uniform, 10, 100, 1);
        let mut target = Stalling {
            now_ns: 0,
            stall_ns,
            waiting: VecDeque::new(),
        };
        let mut load = Load {
            trace: &mut trace,
            pace: &mut pace,
            counters: &mut counters,
            version: 0,
        };
        target.drive(&mut load, 1_000_000_000, &mut || 0).unwrap();
        load.count_unanswered(target.in_flight(), 1_000_000_000);
        counters
    }

    #[test]
    fn an_open_loop_sees_a_stall_as_its_users_would() {
        let counters = second_with(500_000_000..600_000_000, Pace::open(1e5, 0));
        let latencies = counters.latencies();
        // A tenth of the users came during the stall of 100 ms and a tenth while it was worked
        // off (served twice as fast as they come), so 20 % waited, evenly from 0 to 100 ms.
        assert_eq!(latencies.len(), 100_000);
        let p90 = latencies.value_at_quantile(0.9);
        assert!((45_000_000..55_000_000).contains(&p90), "{p90}");
        let p99 = latencies.value_at_quantile(0.99);
        assert!((93_000_000..97_000_000).contains(&p99), "{p99}");
        assert!(latencies.value_at_quantile(0.5) < 20_000);
    }

    #[test]
    fn a_closed_loop_does_not_and_says_so_by_its_rate() {
        let counters = second_with(500_000_000..600_000_000, Pace::closed());
        assert!(counters.latencies().value_at_quantile(0.99) < 1_000_000);
        assert!((179_000..181_000).contains(&counters.operations()));
    }

    #[test]
    fn a_server_that_stands_still_to_the_end_is_not_hidden() {
        let counters = second_with(900_000_000..2_000_000_000, Pace::open(1e5, 0));
        assert_eq!(counters.latencies().len(), 100_000);
        let p99 = counters.latencies().value_at_quantile(0.99);
        assert!((88_000_000..92_000_000).contains(&p99), "{p99}");
        assert!(counters.operations() < 90_100);
    }
}
