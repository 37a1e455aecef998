//! One worker's partition: the store, and what observes its requests (hot keys, counts by prefix,
//! `watch`). Without observers a batch is passed straight to the store.

use std::{collections::BTreeMap, os::fd::RawFd, time::Duration};

use herdwick_hkvs::TrackerCounters;
use herdwick_mica::Hashes;
use herdwick_request::{
    Clock, Execute, Get, KeyHash, Op, ReadReport, Reply, Request, Second, Sink, Staged, Status,
};

use crate::{
    runtime::{
        offload::{Marking, OffloadPart},
        store::Store,
    },
    telemetry::{
        hot::HotKeys,
        prefixes::Prefixes,
        watch::{EventQueue, LookupOutcome, What, topic},
    },
};

/// Identifies an upload for the worker that owns the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Uploader {
    /// The worker of the connection.
    pub(crate) worker: u16,
    /// The connection's index there.
    pub(crate) connection: u32,
    /// Distinguishes connections that have used the same index.
    pub(crate) generation: u32,
}

/// One worker's part of the data, and the observers of its requests.
pub(crate) struct Partition {
    pub(crate) store: Store,
    /// Counts by prefix while `stats detail` is on ...
    prefixes: Option<Box<Prefixes>>,
    /// ... and the counts kept while it is off.
    laid_by: Option<Box<Prefixes>>,
    /// Events for watchers.
    pub(crate) event_queue: EventQueue,
    /// The most requested keys.
    pub(crate) hot: HotKeys,
    /// Reservations of values that connections of other workers are uploading.
    pub(crate) uploads: BTreeMap<Uploader, Staged>,
    /// The latest pass that used the partition, of any worker, and the clock that it had.
    now: Duration,
    clock: Clock,
    /// The bytes that the memory limit of that pass left unused.
    unused: usize,
    /// The replication of popular keys, if there is a secondary store.
    offload: Option<Box<OffloadPart>>,
}

/// The clock and the memory limit that a pass sets in the partitions that it uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassStart {
    /// Time since the server's start.
    pub(crate) now: Duration,
    /// The same time as the store counts it.
    pub(crate) clock: Clock,
    /// The bytes that the memory limit leaves unused in each partition.
    pub(crate) unused: usize,
}

/// The descriptor reported for a request that belongs to no connection.
pub(crate) const NOBODY: RawFd = -1;

impl Partition {
    pub(crate) fn new(
        store: Store,
        event_queue: EventQueue,
        hot: HotKeys,
        offload: Option<Box<OffloadPart>>,
    ) -> Self {
        Self {
            offload,
            store,
            prefixes: None,
            laid_by: None,
            event_queue,
            hot,
            uploads: BTreeMap::new(),
            now: Duration::ZERO,
            clock: Clock {
                epoch_unix: 0,
                second: Second(0),
            },
            unused: 0,
        }
    }

    /// Begins a batch in the partition. The first one of a pass, of any worker, takes a step towards
    /// the memory limit.
    #[inline]
    pub(crate) fn begin(&mut self, start: PassStart) {
        // Batches of one pass have the same time: a pass takes one step, however many batches it
        // has.
        let is_first = start.now > self.now;
        self.update(start);
        if is_first {
            self.adjust(self.clock);
        }
    }

    /// Begins a pass of the owner, with a step towards the memory limit. Returns whether there are
    /// more steps to take.
    #[inline]
    pub(crate) fn begin_pass(&mut self, start: PassStart) -> bool {
        self.update(start);
        self.adjust(self.clock)
    }

    /// Takes over the clock, the watched topics and the memory limit of a pass.
    #[inline]
    fn update(&mut self, start: PassStart) {
        self.set_clock(start.now, start.clock);
        self.event_queue.begin(self.now);
        // A pass that began earlier may not know the limit yet.
        if start.unused != self.unused && start.now >= self.now {
            self.unused = start.unused;
            self.store.leave_unused(start.unused);
        }
    }

    /// Returns the bytes that the memory limit leaves unused, as the store knows it.
    pub(crate) fn unused(&self) -> usize {
        self.unused
    }

    /// Sets the clock, unless a pass that began later has set it: passes of several workers
    /// overlap, and the store's time must not go back.
    #[inline]
    pub(crate) fn set_clock(&mut self, now: Duration, clock: Clock) {
        if now >= self.now {
            (self.now, self.clock) = (now, clock);
        }
    }

