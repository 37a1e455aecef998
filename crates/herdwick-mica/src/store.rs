//! The store: batches with their two-stage prefetch, lookup, flushes and time.

use herdwick_layout::{
    bucket::Offset,
    item::{HEADER_MAX, Header, bit},
};
use herdwick_mem::Arena;
use herdwick_request::{
    Clock, Execute, HashKey, Item, KEY_BYTES_MAX, Op, ReadReport, Reply, Request, Second, Sink,
    Status,
};

use crate::{
    Counters, StoreConfig, StoreError,
    evicted::EvictionRecord,
    index::{Index, Place},
    items::Items,
    reservations::Staging,
    segments::{Copies, Segments, Walk},
    shape::Shape,
    superblock::Superblock,
    walks::Walks,
};

/// Number of requests in a chunk, for which buckets and items are prefetched together.
const CHUNK: usize = 32;
const _: () = assert!(CHUNK <= u32::BITS as usize, "a bit each");

/// One partition: a lossy index over items in segments, with one owner.
pub struct Store {
    pub(crate) index: Index,
    pub(crate) items: Items,
    /// The state that outlives the process, besides the items and the table of segments.
    pub(crate) superblock: Superblock,
    /// Where items lie.
    pub(crate) segments: Segments,
    /// The segment that is being cleaned.
    pub(crate) cleaner: Option<Walk>,
    /// Segments that were cleaned in vain since enough were free.
    pub(crate) futile: u32,
    /// Bytes of memory that the index may have, and ceded segments that are among them.
    pub(crate) index_room: usize,
    pub(crate) ceded: usize,
    /// Mutations until blocks of the index may be merged again.
    pub(crate) until_merge: u32,
    /// The walks over the index.
    pub(crate) walks: Walks,
    /// What cleaning may copy.
    pub(crate) copies: Copies,
    /// An item that the current request reads after it has made room: it is copied, not evicted.
    pub(crate) protected: Option<Offset>,
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
    pub(crate) sequence: u64,
    /// The upper bound of versions that the superblock holds.
    pub(crate) promised: u64,
    /// The second of the pending flush.
    pub(crate) flush_at: Option<Second>,
    pub(crate) now: Second,
    /// The last random number.
    pub(crate) drawn: u32,
    /// The probable places of the items of the current chunk.
    guesses: [Hit; CHUNK],
}

impl Execute for Store {
    #[inline]
    fn execute(&mut self, clock: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        self.execute_hashed(clock, batch, Hashes::Claimed, sink);
    }

    fn note_reads(&mut self, clock: Clock, report: &ReadReport<'_>) {
        self.tick(clock.second);
        self.note_uses(report);
    }
}

/// Whose word the hashes of a batch are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hashes {
    /// A client's: those of mutations are verified.
    Claimed,
    /// The caller's, who has computed them from the keys under the store's hash key.
    Computed,
}

