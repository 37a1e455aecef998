//! The interface between a load and the connections that carry it: [`Target`], [`Load`] and their
//! errors.

use herdwick_request::HashKey;

use crate::{counters::RunCounters, pace::Pace, workload::Trace};

/// Connections to a server that a load is driven through: one thread's TCP connections, or one
/// thread's HERD session.
pub(crate) trait Target {
    /// Sends requests of `load.trace` when `load.pace` lets them start, and counts the answers in
    /// `load.counters`. Returns when `clock` (nanoseconds since an arbitrary start) reaches
    /// `until_ns`, or when the trace has ended and every request is answered. Requests in flight
    /// stay in flight: the next call counts their answers.
    ///
    /// # Errors
    /// The connection failed, or the server violates the protocol.
    fn drive(
        &mut self,
        load: &mut Load<'_>,
        until_ns: u64,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), DriveError>;

    /// Returns the key with which the requests of the trace have to be hashed beforehand, or `None`
    /// if this target does not use hashes.
    fn hash_key(&mut self) -> Option<HashKey> {
        None
    }

    /// Returns the READs that its GETs took until now, of a system whose clients READ.
    fn reads(&self) -> Option<Reads> {
        None
    }

    /// Returns the times at which the requests still in flight were due.
    fn in_flight(&self) -> impl Iterator<Item = u64>;
}

/// READs, and the GETs that ended by them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reads {
    pub gets: u64,
    pub reads: u64,
    pub bytes: u64,
}

impl Reads {
    /// Returns those since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            gets: self.gets.saturating_sub(before.gets),
            reads: self.reads.saturating_sub(before.reads),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }

    /// Returns those of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            gets: self.gets + other.gets,
            reads: self.reads + other.reads,
            bytes: self.bytes + other.bytes,
        }
    }

    /// Returns READs and bytes a GET; `None` without GETs.
    pub(crate) fn per_get(self) -> Option<(f64, f64)> {
        let gets = self.gets as f64;
        (self.gets > 0).then(|| (self.reads as f64 / gets, self.bytes as f64 / gets))
    }
}

/// The load that a [`Target`] drives.
#[derive(Debug)]
pub(crate) struct Load<'a> {
    /// The requests, in order.
    pub trace: &'a mut Trace,
    /// When each request starts.
    pub pace: &'a mut Pace,
    /// The outcomes.
    pub counters: &'a mut RunCounters,
    /// Version that the next written value carries.
    pub version: u32,
}

impl Load<'_> {
    /// Records, in an open loop, the age of every request that was due before `now_ns` and is not
    /// answered, so that the end of a measurement does not hide a stalled server.
    pub(crate) fn count_unanswered(&mut self, in_flight: impl Iterator<Item = u64>, now_ns: u64) {
        // A closed loop has no times that requests are due at: a stall shows in its rate.
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
    /// No connection to the server.
    #[error(transparent)]
    Unreachable(#[from] herdwick::Error),
    /// The connection failed.
    #[error("the connection to the server failed: {0}")]
    Io(#[from] std::io::Error),
    /// A client of HERD as in the paper has ended.
    #[error(transparent)]
    Paper(#[from] herdwick_herd::paper::PaperLoss),
    /// The server closed the connection.
    #[error(
        "the server closed the connection: does it still run, and does it take so many connections (-c)?"
    )]
    Closed,
    /// A work request of the benchmark of verbs failed.
    #[error("a work request failed: {0:?}; `herdwick doctor` checks the fabrics of this host")]
    Verb(herdwick_fabric::Status),
    /// A work request of the benchmark of verbs was refused.
    #[error("a work request was refused: {0}")]
    Post(#[from] herdwick_fabric::PostError),
    /// A reply that memcached never sends.
    #[error("the server sent {0:?}, which is no reply to the request: is it a memcached server?")]
    Reply(String),
    /// A value that does not fit a request line and its overflow area.
    #[error("a value of {0} bytes does not fit HERD's request: take smaller ones, or --fabric tcp")]
    TooLarge(usize),
    /// An operation that the system does not have.
    #[error("the system has plain GETs and PUTs alone")]
    Operation,
    /// A value larger than any that this benchmark stores.
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

    /// A server with a window of 64 that answers in 5 us, except during one stall; its clock is a
    /// number.
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

    /// Runs one second at 100,000 operations per second, with a stall.
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
    fn open_loop_latency_includes_a_stall() {
        let counters = second_with(500_000_000..600_000_000, Pace::open(1e5, 0));
        let latencies = counters.latencies();
        // A tenth of the requests are due during the stall of 100 ms, and another tenth while the
        // backlog is worked off (served at twice the rate of arrival). So 20 % wait, uniformly from
        // 0 to 100 ms.
        assert_eq!(latencies.len(), 100_000);
        let p90 = latencies.value_at_quantile(0.9);
        assert!((45_000_000..55_000_000).contains(&p90), "{p90}");
        let p99 = latencies.value_at_quantile(0.99);
        assert!((93_000_000..97_000_000).contains(&p99), "{p99}");
        assert!(latencies.value_at_quantile(0.5) < 20_000);
    }

    #[test]
    fn closed_loop_latency_omits_a_stall_but_its_rate_drops() {
        let counters = second_with(500_000_000..600_000_000, Pace::closed());
        assert!(counters.latencies().value_at_quantile(0.99) < 1_000_000);
        assert!((179_000..181_000).contains(&counters.operations()));
    }

    #[test]
    fn stall_until_the_end_of_a_run_is_reported() {
        let counters = second_with(900_000_000..2_000_000_000, Pace::open(1e5, 0));
        assert_eq!(counters.latencies().len(), 100_000);
        let p99 = counters.latencies().value_at_quantile(0.99);
        assert!((88_000_000..92_000_000).contains(&p99), "{p99}");
        assert!(counters.operations() < 90_100);
    }
}