    /// Returns the clock that requests are executed by.
    #[inline]
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Starts or stops counting by prefix. The counts are kept when it stops.
    pub(crate) fn detail(&mut self, on: bool) {
        if on && self.prefixes.is_none() {
            self.prefixes = Some(self.laid_by.take().unwrap_or_default());
        } else if !on && self.prefixes.is_some() {
            self.laid_by = self.prefixes.take();
        }
    }

    /// Returns the counts by prefix, current or kept.
    pub(crate) fn counted(&self) -> Option<&Prefixes> {
        self.prefixes.as_deref().or(self.laid_by.as_deref())
    }

    /// Zeroes the event counters.
    pub(crate) fn reset(&mut self) {
        self.store.reset_counters();
        (self.event_queue.written, self.event_queue.dropped) = (0, 0);
        // `stats reset` clears the counts in either state, and leaves the counting on or off.
        self.laid_by = None;
        if let Some(offload) = &mut self.offload {
            offload.reset();
        }
        if let Some(prefixes) = &mut self.prefixes {
            **prefixes = Prefixes::default();
        }
    }
}

impl Execute for Partition {
    #[inline]
    fn execute(&mut self, clock: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        self.execute_hashed(clock, batch, Hashes::Claimed, |_| NOBODY, sink);
    }

    fn note_reads(&mut self, clock: Clock, report: &ReadReport<'_>) {
        self.store.note_reads(clock, report);
    }

    fn stag(&mut self, clock: Clock, hash: KeyHash, key: &[u8]) -> Option<u32> {
        self.store.stag(clock, hash, key)
    }
}

