//! A partition's part in the replication of popular keys (docs/hkvs.md): it sees each request and its reply,
//! has the tracker decide, and marks the reply.

use std::sync::{Arc, Mutex, PoisonError};

use herdwick_herd::hello::{StoreId, StoreName};
use herdwick_hkvs::{STORE_NUMBERS, Tracker, TrackerCounters, store_number};
use herdwick_mem::sync::{AtomicU64, Ordering};
use herdwick_request::{Get, HashKey, Marks, Op, Reply, Request, Second, Sink, Status};

use crate::runtime::{parking::WakeupFd, time::ServerClock};

// A hello with a number that clients do not take names no store.
const _: () = assert!(STORE_NUMBERS == StoreName::NUMBERS as u64);

/// What the partitions and the thread that replicates share.
pub(crate) struct OffloadLink {
    /// The number of the connection to the secondary store; 0: there is none.
    epoch: AtomicU64,
    /// What hellos call that store.
    store: Mutex<Option<StoreName>>,
    /// Wakes the thread.
    pub(crate) wakeup: WakeupFd,
}

impl OffloadLink {
    pub(crate) fn new(wakeup: WakeupFd) -> Self {
        Self {
            epoch: AtomicU64::new(0),
            store: Mutex::new(None),
            wakeup,
        }
    }

    /// Sets the connection, and what a claim at its store has to show. What the thread did before is seen by a
    /// partition that sees the number.
    pub(crate) fn set(&self, epoch: u64, id: StoreId) {
        let number = store_number(epoch);
        self.name(Some(StoreName { id, number }));
        // After the name, with Release: a partition that loads the number (Acquire, in `get`) marks
        // replies for a store that hellos name already.
        self.epoch.store(epoch, Ordering::Release);
    }

    /// There is no connection any more.
    pub(crate) fn unset(&self) {
        // First, the other way round: partitions stop granting leases at the store before hellos
        // stop naming it.
        self.epoch.store(0, Ordering::Release);
        self.name(None);
    }

    fn name(&self, name: Option<StoreName>) {
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }

    /// Returns what hellos say of the store.
    pub(crate) fn store(&self) -> Option<StoreName> {
        *self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }
}

/// What a partition has for it.
pub(crate) struct OffloadPart {
    tracker: Tracker,
    link: Arc<OffloadLink>,
    hash_key: HashKey,
    timer: ServerClock,
}

impl OffloadPart {
    pub(crate) fn new(
        tracker: Tracker,
        link: Arc<OffloadLink>,
        (hash_key, timer): (HashKey, ServerClock),
    ) -> Self {
        Self {
            tracker,
            link,
            hash_key,
            timer,
        }
    }

