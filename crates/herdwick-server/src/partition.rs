use std::{collections::BTreeMap, os::fd::RawFd};

use herdwick_mica::{Clock, Execute, Get, Op, Reply, Request, Sink, Staged, Status, Store};

use crate::{
    hot::HotKeys,
    prefixes::Prefixes,
    upload_steps::Uploader,
    watch::{Found, Journal, What, topic},
};

/// One worker's part of the data, and who is told of what is done to it.
pub(crate) struct Partition {
    pub(crate) store: Store,
    /// Counts by the keys' prefixes, if `stats detail` is on ...
    prefixes: Option<Box<Prefixes>>,
    /// ... and when it was on.
    laid_by: Option<Box<Prefixes>>,
    /// What is noted for those who watch.
    pub(crate) journal: Journal,
    /// The descriptor of the connection whose requests are executed, for those who watch.
    pub(crate) caller: RawFd,
    /// The keys that are asked for most.
    pub(crate) hot: HotKeys,
    /// Values on their way from other workers' connections.
    pub(crate) uploads: BTreeMap<Uploader, Staged>,
}

/// No connection's.
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

    /// Begins to count by prefix, or ends: what was counted stays.
    pub(crate) fn detail(&mut self, on: bool) {
        if on && self.prefixes.is_none() {
            self.prefixes = Some(self.laid_by.take().unwrap_or_default());
        } else if !on && self.prefixes.is_some() {
            self.laid_by = self.prefixes.take();
        }
    }

    /// What was counted by prefix.
    pub(crate) fn counted(&self) -> Option<&Prefixes> {
        self.prefixes.as_deref().or(self.laid_by.as_deref())
    }

    /// Makes all counters of events begin anew.
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
    /// As [`Execute::execute`]; `callers` says whose each request is.
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

    /// Looks for the item of a request, and leaves no trace.
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
        // One at a time, where each is looked for before it is executed.
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

/// What a mutation found: memcached looks an item up before it stores, counts or deletes, and says
/// so.
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

/// Sees every reply on its way.
struct Witness<'a, S, C> {
    clock: Clock,
    batch: &'a [Request<'a>],
    /// The number of the first of them.
    first: usize,
    /// What that one found.
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

/// How a look-up ended.
fn found(reply: &Reply<'_>) -> Found {
    match reply {
        reply if reply.made => Found::No,
        reply if reply.status == Status::Done => Found::Yes,
        reply if reply.expired => Found::Expired,
        reply if reply.flushed => Found::Flushed,
        _ => Found::No,
    }
}

/// What a watcher hears of a request.
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
        // One that is marked stale stays.
        Op::Delete(delete) => {
            let gone = reply.status == Status::Done && !delete.invalidate;
            gone.then_some(What::Deleted { size: before.size })
        }
        Op::Arith(_) => None,
    }
}