impl Store {
    /// As [`Execute::execute`], which takes hashes for [`Hashes::Claimed`].
    pub fn execute_hashed(
        &mut self,
        clock: Clock,
        batch: &[Request<'_>],
        hashes: Hashes,
        sink: &mut impl Sink,
    ) {
        self.tick(clock.second);
        for (n, chunk) in batch.chunks(CHUNK).enumerate() {
            let forged = self.survey(chunk, hashes);
            self.execute_chunk(&clock, (n, chunk), forged, sink);
        }
    }

    /// Executes chunk `n` of a batch. `forged` is a bit set of its requests with a wrong hash.
    #[inline]
    fn execute_chunk(
        &mut self,
        clock: &Clock,
        (n, chunk): (usize, &[Request<'_>]),
        forged: u32,
        sink: &mut impl Sink,
    ) {
        for (i, request) in chunk.iter().enumerate() {
            let index = n * CHUNK + i;
            if !sink.has_room(index) {
                // The sink keeps account of it: nothing is executed, and no reply is made.
                continue;
            }
            let guess = self.guesses[i];
            let reply = match &request.op {
                Op::Get(get) if reads(&request.op) => {
                    let has_room_for = |len| sink.has_room_for(index, len);
                    match self.get(clock, request, get, guess, has_room_for) {
                        Some(reply) => reply,
                        None => continue,
                    }
                }
                _ if forged & 1 << i != 0 => self.refuse_key(request),
                _ => self.mutate(clock, request, guess),
            };
            sink.reply(index, &reply);
        }
    }
}

/// Returns whether an operation stores nothing, so that a wrong hash is harmless.
#[inline]
fn reads(op: &Op<'_>) -> bool {
    matches!(op, Op::Get(get) if get.vivify.is_none())
}

/// The place of a readable item.
#[derive(Clone, Copy)]
pub(crate) struct Hit {
    pub(crate) place: Place,
    pub(crate) at: Offset,
}

impl Default for Hit {
    /// Returns a guess that matches no key: it lies beyond all memory, but `at` plus an item's length
    /// does not overflow.
    fn default() -> Self {
        Self {
            place: Place::default(),
            at: Offset(usize::MAX / 2),
        }
    }
}

/// The reason for a miss.
#[derive(Clone, Copy, Default)]
pub(crate) struct Absent {
    pub(crate) expired: bool,
    pub(crate) flushed: bool,
}

impl Store {
    /// Creates a store in `config.memory_bytes` of anonymous memory, which the kernel allocates
    /// page by page on first use.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn new(config: &StoreConfig) -> Result<Self, StoreError> {
        let shape = Shape::of(config)?.growing();
        let bytes = Arena::zeroed(shape.item_bytes()).map_err(shape.refused())?;
        let superblock = Superblock::new().map_err(shape.refused())?;
        let index = Index::growing(shape.buckets, shape.doublings).map_err(shape.refused())?;
        let items = Items::new(bytes, false);
        Ok(Self::over(config, &shape, index, items, superblock))
    }

    /// Creates a store without items over the memory of `index` and `items`.
    pub(crate) fn over(
        config: &StoreConfig,
        shape: &Shape,
        index: Index,
        items: Items,
        superblock: Superblock,
    ) -> Self {
        Self {
            index,
            items,
            superblock,
            segments: Segments::new(shape.segments, shape.segment_bytes),
            cleaner: None,
            futile: 0,
            index_room: shape.index_room(),
            ceded: 0,
            until_merge: 0,
            walks: Walks::default(),
            copies: Copies::default(),
            protected: None,
            counters: Counters::default(),
            staging: Staging::default(),
            evicted: None,
            hash_key: config.hash_key,
            item_bytes_max: config.item_bytes_max,
            lossless: false,
            sequence: 0,
            promised: 0,
            flush_at: None,
            // Not 0, which stands for "never".
            now: Second(1),
            drawn: 1,
            guesses: [Hit::default(); CHUNK],
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Resets the event counters; items and bytes stay.
    pub fn reset_counters(&mut self) {
        self.counters.reset();
    }

    /// Returns the number of slots of the index, free ones included.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.index.slots()
    }

    /// Returns the seconds since the last access to the oldest item of the oldest segment; 0 if the
    /// store is empty.
    #[must_use]
    pub fn age(&self, now: Second) -> u32 {
        self.segments.oldest().map_or(0, |at| {
            let used = self.items.header(at).last_access(now);
            now.0.saturating_sub(used.0)
        })
    }

    /// Flushes at second `at` every item stored before it; at once if `at` is not after `now`.
    /// Replaces a pending flush; second 0 cancels it.
    pub fn flush(&mut self, now: Second, at: Second) {
        self.flush_at = (at.0 > 0).then_some(at);
        // Before the flush is carried out: a kill in between leaves it pending.
        self.note_flushes();
        self.tick(now);
    }

    /// Sets the time, once a batch, and executes a pending flush that is due.
    pub(crate) fn tick(&mut self, now: Second) {
        if self.now != now {
            self.note_second(now);
        }
        self.now = now;
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush_at = None;
            self.segments.flush();
            self.note_flushes();
        }
    }

    /// Performs the two-stage prefetch: the buckets of all requests, then the items that their tags
    /// point to. While the buckets are loaded, verifies claimed hashes of mutations; returns a bit
    /// set of the requests with a wrong one.
    fn survey(&mut self, requests: &[Request<'_>], hashes: Hashes) -> u32 {
        // Three loops: each works on cache lines that the one before has asked for.
        let mut firsts = [0; CHUNK];
        for (request, first) in requests.iter().zip(&mut firsts) {
            *first = self.index.prefetch_first(request.hash);
        }
        let mut forged = 0u32;
        for (i, request) in requests.iter().enumerate() {
            forged |= u32::from(!reads(&request.op) && !self.genuine(request, hashes)) << i;
        }
        let mut elsewhere = 0u32;
        for (i, request) in requests.iter().enumerate() {
            // By the tag alone: the key is compared when the item has come.
            let guess = self.index.guess_first(request.hash, firsts[i]);
            if guess.is_none() {
                let overflowed = self.index.prefetch_other(request.hash, firsts[i]);
                elsewhere |= u32::from(overflowed) << i;
            }
            self.expect(i, guess);
        }
        // Last, so that their buckets have had the longest time to come.
        while elsewhere != 0 {
            let i = elsewhere.trailing_zeros() as usize;
            self.expect(i, self.index.guess_other(requests[i].hash, firsts[i]));
            elsewhere &= elsewhere - 1;
        }
        forged
    }

    /// Records the probable place of the item of request `i` of the chunk, and prefetches the item.
    #[inline]
    fn expect(&mut self, i: usize, guess: Option<(Place, Offset)>) {
        self.guesses[i] = match guess {
            Some((place, at)) => {
                self.items.prefetch(at);
                Hit { place, at }
            }
            None => Hit::default(),
        };
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

    pub(crate) fn mutate(&mut self, clock: &Clock, request: &Request<'_>, guess: Hit) -> Reply<'_> {
        // Nothing that it may move is looked at yet.
        if self.index.is_crowded() {
            self.grow_index();
        } else if self.index.is_sparse() {
            self.shrink_index();
        }
        if self.lossless
            && let Some(refusal) = self.prepare(request)
        {
            return refusal;
        }
        match &request.op {
            Op::Get(get) => {
                // A get that stores is never deferred for want of room.
                let reply = self.get(clock, request, get, guess, |_| true);
                reply.unwrap_or_else(|| Reply::bare(Status::NotFound))
            }
            Op::Put(put) => self.put(clock, request, put, guess),
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

    pub(crate) fn too_large(&self, key: &[u8], value_len: usize) -> bool {
        // With the longest header, whatever form the item gets: what is too large depends on
        // lengths alone.
        HEADER_MAX + key.len() + value_len > self.item_bytes_max
    }

    #[inline]
    pub(crate) fn next_version(&mut self) -> u64 {
        // The superblock holds an upper bound, raised once in many versions: so a restart assigns
        // none twice, and no store of a word is paid for each.
        if self.sequence == self.promised {
            self.promise_versions();
        }
        self.sequence += 1;
        self.sequence
    }

    /// Finds the item of a key. Removes it if it has expired or was flushed. The guess for the
    /// request saves the search if the index still has that entry.
    #[inline(always)]
    pub(crate) fn lookup(&mut self, request: &Request<'_>, guess: Hit) -> Result<Hit, Absent> {
        let items = &self.items;
        // Both are needed. A dead item keeps its key, and a tag is a guess; the chunk may have
        // moved either since.
        if items.is(guess.at, request.key) && self.index.points(guess.place, guess.at) {
            return self.unless_gone(guess);
        }
        self.seek(request)
    }

    /// [`Self::lookup`] without a guess.
    #[inline(never)]
    pub(crate) fn seek(&mut self, request: &Request<'_>) -> Result<Hit, Absent> {
        let items = &self.items;
        let found = self
            .index
            .find(request.hash, |at| items.is(at, request.key));
        match found {
            Some((place, at)) => self.unless_gone(Hit { place, at }),
            None => Err(Absent::default()),
        }
    }

    #[inline(always)]
    fn unless_gone(&mut self, hit: Hit) -> Result<Hit, Absent> {
        if self.gone(hit.at) {
            Err(self.drop_gone(hit))
        } else {
            Ok(hit)
        }
    }

    #[cold]
    fn drop_gone(&mut self, hit: Hit) -> Absent {
        let flushed = self.segments.is_flushed(hit.at);
        self.unlink(hit);
        Absent {
            expired: !flushed,
            flushed,
        }
    }

    /// Returns whether the item has expired or was flushed.
    #[inline]
    pub(crate) fn gone(&self, at: Offset) -> bool {
        self.is_gone(at, &self.items.header(at))
    }

    /// As [`Self::gone`], of an item with this header.
    #[inline]
    pub(crate) fn is_gone(&self, at: Offset, header: &Header) -> bool {
        header.deadline.passed(self.now) || self.segments.is_flushed(at)
    }

    #[inline(always)]
    pub(crate) fn item(&self, at: Offset) -> Item<'_> {
        self.item_of(at, &self.items.header(at))
    }

    /// Returns the item at `at`, the header of which is known.
    #[inline(always)]
    pub(crate) fn item_of(&self, at: Offset, header: &Header) -> Item<'_> {
        Item {
            value: self.items.value_of(at, header),
            flags: header.flags,
            version: header.version,
            deadline: header.deadline,
            fetched: header.has(bit::FETCHED),
            last_access: header.last_access(self.now),
            won: false,
            stale: header.has(bit::STALE),
            win_sent: header.has(bit::WIN_SENT),
        }
    }
}