    /// Begins a batch. Reads the clock, because a lease must not be granted by an earlier time: the process
    /// may have been stopped since the pass began.
    pub(crate) fn begin(&mut self, batch: &[Request<'_>]) {
        let (now, epoch) = (self.timer.now(), self.link.get());
        self.tracker.begin(now, epoch);
        if epoch != 0 {
            // The tracker is looked up for each request: its cache lines come while the store
            // executes the batch.
            batch.iter().for_each(|it| self.tracker.prefetch(it.hash));
        }
    }

    /// Ends a batch.
    pub(crate) fn end(&mut self) {
        if self.tracker.take_sent() {
            self.link.wakeup.ring();
        }
    }

    /// All items go now, or at a second to come; [`Second`] 0: not as ordered before.
    pub(crate) fn flush(&mut self, now: Second, at: Second) {
        self.begin(&[]);
        let is_pending = at > now;
        self.tracker.flush(if is_pending { at } else { Second(0) });
        self.end();
    }

    pub(crate) fn reset(&mut self) {
        self.tracker.reset();
    }

    pub(crate) fn counters(&self) -> TrackerCounters {
        self.tracker.counters()
    }

    /// Notes a request and its reply; returns the marks of the reply.
    #[inline]
    fn note(&mut self, request: &Request<'_>, reply: &Reply<'_>, second: Second) -> Marks {
        let (hash, key) = (request.hash, request.key);
        let is_plain = matches!(
            request.op,
            Op::Get(Get {
                touch: None,
                vivify: None,
                recache: None,
                ..
            })
        );
        if let (true, Status::Done, Some(item)) = (is_plain, reply.status, &reply.item) {
            let hash_key = self.hash_key;
            // A client claims its hash. A wrong one may find an item too, but no write of others would.
            let may_be_admitted = || hash_key.hash(key) == hash && is_word(key);
            return self
                .tracker
                .read(hash, key, item, (second, may_be_admitted));
        }
        self.note_other(request, reply);
        self.tracker.marks()
    }

    #[inline(never)]
    fn note_other(&mut self, request: &Request<'_>, reply: &Reply<'_>) {
        let (hash, key) = (request.hash, request.key);
        match (&request.op, reply.status) {
            (_, Status::NotFound) => {
                // A client claims its hash: a wrong one must not be taken for a miss of the key whose it is.
                let hash_key = self.hash_key;
                let is_own = || hash_key.hash(key) == hash;
                self.tracker.missed(hash, is_own);
            }
            // Refused, with the old item as it was.
            (_, Status::NotStored | Status::Exists | Status::NonNumeric | Status::BadKey) => {}
            // A read that may have changed what the item is, but for its value.
            (Op::Get(_), _) => self.tracker.changed(hash, key, None),
            (Op::Put(_) | Op::Delete(_) | Op::Arith(_), Status::Done) => {
                self.tracker.changed(hash, key, reply.item.as_ref());
            }
            // The old item may have gone.
            (_, Status::TooLarge | Status::OutOfMemory) => self.tracker.changed(hash, key, None),
        }
    }
}

/// Returns whether a key is one of memcached's text protocol, which clients of the secondary store use.
fn is_word(key: &[u8]) -> bool {
    key.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}

/// Marks the replies of a batch.
pub(crate) struct Marking<'a, S> {
    pub(crate) part: &'a mut OffloadPart,
    pub(crate) batch: &'a [Request<'a>],
    pub(crate) second: Second,
    pub(crate) sink: &'a mut S,
}

impl<S: Sink> Sink for Marking<'_, S> {
    #[inline]
    fn reply(&mut self, index: usize, reply: &Reply<'_>) {
        let marks = match self.batch.get(index) {
            Some(request) => self.part.note(request, reply, self.second),
            None => Marks::default(),
        };
        self.sink.reply(index, &Reply { marks, ..*reply });
    }

    #[inline]
    fn has_room(&mut self, index: usize) -> bool {
        self.sink.has_room(index)
    }

    #[inline]
    fn has_room_for(&mut self, index: usize, value_len: usize) -> bool {
        self.sink.has_room_for(index, value_len)
    }
}

#[cfg(test)]
mod tests {
    use herdwick_hkvs::{Limits, Policy, channel};
    use herdwick_request::Item;

    use super::*;

    const HASH_KEY: HashKey = HashKey([1, 2]);
    const ITEM: Item<'static> = Item::plain(b"v", 1);

    fn part() -> OffloadPart {
        let limits = Limits {
            keys: 4,
            reads: 1,
            window: 100,
        };
        let (end, _) = channel();
        let tracker = Tracker::new((Policy::Combined.build(limits), limits.keys), |_, _| 0, end);
        let waker = mio::Waker::new(mio::Poll::new().unwrap().registry(), mio::Token(0)).unwrap();
        let link = Arc::new(OffloadLink::new(WakeupFd::new(waker)));
        link.set(1, StoreId(7));
        OffloadPart::new(tracker, link, (HASH_KEY, ServerClock::start()))
    }

    #[test]
    fn a_get_whose_hash_is_anothers_removes_no_popular_key() {
        let mut part = part();
        part.begin(&[]);
        let get = |hash_of: &[u8], key| Request {
            hash: HASH_KEY.hash(hash_of),
            key,
            op: Op::Get(Get::default()),
        };
        let (second, miss) = (Second(1), Reply::bare(Status::NotFound));
        let marks = part.note(
            &get(b"hot", b"hot"),
            &Reply::with(Status::Done, ITEM),
            second,
        );
        assert_eq!((marks.leased, marks.store), (true, 1));
        assert_eq!(part.counters().keys, 1);
        part.note(&get(b"hot", b"other"), &miss, second);
        assert_eq!(part.counters().keys, 1);
        part.note(&get(b"hot", b"hot"), &miss, second);
        assert_eq!(part.counters().keys, 0);
    }
}
