//! How a worker counts, as memcached does, and the sum over all workers. The counters themselves are
//! declared where they are shown, in the tables of [`crate::telemetry::stats`].
//!
//! Circular import with `general` and `workers`: a row of their tables declares a counter, and reads it
//! from a snapshot of all counters.

use std::cell::OnceCell;

use herdwick_hkvs::TrackerCounters;
use herdwick_mica::Counters;
use herdwick_request::{Arith, Clock, Get, Op, Put, Reply, Status};

use crate::{
    context::Context,
    net::tls::Certificates,
    telemetry::{
        hot::HotKey, latency::TransportLatency, leases::LeaseCounters, offload::OffloadView,
        stats::PollCounters,
    },
};

pub(crate) use crate::telemetry::stats::WorkerCounters;

/// Why a connection was closed by timeout or for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    HalfSent,
    Stalled,
    Idle,
}

/// Everything one worker has counted, copied at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) counters: WorkerCounters,
    pub(crate) polling: PollCounters,
    pub(crate) store: Counters,
    pub(crate) offload: TrackerCounters,
    /// Slots of the store's index.
    pub(crate) slots: u64,
    /// As [`Store::age`](herdwick_mica::Store::age), in seconds.
    pub(crate) age: u32,
    /// The counters of the worker's front ends.
    pub(crate) transports: Vec<TransportCount>,
    /// How long requests took, by front end.
    pub(crate) latencies: Vec<TransportLatency>,
    /// Its hot keys, if they were requested.
    pub(crate) hot: Vec<HotKey>,
    /// The worker's index.
    pub(crate) worker: usize,
}

/// One counter of a front end: requests, batches, or drops by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransportCount {
    pub(crate) transport: &'static str,
    pub(crate) what: &'static str,
    pub(crate) count: u64,
}

impl WorkerCounters {
    pub(crate) fn closed(&mut self, reason: Closed) {
        *match reason {
            Closed::HalfSent => &mut self.closed_half_sent,
            Closed::Stalled => &mut self.closed_stalled,
            Closed::Idle => &mut self.idle_kicks,
        } += 1;
    }

    /// Counts a request by its outcome, as memcached does.
    pub(crate) fn count(&mut self, op: &Op<'_>, reply: &Reply<'_>) {
        match op {
            Op::Get(get) => self.count_get(get, reply),
            Op::Put(put) => self.count_put(put, reply.status),
            Op::Arith(arith) => self.count_arith(arith, reply.status),
            // As in memcached: `md` with the flag `I` keeps the item, and counts as no deletion.
            Op::Delete(delete) if delete.invalidate && reply.status == Status::Done => {}
            Op::Delete(_) => match reply.status {
                Status::Done => self.delete_hits += 1,
                Status::NotFound => self.delete_misses += 1,
                _ => {}
            },
        }
    }

    /// Counts a read. A read that touches counts only as a touch.
    fn count_get(&mut self, get: &Get, reply: &Reply<'_>) {
        let (commands, hits, misses) = if get.touch.is_some() {
            (
                &mut self.cmd_touch,
                &mut self.touch_hits,
                &mut self.touch_misses,
            )
        } else {
            (&mut self.cmd_get, &mut self.get_hits, &mut self.get_misses)
        };
        *commands += 1;
        if reply.status == Status::Done {
            *hits += 1;
            // A touch that found its item, and no room for a longer header, is neither a hit nor a
            // miss.
        } else if reply.status != Status::OutOfMemory {
            *misses += 1;
            self.get_expired += u64::from(reply.expired);
            self.get_flushed += u64::from(reply.flushed);
        }
    }

    fn count_put(&mut self, put: &Put<'_>, status: Status) {
        match status {
            Status::TooLarge => self.store_too_large += 1,
            Status::OutOfMemory => self.store_no_memory += 1,
            // As in memcached, whether it was stored or not: the item had its room.
            _ => self.cmd_set += 1,
        }
        match status {
            Status::Done if put.compare.is_some() => self.cas_hits += 1,
            Status::NotFound if put.compare.is_some() => self.cas_misses += 1,
            Status::Exists => self.cas_badval += 1,
            _ => {}
        }
    }