impl Partition {
    /// As [`Execute::execute`], of requests whose hashes the server has computed; `callers` returns
    /// the descriptor of each request's connection.
    #[inline]
    pub(crate) fn execute_for(
        &mut self,
        clock: Clock,
        batch: &[Request<'_>],
        callers: impl Fn(usize) -> RawFd,
        sink: &mut impl Sink,
    ) {
        self.execute_hashed(clock, batch, Hashes::Computed, callers, sink);
    }

    #[inline]
    fn execute_hashed(
        &mut self,
        clock: Clock,
        batch: &[Request<'_>],
        hashes: Hashes,
        callers: impl Fn(usize) -> RawFd,
        sink: &mut impl Sink,
    ) {
        match &self.offload {
            None => self.execute_plain(clock, batch, hashes, callers, sink),
            Some(_) => self.execute_marked(clock, batch, hashes, callers, sink),
        }
    }

    /// As [`Partition::execute_hashed`], while popular keys are replicated.
    // Not inlined: a server without a secondary store has no instruction of it in its loop.
    #[inline(never)]
    fn execute_marked(
        &mut self,
        clock: Clock,
        batch: &[Request<'_>],
        hashes: Hashes,
        callers: impl Fn(usize) -> RawFd,
        sink: &mut impl Sink,
    ) {
        // Taken out for the batch: the sink marks replies by it while the store, beside it, executes.
        let Some(mut part) = self.offload.take() else {
            return;
        };
        part.begin(batch);
        let second = clock.second;
        let mut marking = Marking {
            part: &mut part,
            batch,
            second,
            sink,
        };
        self.execute_plain(clock, batch, hashes, callers, &mut marking);
        part.end();
        self.offload = Some(part);
    }

    #[inline]
    fn execute_plain(
        &mut self,
        clock: Clock,
        batch: &[Request<'_>],
        hashes: Hashes,
        callers: impl Fn(usize) -> RawFd,
        sink: &mut impl Sink,
    ) {
        self.hot.see(clock, batch);
        if self.prefixes.is_none()
            && !self
                .event_queue
                .wants(topic::OF_REQUESTS | topic::EVICTIONS)
        {
            self.store.execute_hashed(clock, batch, hashes, sink);
        } else {
            self.execute_watched(clock, batch, callers, sink);
        }
    }

    /// Removes all items at second `at`, or at once if it has come; 0: not as ordered before.
    pub(crate) fn flush(&mut self, now: Second, at: Second) {
        self.store.flush(now, at);
        if let Some(offload) = &mut self.offload {
            offload.flush(now, at);
        }
    }

    /// Returns the counters of the replication of popular keys.
    pub(crate) fn offload_counters(&self) -> TrackerCounters {
        let offload = self.offload.as_ref();
        offload.map_or_else(TrackerCounters::default, |offload| offload.counters())
    }

    /// Looks up the item of a request without marking it accessed, and without winning the right to
    /// recache it.
    fn check(&mut self, clock: Clock, request: &Request<'_>) -> Before {
        let peek = Request {
            op: Op::Get(Get {
                quiet_access: true,
                unaware: true,
                ..Get::default()
            }),
            ..*request
        };
        let mut before = Before::default();
        self.store.execute(clock, &[peek], &mut before);
        before
    }

    #[cold]
    fn execute_watched(
        &mut self,
        clock: Clock,
        batch: &[Request<'_>],
        callers: impl Fn(usize) -> RawFd,
        sink: &mut impl Sink,
    ) {
        self.store
            .record_evictions(self.event_queue.wants(topic::EVICTIONS));
        let checks = self.event_queue.wants(topic::FETCHERS | topic::DELETIONS);
        // With these topics, one request at a time: each item is looked up before its request is
        // executed.
        let step = if checks { 1 } else { batch.len().max(1) };
        for (turn, requests) in batch.chunks(step).enumerate() {
            let first = turn * step;
            let mut before = Before::default();
            if let [request] = requests
                && checks
                // A read is its own look-up: its reply makes the event.
                && !matches!(request.op, Op::Get(_))
            {
                before = self.check(clock, request);
                let Before { found, size } = before;
                let caller = callers(first);
                let what = What::Get {
                    found,
                    size,
                    caller,
                };
                self.event_queue.note(what, request.key);
            }
            let mut witness = Witness {
                clock,
                batch: requests,
                first,
                before,
                callers: &callers,
                prefixes: self.prefixes.as_deref_mut(),
                event_queue: &mut self.event_queue,
                sink,
            };
            self.store.execute(clock, requests, &mut witness);
        }
        self.note_evictions(clock);
    }

    /// Takes a step towards the memory limit; returns whether there is more to do.
    pub(crate) fn adjust(&mut self, clock: Clock) -> bool {
        let watched = self.event_queue.wants(topic::EVICTIONS);
        // Turned off, too, when the last watcher has gone: a record that is never read would only
        // fill.
        self.store.record_evictions(watched);
        let more = self.store.adjust();
        if watched {
            self.note_evictions(clock);
        }
        more
    }

    /// Notes the evictions that the store has recorded, for watchers.
    #[cold]
    fn note_evictions(&mut self, clock: Clock) {
        let event_queue = &mut self.event_queue;
        let missed = self.store.take_evictions(|evicted| {
            let what = What::Evicted {
                fetched: evicted.fetched,
                ttl: evicted.deadline.left(clock.second).map_or(-1, i64::from),
                idle: clock.second.0.saturating_sub(evicted.last_access.0),
                size: evicted.value_len,
            };
            event_queue.note(what, evicted.key);
        });
        event_queue.dropped += missed;
    }
}

/// The item before a mutation. memcached looks an item up before it stores, counts or deletes, and
/// logs that look-up.
#[derive(Clone, Copy)]
struct Before {
    found: LookupOutcome,
    size: usize,
}

impl Default for Before {
    fn default() -> Self {
        Self {
            found: LookupOutcome::No,
            size: 0,
        }
    }
}

impl Sink for Before {
    fn reply(&mut self, _: usize, reply: &Reply<'_>) {
        self.found = found(reply);
        self.size = reply.item.map_or(0, |item| item.value.len());
    }
}

/// Passes replies on and records an event for each.
struct Witness<'a, S, C> {
    clock: Clock,
    batch: &'a [Request<'a>],
    /// The index of the first request of `batch` in the whole batch.
    first: usize,
    /// The item before that first request.
    before: Before,
    callers: &'a C,
    prefixes: Option<&'a mut Prefixes>,
    event_queue: &'a mut EventQueue,
    sink: &'a mut S,
}

impl<S: Sink, C: Fn(usize) -> RawFd> Sink for Witness<'_, S, C> {
    fn reply(&mut self, index: usize, reply: &Reply<'_>) {
        let number = self.first + index;
        if let Some(request) = self.batch.get(index) {
            if let Some(prefixes) = &mut self.prefixes {
                prefixes.count(request, reply.status);
            }
            let (caller, before) = ((self.callers)(number), &self.before);
            if self.event_queue.wants(topic::OF_REQUESTS)
                && let Some(what) = what(&self.clock, &request.op, reply, before, caller)
            {
                self.event_queue.note(what, request.key);
            }
        }
        self.sink.reply(number, reply);
    }

    fn has_room(&mut self, index: usize) -> bool {
        self.sink.has_room(self.first + index)
    }

    fn has_room_for(&mut self, index: usize, value_len: usize) -> bool {
        self.sink.has_room_for(self.first + index, value_len)
    }
}

/// Classifies a look-up by its reply.
fn found(reply: &Reply<'_>) -> LookupOutcome {
    match reply {
        reply if reply.made => LookupOutcome::No,
        reply if reply.status == Status::Done => LookupOutcome::Yes,
        reply if reply.expired => LookupOutcome::Expired,
        reply if reply.flushed => LookupOutcome::Flushed,
        _ => LookupOutcome::No,
    }
}

/// Returns the event that watchers receive for a request, if any.
fn what(
    clock: &Clock,
    op: &Op<'_>,
    reply: &Reply<'_>,
    before: &Before,
    caller: RawFd,
) -> Option<What> {
    match op {
        Op::Get(_) => Some(What::Get {
            found: found(reply),
            size: reply.item.map_or(0, |item| item.value.len()),
            caller,
        }),
        Op::Put(put) => Some(What::Store {
            mode: put.mode,
            compared: put.compare.is_some(),
            status: reply.status,
            ttl: clock.deadline(put.exptime).left(clock.second).unwrap_or(0),
            size: match &reply.item {
                Some(item) if reply.status == Status::Done => item.value.len(),
                _ => put.value_len(),
            },
            caller,
        }),
        // A deletion that only marks the item stale keeps it.
        Op::Delete(delete) => {
            let gone = reply.status == Status::Done && !delete.invalidate;
            gone.then_some(What::Deleted { size: before.size })
        }
        Op::Arith(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use herdwick_mica::StoreConfig;
    use herdwick_request::{HashKey, Put};

    use super::*;

    const HASH_KEY: HashKey = HashKey([1, 2]);

    fn partition(memory_bytes: usize) -> Partition {
        let store = Store::new(&StoreConfig {
            memory_bytes,
            item_bytes_max: 64 << 10,
            hash_key: HASH_KEY,
        })
        .unwrap();
        let (event_queue, _) = EventQueue::new(Arc::default());
        Partition::new(store, event_queue, HotKeys::new(0), None)
    }

    fn start(milliseconds: u64, second: u32, unused: usize) -> PassStart {
        PassStart {
            now: Duration::from_millis(milliseconds),
            clock: Clock {
                epoch_unix: 0,
                second: Second(second),
            },
            unused,
        }
    }

    /// A worker that uses a partition for many batches of one pass leaves the steps towards a lower
    /// limit to the following passes.
    #[test]
    fn each_pass_takes_one_step_towards_the_memory_limit() {
        let mut partition = partition(8 << 20);
        let value = [1; 16 << 10];
        partition.begin(start(1, 0, 0));
        for key in 0..1000u32 {
            let key = key.to_be_bytes();
            let request = Request {
                hash: HASH_KEY.hash(&key),
                key: &key,
                op: Op::Put(Put {
                    value: &value,
                    ..Put::default()
                }),
            };
            partition.execute(partition.clock(), &[request], &mut |_, _: &Reply<'_>| {});
        }
        let items = |partition: &Partition| partition.store.counters().items;
        let full = items(&partition);
        partition.begin(start(2, 0, 6 << 20));
        let after_one = items(&partition);
        for _ in 0..100 {
            partition.begin(start(2, 0, 6 << 20));
        }
        assert!(after_one < full);
        assert_eq!(items(&partition), after_one);
        // Of a pass that began before.
        partition.begin(start(1, 0, 0));
        assert_eq!(items(&partition), after_one);
        for pass in 3..103 {
            partition.begin(start(pass, 0, 6 << 20));
        }
        assert!(items(&partition) < after_one - 32);
        assert!(!partition.begin_pass(start(103, 0, 6 << 20)), "not done");
    }

    #[test]
    fn time_does_not_go_back_while_passes_of_workers_overlap() {
        let mut partition = partition(1 << 20);
        let mut second = |now, second| {
            partition.begin(start(now, second, 0));
            partition.clock().second.0
        };
        assert_eq!(second(10_999, 10), 10);
        assert_eq!(second(11_001, 11), 11);
        // Of a pass that began before that one.
        assert_eq!(second(10_999, 10), 11);
        // `debugtime` may turn the clock back, for passes that begin later.
        assert_eq!(second(11_002, 5), 5);
    }
}
