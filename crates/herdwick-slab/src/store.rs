//! The store: batches, lookup, flushes and time.

use herdwick_layout::chunk::{ChunkHeader, HEADER, StoreHead};
use herdwick_mem::Arena;
use herdwick_request::{
    Clock, Execute, Get, HashKey, Item, KEY_BYTES_MAX, KeyHash, Op, ReadReport, Reply, Request,
    Second, Sink, Status,
};

use crate::{
    Counters, SlabConfig, SlabError,
    emptying::Emptying,
    evicted::EvictionRecord,
    index::{Index, tag},
    metas::{Chunk, List, Metas, bit},
    reservations::Staging,
    shape::Shape,
    slabs::Slabs,
    stags::Stags,
};

/// Number of requests for which the index and the items are prefetched together.
const RUN: usize = 32;
const _: () = assert!(RUN <= u32::BITS as usize, "a bit each");

/// The chunks of one size.
#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) per_slab: usize,
    /// Bytes that a slab of it takes, with what is kept of its chunks.
    pub(crate) taken: usize,
    pub(crate) free: List,
    /// Chunks with items; new ones and those that are kept come to the head.
    pub(crate) items: List,
    pub(crate) slabs: usize,
    /// Evictions since it was last asked whether another class should give it a slab.
    pub(crate) evicted: usize,
}

/// One partition: items in chunks of slabs, with one owner.
pub struct Store {
    pub(crate) index: Index,
    pub(crate) metas: Metas,
    pub(crate) slabs: Slabs,
    pub(crate) classes: Vec<Class>,
    /// The slab that is being emptied.
    pub(crate) emptying: Option<Emptying>,
    /// The second, and the flushes so far, when no class had a slab to spare of which nothing is lost. Items
    /// are gone with another second or flush only.
    pub(crate) none_to_spare: Option<(Second, u32)>,
    /// Bytes that cut slabs take, and may take.
    pub(crate) taken: usize,
    pub(crate) budget: usize,
    /// Bytes of the budget that a limit leaves unused.
    pub(crate) unused: usize,
    /// The item that the current request replaces or reads: it makes no room for another.
    pub(crate) protected: Option<Chunk>,
    /// The stags of chunks, if the memory is published.
    pub(crate) stags: Option<Stags>,
    pub(crate) counters: Counters,
    /// Values that are arriving.
    pub(crate) staging: Staging,
    /// Recent evictions, if they are recorded.
    pub(crate) evicted: Option<EvictionRecord>,
    pub(crate) hash_key: HashKey,
    pub(crate) item_bytes_max: usize,
    /// Whether a put without room is refused, instead of evicting.
    pub(crate) lossless: bool,
    /// The last version assigned.
    sequence: u64,
    /// Flushes so far: an item of an earlier count is flushed.
    pub(crate) flushes: u32,
    /// The second of the pending flush.
    flush_at: Option<Second>,
    pub(crate) now: Second,
}

/// Whose word the hashes of a batch are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hashes {
    /// A client's: those of mutations are verified.
    Claimed,
    /// The caller's, who has computed them from the keys under the store's hash key.
    Computed,
}

/// The reason for a miss.
#[derive(Clone, Copy, Default)]
pub(crate) struct Absent {
    pub(crate) expired: bool,
    pub(crate) flushed: bool,
}

impl Execute for Store {
    #[inline]
    fn execute(&mut self, clock: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        self.execute_hashed(clock, batch, Hashes::Claimed, sink);
    }

    fn note_reads(&mut self, clock: Clock, report: &ReadReport<'_>) {
        self.tick(clock.second);
        report.hashes().for_each(|hash| self.note_read(hash));
    }

    fn stag(&mut self, clock: Clock, hash: KeyHash, key: &[u8]) -> Option<u32> {
        self.tick(clock.second);
        let op = Op::Get(Get::default());
        let tagged = self.tagged(&Request { hash, key, op });
        tagged.map(|tagged| tagged.stag)
    }
}

impl Store {
    /// Creates a store in `config.memory_bytes` of anonymous memory, which the kernel allocates
    /// page by page on first use.
    ///
    /// # Errors
    /// [`SlabError`].
    pub fn new(config: &SlabConfig) -> Result<Self, SlabError> {
        let shape = Shape::of(config)?;
        let bytes = Arena::zeroed(shape.slabs * shape.slab_bytes).map_err(shape.refused())?;
        Self::over(config, &shape, bytes)
    }