    fn count_arith(&mut self, arith: &Arith, status: Status) {
        let (hits, misses) = if arith.decrement {
            (&mut self.decr_hits, &mut self.decr_misses)
        } else {
            (&mut self.incr_hits, &mut self.incr_misses)
        };
        match status {
            Status::Done => *hits += 1,
            Status::NotFound => *misses += 1,
            // As in memcached, a value that is no number makes neither.
            _ => {}
        }
    }
}

impl Snapshot {
    /// Returns the sum over all workers.
    pub(crate) fn sum(parts: &[Self]) -> Self {
        let mut sum = Self::default();
        for part in parts {
            sum.add(part);
        }
        sum
    }

    fn add(&mut self, other: &Self) {
        self.counters += &other.counters;
        self.polling += &other.polling;
        self.store += other.store;
        self.offload += &other.offload;
        self.slots += other.slots;
        // The oldest item of all partitions, as if they were one.
        self.age = self.age.max(other.age);
        self.hot.extend_from_slice(&other.hot);
        for part in &other.latencies {
            let mut all = self.latencies.iter_mut();
            match all.find(|sum| sum.transport == part.transport) {
                Some(sum) => *sum.histograms += &part.histograms,
                None => self.latencies.push(part.clone()),
            }
        }
        for part in &other.transports {
            let known = |sum: &&mut TransportCount| {
                (sum.transport, sum.what) == (part.transport, part.what)
            };
            match self.transports.iter_mut().find(known) {
                Some(sum) => sum.count += part.count,
                None => self.transports.push(*part),
            }
        }
    }
}

/// Everything that statistics are read from, at one moment.
pub(crate) struct StatsView<'a> {
    pub(crate) context: &'a Context,
    pub(crate) clock: Clock,
    /// The sum over all workers, or one worker's.
    pub(crate) sum: &'a Snapshot,
    cpu: OnceCell<(u64, u64)>,
}

impl<'a> StatsView<'a> {
    pub(crate) fn new(context: &'a Context, clock: Clock, sum: &'a Snapshot) -> Self {
        Self {
            context,
            clock,
            sum,
            cpu: OnceCell::new(),
        }
    }

    /// Returns the same of one worker alone.
    pub(crate) fn of(&self, part: &'a Snapshot) -> Self {
        Self::new(self.context, self.clock, part)
    }

    /// Returns the user and the system CPU time of the process, in microseconds, read once.
    pub(crate) fn cpu_micros(&self) -> (u64, u64) {
        *self.cpu.get_or_init(cpu_micros)
    }

    /// Returns what TLS is served with, if it is.
    pub(crate) fn tls(&self) -> Option<&'a Certificates> {
        self.context.certificates.as_ref()
    }

    /// Returns the lease manager's counters, if there is one.
    pub(crate) fn leases(&self) -> Option<&'a LeaseCounters> {
        self.context.leases.as_deref()
    }

    /// Returns the statistics of the replication of popular keys, if there is a secondary store.
    pub(crate) fn offload(&self) -> Option<OffloadView> {
        let offload = self.context.offload.as_ref()?;
        Some(offload.view(self.sum.offload))
    }
}

/// Reads fields 14 and 15 of /proc/self/stat (proc(5)).
fn cpu_micros() -> (u64, u64) {
    // Without /proc it is 0, because readers expect a number.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name of the process, which may contain spaces and brackets (proc(5)).
    let fields = stat.rsplit(')').next().unwrap_or_default();
    // utime is field 14; the first field behind the name is 3.
    let mut fields = fields.split_whitespace().skip(11);
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let mut next = || {
        let ticks = fields.next().and_then(|ticks| ticks.parse().ok());
        let ticks: u64 = ticks.unwrap_or(0);
        // In two parts, so that no product overflows.
        ticks / per_second * 1_000_000 + ticks % per_second * 1_000_000 / per_second
    };
    (next(), next())
}
