//! Counters of one worker, counted as memcached counts, and their sum over all workers.

use herdwick_mica::{Arith, Counters, Get, Op, Put, Reply, Status};

use crate::hot::HotKey;

/// Declares [`WorkerCounters`] and its sum together, so that no counter is missing from the sum.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one worker, outside its store.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct WorkerCounters {
            $($(#[$doc])* pub(crate) $name: u64,)*
        }

        impl std::ops::AddAssign<&Self> for WorkerCounters {
            fn add_assign(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    cmd_get, cmd_set, cmd_flush, cmd_touch, cmd_meta,
    get_hits, get_misses, get_expired, get_flushed,
    delete_hits, delete_misses,
    incr_hits, incr_misses, decr_hits, decr_misses,
    cas_hits, cas_misses, cas_badval,
    touch_hits, touch_misses,
    store_too_large, store_no_memory,
    bytes_read, bytes_written,
    /// Requests over fabrics: bytes of keys and stored values, and bytes of values returned.
    fabric_bytes_read, fabric_bytes_written,
    /// A connection reached its limit of requests for one pass.
    conn_yields,
    /// Connections of this worker now.
    connections,
    /// Bytes of their buffers.
    held_bytes,
    /// Events written to the watch journal, and events dropped because the journal was full.
    log_worker_written, log_worker_dropped,
    /// Authentication attempts, and failed ones.
    auth_cmds, auth_errors,
    /// Lines and packets answered with an error message.
    refused_lines,
    /// Data blocks discarded unread because they exceed the largest item.
    refused_blocks,
    /// Connections closed: an endless line, or HTTP.
    closed_not_memcached,
    /// Connections closed: an invalid binary packet.
    closed_binary,
    /// Connections closed: a read or write error.
    closed_errors,
    /// Of those: invalid TLS records.
    ssl_proto_errors,
    /// UDP replies longer than the amplification limit, and UDP replies that the kernel refused.
    udp_withheld, udp_unsent,
    /// Connections closed: the rest of a command did not arrive in time.
    closed_half_sent,
    /// Connections closed because connections held too much memory: the one that had stalled
    /// longest, or had waited least.
    closed_stalled,
    /// Connections closed: no command for `idle_timeout`.
    idle_kicks,
    /// Requests received over sockets, and the batches they were executed in.
    tcp_requests, tcp_batches,
    /// Requests executed for other workers.
    forwarded,
    /// How often this worker slept.
    sleeps,
    /// Rounds deferred because all forwarded batches to a worker were in flight.
    forward_batches_exhausted,
    /// Large values read directly into the store, and how many of them waited for room.
    uploads, uploads_queued,
    /// Connections that waited for room for a large reply or a long line.
    replies_queued,
    /// Reads deferred because the output of a connection or forwarded batch was full.
    reads_deferred,
}

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

    /// Zeroes every counter, but not the gauges.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            connections: self.connections,
            held_bytes: self.held_bytes,
            ..Self::default()
        };
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
        add_store(&mut self.store, &other.store);
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

fn add_store(sum: &mut Counters, other: &Counters) {
    sum.items += other.items;
    sum.bytes += other.bytes;
    sum.total_items += other.total_items;
    sum.evictions += other.evictions;
    sum.index_evictions += other.index_evictions;
    sum.evicted_nonzero += other.evicted_nonzero;
    sum.evicted_unfetched += other.evicted_unfetched;
    sum.reclaimed += other.reclaimed;
    sum.expired_unfetched += other.expired_unfetched;
    sum.refreshed += other.refreshed;
    sum.kept += other.kept;
    sum.bad_keys += other.bad_keys;
}