    /// Creates a store without items over the memory of its slabs.
    pub(crate) fn over(
        config: &SlabConfig,
        shape: &Shape,
        bytes: Arena<u8>,
    ) -> Result<Self, SlabError> {
        let metas = Arena::zeroed(shape.slabs << shape.shift()).map_err(shape.refused())?;
        // A slab of few chunks takes one page of it, not a huge one.
        metas.allow_huge_pages(false);
        let classes = shape.sizes.iter().map(|size| Class {
            per_slab: shape.slab_bytes / size,
            taken: shape.taken(shape.slab_bytes / size),
            free: List::default(),
            items: List::default(),
            slabs: 0,
            evicted: 0,
        });
        Ok(Self {
            index: Index::new(shape.lists).map_err(shape.refused())?,
            metas: Metas(metas),
            slabs: Slabs::new(shape, bytes),
            classes: classes.collect(),
            emptying: None,
            none_to_spare: None,
            taken: 0,
            budget: shape.budget,
            unused: 0,
            protected: None,
            stags: None,
            counters: Counters::default(),
            staging: Staging::default(),
            evicted: None,
            hash_key: config.hash_key,
            item_bytes_max: config.item_bytes_max,
            lossless: false,
            sequence: 0,
            flushes: 0,
            flush_at: None,
            // Not 0, which stands for "never".
            now: Second(1),
        })
    }

    /// Refuses puts for which there is no room, from now on, instead of evicting.
    pub fn evict_nothing(&mut self) {
        self.lossless = true;
    }

    /// Returns the bytes of memory that a store of this configuration needs, if it has less.
    ///
    /// # Errors
    /// [`SlabError::TooSmall`].
    pub fn check(config: &SlabConfig) -> Result<(), SlabError> {
        Shape::of(config).map(drop)
    }

    /// As [`Self::check`], of a store whose memory others READ.
    ///
    /// # Errors
    /// [`SlabError::TooSmall`].
    pub fn check_published(config: &SlabConfig) -> Result<(), SlabError> {
        Shape::of_published(config).map(drop)
    }

