//! How a worker counts, as memcached does, and the sum over all workers. The counters themselves are
//! declared where they are shown, in the tables of [`crate::stats`].

use herdwick_mica::{Arith, Counters, Get, Op, Put, Reply, Status};

use crate::{hot::HotKey, stats::PollCounters};

pub(crate) use crate::stats::WorkerCounters;

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
    /// Slots of the store's index.
    pub(crate) slots: u64,
    /// Age of the oldest item, in seconds since its last use.
    pub(crate) age: u32,
    /// The counters of the worker's fronts.
    pub(crate) transports: Vec<TransportCount>,
    /// Its hot keys, if they were requested.
    pub(crate) hot: Vec<HotKey>,
    /// The worker's index.
    pub(crate) worker: usize,
}

/// One counter of a front: requests, batches, or drops by reason.
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
        } else {
            *misses += 1;
            self.get_expired += u64::from(reply.expired);
            self.get_flushed += u64::from(reply.flushed);
        }
    }

    fn count_put(&mut self, put: &Put<'_>, status: Status) {
        match status {
            Status::TooLarge => self.store_too_large += 1,
            Status::OutOfMemory => self.store_no_memory += 1,
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
        self.slots += other.slots;
        self.age = self.age.max(other.age);
        self.hot.extend_from_slice(&other.hot);
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
