//! The server's stores in published memory, as this process has mapped them: looks keys up without the
//! server, and tells what it could not judge.

use std::time::Duration;

use herdwick_herd::hello::{Grant, StoreGrant};
use herdwick_layout::{
    item::HEADER_MAX,
    published::{Look, Pointer, Unsure, View},
};
use herdwick_mem::Span;
use herdwick_request::{KEY_BYTES_MAX, KeyHash, Second};
use rustix::time::{ClockId, clock_gettime};

use crate::Hit;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

herdwick_fabric::counters! {
    /// What became of the reads that a session looked up in the server's memory: values, and the reasons for
    /// which the others were requested from the server.
    pub struct OneSidedCounters {
        /// Values read.
        hits,
        /// The index had no entry for the key: it is not stored, or was being moved.
        absent,
        /// The item was being written, or was dead.
        torn,
        /// The index had another item for the key meanwhile.
        moved,
        /// The item was flushed, or a flush was due.
        flushed,
        /// The item had expired, or this process cannot tell the server's time.
        expired,
        /// The item was marked stale: one reader wins the right to store it anew.
        stale,
        /// The item was larger than this client takes.
        large,
    }
}

impl OneSidedCounters {
    fn count(&mut self, unsure: Unsure) {
        *match unsure {
            Unsure::Absent => &mut self.absent,
            Unsure::Torn => &mut self.torn,
            Unsure::Moved => &mut self.moved,
            Unsure::Flushed => &mut self.flushed,
            Unsure::Expired => &mut self.expired,
            Unsure::Stale => &mut self.stale,
            Unsure::Large => &mut self.large,
        } += 1;
    }
}

/// The stores of all workers. The server writes them all the time.
pub(crate) struct Stores {
    views: Vec<View<Span>>,
    /// Whether this process has the clock that the server's seconds are counted by.
    shares_clock: bool,
    /// Most bytes of an item that is read.
    most: usize,
    copy: Vec<u8>,
    pub(crate) counters: OneSidedCounters,
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (workers, counters) = (self.views.len(), &self.counters);
        write!(f, "Stores({workers}, {counters:?})")
    }
}

impl Stores {
    /// Opens the stores that were granted between the times `since` and `until` of this process's monotonic
    /// clock; `None`: none were, or they are of another layout.
    pub(crate) fn open(
        memories: Vec<Span>,
        grant: &Grant,
        (since, until): (Duration, Duration),
        value_bytes_max: usize,
    ) -> Option<Self> {
        if memories.is_empty() {
            return None;
        }
        let views = memories.into_iter().map(View::open);
        let views = views.collect::<Option<Vec<_>>>()?;
        // In another time namespace this clock shows another time: the server's is then not between.
        let is_within = |store: &StoreGrant| {
            let now = Duration::from_nanos(store.now);
            since <= now && now <= until
        };
        let mut granted = grant.workers.iter();
        let shares_clock = granted.all(|worker| worker.store.as_ref().is_some_and(is_within));
        Some(Self {
            views,
            shares_clock,
            most: value_bytes_max.saturating_add(HEADER_MAX + KEY_BYTES_MAX),
            copy: Vec::new(),
            counters: OneSidedCounters::default(),
        })
    }

    pub(crate) fn workers(&self) -> usize {
        self.views.len()
    }

    fn of(&self, hash: KeyHash) -> &View<Span> {
        &self.views[hash.partition(self.views.len())]
    }

    /// Prefetches the bucket of a key.
    #[inline]
    pub(crate) fn prefetch(&self, hash: KeyHash) {
        self.of(hash).prefetch(hash);
    }

    /// Returns the first entry that may be the key's, and prefetches its item.
    #[inline]
    pub(crate) fn locate(&self, hash: KeyHash) -> Option<Pointer> {
        self.of(hash).locate(hash, 0)
    }

    /// Reads the item of a key, of which [`Self::locate`] has returned `pointer`; `None`: ask the server.
    #[inline]
    pub(crate) fn read(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        pointer: Option<Pointer>,
    ) -> Option<Hit<'_>> {
        let view = &self.views[hash.partition(self.views.len())];
        let now = || now(view).filter(|_| self.shares_clock);
        let (mut found, mut pointer, mut skip) = (Err(Unsure::Absent), pointer, 0);
        while let Some(at) = pointer {
            match view.look(&at, key, self.most, now, &mut self.copy) {
                Look::Hit(hit) => found = Ok(hit),
                Look::Unsure(unsure) => found = Err(unsure),
                Look::Other(_) => {
                    skip += 1;
                    pointer = view.locate(hash, skip);
                    continue;
                }
            }
            break;
        }
        match found {
            Ok(hit) => {
                self.counters.hits += 1;
                Some(Hit {
                    value: &self.copy[hit.front..],
                    flags: hit.header.flags,
                    version: hit.header.version,
                })
            }
            Err(unsure) => {
                self.counters.count(unsure);
                None
            }
        }
    }
}

/// Returns the second of a store, if it is counted by the host's clock.
fn now(view: &View<Span>) -> Option<Second> {
    let zero = view.clock()?;
    let now = u64::try_from(monotonic().as_nanos()).ok()?;
    let seconds = now.checked_sub(zero)? / NANOS_PER_SECOND;
    u32::try_from(seconds).ok().map(Second)
}

/// Returns the host's monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "items in the server's memory expire by this clock"
)]
pub(crate) fn monotonic() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned());
    Duration::new(seconds, u32::try_from(nanos).unwrap_or(0))
}