    /// As [`Execute::execute`], which takes hashes for [`Hashes::Claimed`].
    pub fn execute_hashed(
        &mut self,
        clock: Clock,
        batch: &[Request<'_>],
        hashes: Hashes,
        sink: &mut impl Sink,
    ) {
        self.tick(clock.second);
        for (n, run) in batch.chunks(RUN).enumerate() {
            let forged = self.survey(run, hashes);
            for (i, request) in run.iter().enumerate() {
                self.execute_one(&clock, (n * RUN + i, request), forged & 1 << i != 0, sink);
            }
        }
    }

    #[inline]
    fn execute_one(
        &mut self,
        clock: &Clock,
        (index, request): (usize, &Request<'_>),
        is_forged: bool,
        sink: &mut impl Sink,
    ) {
        if !sink.has_room(index) {
            return;
        }
        let reply = match &request.op {
            Op::Get(get) if reads(&request.op) => {
                let has_room_for = |len| sink.has_room_for(index, len);
                match self.get(clock, request, get, has_room_for) {
                    Some(reply) => reply,
                    None => return,
                }
            }
            _ if is_forged => self.refuse_key(request),
            _ => self.mutate(clock, request),
        };
        sink.reply(index, &reply);
    }

    /// Prefetches the lists of a run's keys, then the first item of each; verifies claimed hashes of
    /// mutations meanwhile. Returns a bit set of the requests with a wrong one.
    fn survey(&self, run: &[Request<'_>], hashes: Hashes) -> u32 {
        // Two loops: each works on cache lines that the one before has asked for.
        for request in run {
            self.index.prefetch(request.hash);
        }
        let mut forged = 0u32;
        for (i, request) in run.iter().enumerate() {
            forged |= u32::from(!reads(&request.op) && !self.genuine(request, hashes)) << i;
            // Most lists have one item, if any: the others of a list are not prefetched.
            if let Some(first) = self.index.first(self.index.list(request.hash)).some() {
                herdwick_mem::prefetch_read(&self.metas.0, first.0 as usize);
                self.slabs.prefetch(first);
            }
        }
        forged
    }

    /// Returns whether the key's length and hash are right. A mutation under a wrong hash would
    /// store a key twice.
    #[inline]
    fn genuine(&self, request: &Request<'_>, hashes: Hashes) -> bool {
        let is_right = || self.hash_key.hash(request.key) == request.hash;
        debug_assert!(hashes == Hashes::Claimed || is_right());
        (1..=KEY_BYTES_MAX).contains(&request.key.len())
            && (hashes == Hashes::Computed || is_right())
    }

    pub(crate) fn mutate(&mut self, clock: &Clock, request: &Request<'_>) -> Reply<'_> {
        match &request.op {
            Op::Get(get) => {
                // A get that stores is never deferred for want of room.
                let reply = self.get(clock, request, get, |_| true);
                reply.unwrap_or_else(|| Reply::bare(Status::NotFound))
            }
            Op::Put(put) => self.put(clock, request, put),
            Op::Delete(delete) => self.delete(clock, request, delete),
            Op::Arith(arith) => self.arith(clock, request, arith),
        }
    }

    #[cold]
    fn refuse_key(&mut self, request: &Request<'_>) -> Reply<'static> {
        self.counters.bad_keys += 1;
        if let Op::Put(put) = &request.op
            && let Some(staged) = put.staged
        {
            self.abort(staged);
        }
        Reply::bare(Status::BadKey)
    }
}

/// Returns whether an operation stores nothing, so that a wrong hash is harmless.
#[inline]
fn reads(op: &Op<'_>) -> bool {
    matches!(op, Op::Get(get) if get.vivify.is_none())
}

/// Lookup and time.
impl Store {
    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Resets the event counters; items and bytes stay.
    pub fn reset_counters(&mut self) {
        self.counters.reset();
    }

    /// Returns the seconds since the last access to the item that is next to be looked at for eviction,
    /// of the class where they are most; 0 if the store is empty.
    #[must_use]
    pub fn age(&self, now: Second) -> u32 {
        let tails = self.classes.iter().map(|class| self.tail_age(class, now));
        tails.max().unwrap_or(0)
    }

    pub(crate) fn tail_age(&self, class: &Class, now: Second) -> u32 {
        let tail = class.items.tail.some();
        tail.map_or(0, |tail| {
            now.0.saturating_sub(self.metas.get(tail).accessed)
        })
    }

    /// Flushes at second `at` every item stored before it; at once if `at` is not after `now`.
    /// Replaces a pending flush that is not due yet; second 0 cancels it.
    pub fn flush(&mut self, now: Second, at: Second) {
        // A flush that is due by now comes before the new one takes its place.
        self.tick(now);
        self.flush_at = (at.0 > 0).then_some(at);
        self.show_flushes();
        self.tick(now);
    }

    /// Sets the time, once a batch, and executes a pending flush that is due.
    pub(crate) fn tick(&mut self, now: Second) {
        self.now = now;
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush_at = None;
            self.flushes = self.flushes.wrapping_add(1);
            if self.flushes == 0 {
                self.remove_all();
            }
            self.show_flushes();
        }
    }

    /// Shows readers the flushes so far, and the one that is due next.
    fn show_flushes(&self) {
        if let Some(stags) = &self.stags {
            let flush_at = self.flush_at.map_or(0, |at| at.0);
            stags.show(StoreHead {
                flushes: self.flushes,
                flush_at,
            });
        }
    }

    /// Removes every item: after 2^32 flushes an item of the first would count as a new one.
    #[cold]
    fn remove_all(&mut self) {
        for class in 0..self.classes.len() {
            while let Some(chunk) = self.classes[class].items.tail.some() {
                self.remove(chunk);
            }
        }
    }

    pub(crate) fn too_large(&self, key: &[u8], value_len: usize) -> bool {
        HEADER + key.len() + value_len > self.item_bytes_max
    }

    #[inline]
    pub(crate) fn next_version(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    #[inline]
    pub(crate) fn header(&self, chunk: Chunk) -> ChunkHeader {
        ChunkHeader::read(self.slabs.bytes(chunk))
    }

    #[inline]
    pub(crate) fn key(&self, chunk: Chunk) -> &[u8] {
        let bytes = self.slabs.bytes(chunk);
        &bytes[HEADER..ChunkHeader::read(bytes).front()]
    }

    /// Returns the chunk with the item of a key, expired or not.
    #[inline]
    fn seek(&self, request: &Request<'_>) -> Option<Chunk> {
        let tag = tag(request.hash);
        let list = self.index.list(request.hash);
        let mut items = self.index.items(&self.metas, list);
        items.find(|chunk| {
            // The tag lies in the cache line that the walk loads anyway: most other keys differ in
            // it, and their chunks are not loaded.
            self.metas.get(*chunk).tag == tag && herdwick_mem::same(self.key(*chunk), request.key)
        })
    }

    /// Finds the item of a key. Removes it if it has expired or was flushed.
    #[inline]
    pub(crate) fn lookup(&mut self, request: &Request<'_>) -> Result<Chunk, Absent> {
        match self.seek(request) {
            None => Err(Absent::default()),
            Some(chunk) if self.gone(chunk) => {
                let flushed = self.is_flushed(chunk);
                self.unlink(request, chunk);
                Err(Absent {
                    expired: !flushed,
                    flushed,
                })
            }
            Some(chunk) => Ok(chunk),
        }
    }

    fn is_flushed(&self, chunk: Chunk) -> bool {
        self.metas.get(chunk).flushes != self.flushes
    }

    /// Returns whether the item has expired or was flushed.
    #[inline]
    pub(crate) fn gone(&self, chunk: Chunk) -> bool {
        self.header(chunk).deadline.passed(self.now) || self.is_flushed(chunk)
    }

    #[inline]
    pub(crate) fn item(&self, chunk: Chunk) -> Item<'_> {
        let bytes = self.slabs.bytes(chunk);
        let (header, meta) = (ChunkHeader::read(bytes), self.metas.get(chunk));
        Item {
            value: &bytes[header.front()..header.end()],
            flags: header.flags,
            version: header.version,
            deadline: header.deadline,
            fetched: meta.bits & bit::FETCHED != 0,
            last_access: Second(meta.accessed),
            won: false,
            stale: meta.bits & bit::STALE != 0,
            win_sent: meta.bits & bit::WIN_SENT != 0,
        }
    }
}
