//! One worker's partition: the store, and what observes its requests (hot keys, counts by prefix,
//! `watch`). Without observers a batch is passed straight to the store.

use std::{collections::BTreeMap, os::fd::RawFd};

use herdwick_mica::{Clock, Execute, Get, Op, Reply, Request, Sink, Staged, Status, Store};

use crate::{
    hot::HotKeys,
    prefixes::Prefixes,
    upload_steps::Uploader,
    watch::{Found, Journal, What, topic},
};

/// One worker's part of the data, and the observers of its requests.
pub(crate) struct Partition {
    pub(crate) store: Store,
    /// Counts by prefix while `stats detail` is on ...
    prefixes: Option<Box<Prefixes>>,
    /// ... and the counts kept while it is off.
    laid_by: Option<Box<Prefixes>>,
    /// Events for watchers.
    pub(crate) journal: Journal,
    /// The descriptor of the connection whose requests are executed, for watchers.
    pub(crate) caller: RawFd,
    /// The most requested keys.
    pub(crate) hot: HotKeys,
    /// Reservations of values that connections of other workers are uploading.
    pub(crate) uploads: BTreeMap<Uploader, Staged>,
}

/// The descriptor reported for a request that belongs to no connection.
pub(crate) const NOBODY: RawFd = -1;

impl Partition {
    pub(crate) fn new(store: Store, journal: Journal, hot: HotKeys) -> Self {
        Self {
            store,
            prefixes: None,
            laid_by: None,
            journal,
            caller: NOBODY,
            hot,
            uploads: BTreeMap::new(),
        }
    }

    /// Starts or stops counting by prefix. Stopping keeps the counts.
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
        self.laid_by = None;
        if let Some(prefixes) = &mut self.prefixes {
            **prefixes = Prefixes::default();
        }
    }
}

impl Execute for Partition {
    #[inline]
    fn execute(&mut self, clock: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        let caller = self.caller;
        self.execute_for(clock, batch, |_| caller, sink);
    }
}

impl Partition {
    /// As [`Execute::execute`]; `callers` returns the descriptor of each request's connection.
    #[inline]
    pub(crate) fn execute_for(
        &mut self,
        clock: Clock,
        batch: &[Request<'_>],
        callers: impl Fn(usize) -> RawFd,
        sink: &mut impl Sink,
    ) {
        self.hot.see(clock, batch);
        if self.prefixes.is_none() && !self.journal.wants(topic::OF_REQUESTS | topic::EVICTIONS) {
            self.store.execute(clock, batch, sink);
        } else {
            self.execute_watched(clock, batch, callers, sink);
        }
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
            .record_evictions(self.journal.wants(topic::EVICTIONS));
        let checks = self.journal.wants(topic::FETCHERS | topic::DELETIONS);
        // With these topics, one request at a time: each item is looked up before its request is
        // executed.
        let step = if checks { 1 } else { batch.len().max(1) };
        for (turn, requests) in batch.chunks(step).enumerate() {
            let first = turn * step;
            let mut before = Before::default();
            if let [request] = requests
                && checks
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
                self.journal.note(what, request.key);
            }
            let mut witness = Witness {
                clock,
                batch: requests,
                first,
                before,
                callers: &callers,
                prefixes: self.prefixes.as_deref_mut(),
                journal: &mut self.journal,
                sink,
            };
            self.store.execute(clock, requests, &mut witness);
        }
        let journal = &mut self.journal;
        self.store.take_evictions(|evicted| {
            let what = What::Evicted {
                fetched: evicted.fetched,
                ttl: evicted.deadline.left(clock.second).map_or(-1, i64::from),
                idle: clock.second.0.saturating_sub(evicted.last_access.0),
                size: evicted.value_len,
            };
            journal.note(what, evicted.key());
        });
    }
}

/// The item before a mutation. memcached looks an item up before it stores, counts or deletes, and
/// logs that look-up.
#[derive(Clone, Copy)]
struct Before {
    found: Found,
    size: usize,
}

impl Default for Before {
    fn default() -> Self {
        Self {
            found: Found::No,
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
    journal: &'a mut Journal,
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
            if self.journal.wants(topic::OF_REQUESTS)
                && let Some(what) = what(&self.clock, &request.op, reply, before, caller)
            {
                self.journal.note(what, request.key);
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
fn found(reply: &Reply<'_>) -> Found {
    match reply {
        reply if reply.made => Found::No,
        reply if reply.status == Status::Done => Found::Yes,
        reply if reply.expired => Found::Expired,
        reply if reply.flushed => Found::Flushed,
        _ => Found::No,
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
