//! The server's stores in published memory, as this process has mapped them: looks keys up without the
//! server, and tells what it could not judge.

use std::time::Duration;

use herdwick_herd::{
    ClientSide, Outcome,
    hello::{Grant, OneSidedOffer, StoreGrant},
};
use herdwick_layout::{
    chunk::Mistrust,
    chunk_view::ChunkView,
    item::HEADER_MAX,
    published::{Look, Pointer, Unsure, View},
};
use herdwick_mem::Span;
use herdwick_request::{KEY_BYTES_MAX, KeyHash, Second};
use rustix::time::{ClockId, clock_gettime};

use super::stags::Stags;
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
    /// Counts a chunk that is no item of the key.
    fn count_mistrust(&mut self, mistrust: Mistrust) {
        *match mistrust {
            Mistrust::Torn => &mut self.torn,
            Mistrust::OtherKey => &mut self.moved,
            Mistrust::Longer(_) => &mut self.large,
            Mistrust::Expired => &mut self.expired,
            Mistrust::Stale => &mut self.stale,
        } += 1;
    }

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

/// The memory of the stores of all workers, by how items are found in it.
enum Memory {
    /// By an index of buckets.
    Buckets(Vec<View<Span>>),
    /// By the stags that this process knows.
    Stags(Vec<ChunkView<Span>>, Box<Stags>),
}

/// Where the item of a key may lie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Where an entry of the index points.
    Entry(Pointer),
    /// In the chunk that a stag shows.
    Stag(u32),
}

/// The stores of all workers. The server writes them all the time.
pub(crate) struct Stores {
    memory: Memory,
    /// Whether this process has the clock that the server's seconds are counted by.
    shares_clock: bool,
    /// Most bytes of an item that is read.
    most: usize,
    copy: Vec<u8>,
    pub(crate) counters: OneSidedCounters,
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (workers, counters) = (self.workers(), &self.counters);
        write!(f, "Stores({workers}, {counters:?})")
    }
}

impl Stores {
    /// Opens the stores that were granted between the times `since` and `until` of this process's monotonic
    /// clock; `None`: none were, or they are of another layout.
    pub(crate) fn open(
        (offer, memories): (OneSidedOffer, Vec<Span>),
        grant: &Grant,
        (since, until): (Duration, Duration),
        value_bytes_max: usize,
    ) -> Option<Self> {
        if memories.is_empty() {
            return None;
        }
        let memories = memories.into_iter();
        let memory = match offer {
            OneSidedOffer::Reads => {
                Memory::Buckets(memories.map(View::open).collect::<Option<_>>()?)
            }
            OneSidedOffer::Stags => {
                let views = memories.map(ChunkView::open).collect::<Option<_>>()?;
                Memory::Stags(views, Box::default())
            }
        };
        // In another time namespace this clock shows another time: the server's is then not between.
        let is_within = |store: &StoreGrant| {
            let now = Duration::from_nanos(store.now);
            since <= now && now <= until
        };
        let mut granted = grant.workers.iter();
        let shares_clock = granted.all(|worker| worker.store.as_ref().is_some_and(is_within));
        Some(Self {
            memory,
            shares_clock,
            // Saturates: a caller may take values of any length.
            most: value_bytes_max.saturating_add(HEADER_MAX + KEY_BYTES_MAX),
            copy: Vec::new(),
            counters: OneSidedCounters::default(),
        })
    }

    pub(crate) fn workers(&self) -> usize {
        match &self.memory {
            Memory::Buckets(views) => views.len(),
            Memory::Stags(views, _) => views.len(),
        }
    }

    /// Prefetches what leads to the item of a key.
    #[inline]
    pub(crate) fn prefetch(&self, hash: KeyHash) {
        match &self.memory {
            Memory::Buckets(views) => of(views, hash).prefetch(hash),
            Memory::Stags(views, stags) => {
                if let Some(stag) = stags.get(hash) {
                    of(views, hash).prefetch_place(stag);
                }
            }
        }
    }

    /// Returns the first place that may be the key's, and prefetches its item.
    #[inline]
    pub(crate) fn locate(&self, hash: KeyHash) -> Option<Place> {
        match &self.memory {
            Memory::Buckets(views) => of(views, hash).locate(hash, 0).map(Place::Entry),
            Memory::Stags(views, stags) => {
                let stag = stags.get(hash)?;
                of(views, hash).prefetch(stag);
                Some(Place::Stag(stag))
            }
        }
    }

    /// Reads the item of a key, of which [`Self::locate`] has returned `place`; `None`: ask the server.
    #[inline]
    pub(crate) fn read(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        place: Option<Place>,
    ) -> Option<Hit<'_>> {
        match (&self.memory, place) {
            (Memory::Buckets(_), Some(Place::Entry(entry))) => self.read_entry(hash, key, entry),
            (Memory::Stags(..), Some(Place::Stag(stag))) => self.read_stag(hash, key, stag),
            _ => {
                self.counters.count(Unsure::Absent);
                None
            }
        }
    }

    #[inline]
    fn read_entry(&mut self, hash: KeyHash, key: &[u8], entry: Pointer) -> Option<Hit<'_>> {
        let Memory::Buckets(views) = &self.memory else {
            return None;
        };
        let view = of(views, hash);
        let now = || now(view.clock()).filter(|_| self.shares_clock);
        let (mut found, mut entry, mut skip) = (Err(Unsure::Absent), Some(entry), 0);
        // Each entry that may be the key's is looked at once: another key may have the same tag.
        while let Some(at) = entry {
            match view.look(&at, key, self.most, now, &mut self.copy) {
                Look::Hit(hit) => found = Ok(hit),
                Look::Unsure(unsure) => found = Err(unsure),
                Look::Other(_) => {
                    skip += 1;
                    entry = view.locate(hash, skip);
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

    #[inline]
    fn read_stag(&mut self, hash: KeyHash, key: &[u8], stag: u32) -> Option<Hit<'_>> {
        let Memory::Stags(views, stags) = &mut self.memory else {
            return None;
        };
        let view = of(views, hash);
        let now = || now(view.clock()).filter(|_| self.shares_clock);
        match view.read(stag, key, self.most, now, &mut self.copy) {
            Ok(header) => {
                self.counters.hits += 1;
                stags.note_hit();
                Some(Hit {
                    value: &self.copy[header.front()..header.end()],
                    flags: header.flags,
                    version: header.version,
                })
            }
            Err(mistrust) => {
                // An item that is too large, stale, or may have expired is the key's nevertheless.
                if matches!(mistrust, Mistrust::Torn | Mistrust::OtherKey) {
                    stags.purge(hash);
                }
                self.counters.count_mistrust(mistrust);
                None
            }
        }
    }
}

/// Where to read is learnt from the workers.
impl Stores {
    /// Notes a key that was read by a request.
    #[inline]
    pub(crate) fn want(&mut self, hash: KeyHash, key: &[u8]) {
        if let Memory::Stags(_, stags) = &mut self.memory {
            stags.want(hash, key);
        }
    }

    /// Whether [`Self::want`] is of use.
    #[inline]
    pub(crate) fn learns(&self) -> bool {
        matches!(self.memory, Memory::Stags(..))
    }

    /// Submits the questions to the workers for which there is room.
    #[inline]
    pub(crate) fn ask(&mut self, side: &mut ClientSide) {
        if let Memory::Stags(_, stags) = &mut self.memory {
            stags.ask(side);
        }
    }

    /// Takes the answer to a question. Returns whether `token` is of one.
    #[inline]
    pub(crate) fn answer(&mut self, token: u64, outcome: &Outcome<'_>) -> bool {
        match &mut self.memory {
            Memory::Buckets(_) => false,
            Memory::Stags(_, stags) => stags.answer(token, outcome),
        }
    }
}

/// Returns the store of a key's worker.
#[inline]
fn of<V>(stores: &[V], hash: KeyHash) -> &V {
    &stores[hash.partition(stores.len())]
}

/// Returns the second of a store whose second 0 was at `zero` of the host's clock, if it is counted by that.
fn now(zero: Option<u64>) -> Option<Second> {
    let zero = zero?;
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
    // Below 10^9, by clock_gettime(2).
    Duration::new(seconds, u32::try_from(nanos).unwrap_or(0))
}
