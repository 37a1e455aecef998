use std::io;

use crate::{
    Clock, Counters, Evicted, Execute, HashKey, Item, KEY_BYTES_MAX, Op, Reply, Request, Second,
    Sink, Status,
    evict::Lookahead,
    index::{Index, Place},
    item::{HEADER, bit},
    log::{Log, Offset},
    shape::Shape,
    staged::Staging,
};

/// Requests whose memory is fetched ahead together.
const CHUNK: usize = 32;
const _: () = assert!(CHUNK <= u32::BITS as usize, "a bit each");
/// How to make a [`Store`].
#[derive(Clone, Copy, Debug)]
pub struct StoreConfig {
    /// Everything that this store will ever hold: index, log, headers.
    pub memory_bytes: usize,
    /// Largest item, 32 bytes of header and the key included (memcached's `-I`).
    pub item_bytes_max: usize,
    /// Key of the hash that requests carry.
    pub hash_key: HashKey,
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The memory cannot hold a few of the largest items.
    #[error(
        "{memory_bytes} bytes of memory are too few for items of up to {item_bytes_max} bytes: \
         give each partition at least {needed}, or allow smaller items only"
    )]
    TooSmall {
        /// What was given.
        memory_bytes: usize,
        /// The largest item.
        item_bytes_max: usize,
        /// What would do.
        needed: usize,
    },
    /// The kernel refused the memory.
    #[error("the kernel refused {memory_bytes} bytes of memory: {source}")]
    Refused {
        /// What was asked for.
        memory_bytes: usize,
        /// Its answer.
        source: io::Error,
    },
}

/// One partition: a lossy index over a circular log, with one owner.
pub struct Store {
    pub(crate) index: Index,
    pub(crate) log: Log,
    pub(crate) lookahead: Lookahead,
    /// Bytes that may be copied at the old end because they were used; less than none after a
    /// large item.
    pub(crate) second_chances: isize,
    /// Bytes that the old end is still to run ahead; less than none after a large item.
    pub(crate) ahead: isize,
    pub(crate) counters: Counters,
    /// Values on their way.
    pub(crate) staging: Staging,
    /// What has been evicted lately, if anybody asks.
    pub(crate) obituaries: Option<Vec<Evicted>>,
    pub(crate) hash_key: HashKey,
    pub(crate) item_bytes_max: usize,
    /// Whether what there is no room for is refused, instead of evicting.
    pub(crate) lossless: bool,
    /// The last version given.
    pub(crate) sequence: u64,
    /// The book says that no version above this has been given.
    pub(crate) promised: u64,
    /// Items of another generation are flushed.
    pub(crate) generation: u16,
    /// When the generation ends.
    pub(crate) flush_at: Option<Second>,
    pub(crate) now: Second,
    /// Where the items of the chunk at hand should be, by what the index said ...
    guesses: [Hit; CHUNK],
    /// ... at this number of its edits.
    surveyed: u64,
}

impl Execute for Store {
    fn execute(&mut self, clock: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        self.tick(clock.second);
        for (n, chunk) in batch.chunks(CHUNK).enumerate() {
            let forged = self.survey(chunk);
            for (i, request) in chunk.iter().enumerate() {
                if !sink.has_room(n * CHUNK + i) {
                    continue;
                }
                let guess = self.guesses[i];
                let index = n * CHUNK + i;
                let reply = match &request.op {
                    Op::Get(get) if reads(&request.op) => {
                        let has_room_for = |len| sink.has_room_for(index, len);
                        match self.get(&clock, request, get, guess, has_room_for) {
                            Some(reply) => reply,
                            None => continue,
                        }
                    }
                    _ if forged & 1 << i != 0 => self.refuse_key(request),
                    _ => self.mutate(&clock, request, guess),
                };
                sink.reply(index, &reply);
                self.settle();
            }
        }
    }
}

/// Whether an operation stores nothing, so that a wrong hash can do no harm.
#[inline]
fn reads(op: &Op<'_>) -> bool {
    matches!(op, Op::Get(get) if get.vivify.is_none())
}

/// An item that can be read.
#[derive(Clone, Copy)]
pub(crate) struct Hit {
    pub(crate) place: Place,
    pub(crate) at: Offset,
}

impl Default for Hit {
    /// A guess that no key agrees with: it lies beyond any log.
    fn default() -> Self {
        Self {
            place: Place::default(),
            at: Offset(usize::MAX / 2),
        }
    }
}

/// Why there is none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Absent {
    pub(crate) expired: bool,
    pub(crate) flushed: bool,
}

impl Store {
    /// A store in `config.memory_bytes` of memory, taken as it is first touched.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn new(config: &StoreConfig) -> Result<Self, StoreError> {
        let shape = Shape::of(config)?;
        let log = Log::new(shape.log_bytes).map_err(shape.refused())?;
        Self::over(config, &shape, log)
    }

    /// A store without items.
    pub(crate) fn over(config: &StoreConfig, shape: &Shape, log: Log) -> Result<Self, StoreError> {
        Ok(Self {
            index: Index::new(shape.buckets).map_err(shape.refused())?,
            log,
            lookahead: Lookahead::default(),
            second_chances: 0,
            ahead: 0,
            counters: Counters::default(),
            staging: Staging::default(),
            obituaries: None,
            hash_key: config.hash_key,
            item_bytes_max: config.item_bytes_max,
            lossless: false,
            sequence: 0,
            promised: 0,
            generation: 0,
            flush_at: None,
            now: Second(1),
            guesses: [Hit::default(); CHUNK],
            surveyed: 0,
        })
    }

    /// What it holds and what became of the rest.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Makes the counters of events begin anew; those of what is there stand.
    pub fn reset_counters(&mut self) {
        self.counters.reset();
    }

    /// Slots of the index, free ones included.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.index.slots()
    }

    /// Seconds since the oldest item was last used; 0 if there is none.
    #[must_use]
    pub fn age(&self, now: Second) -> u32 {
        let oldest = self.log.next(self.log.head());
        oldest.map_or(0, |(at, _)| {
            let used = self.log.header(at).last_access();
            now.0.saturating_sub(used.0)
        })
    }

    /// Makes everything stored before second `at` go at that second; at once if that is not after
    /// `now`. A later flush takes the place of one that is still to come; second 0 never comes.
    pub fn flush(&mut self, now: Second, at: Second) {
        self.flush_at = (at.0 > 0).then_some(at);
        self.note_flushes();
        self.tick(now);
    }

    /// Notes the time, once a batch.
    pub(crate) fn tick(&mut self, now: Second) {
        if self.now != now {
            self.note_second(now);
        }
        self.now = now;
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush_at = None;
            self.next_generation();
        }
    }

    fn next_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        if self.generation == 0 {
            // Items from 65,536 flushes ago would come alive again.
            self.log.end_generations();
        }
        self.note_flushes();
    }

    /// The two-stage prefetch: the buckets of all requests, then the items that their tags point
    /// to. While the buckets come, the hashes that mutations carry are checked; the bits of the
    /// forged ones are returned.
    fn survey(&mut self, requests: &[Request<'_>]) -> u32 {
        for request in requests {
            self.index.prefetch_first(request.hash);
        }
        let mut forged = 0u32;
        for (i, request) in requests.iter().enumerate() {
            forged |= u32::from(!reads(&request.op) && !self.genuine(request)) << i;
        }
        let mut elsewhere = 0u32;
        for (i, request) in requests.iter().enumerate() {
            let guess = self.index.guess_first(request.hash);
            if guess.is_none() {
                elsewhere |= u32::from(self.index.prefetch_other(request.hash)) << i;
            }
            self.expect(i, guess);
        }
        while elsewhere != 0 {
            let i = elsewhere.trailing_zeros() as usize;
            self.expect(i, self.index.guess_other(requests[i].hash));
            elsewhere &= elsewhere - 1;
        }
        self.surveyed = self.index.edits();
        forged
    }

    /// Notes where the item of request `i` of the chunk should be.
    #[inline]
    fn expect(&mut self, i: usize, guess: Option<(Place, Offset)>) {
        self.guesses[i] = match guess {
            Some((place, at)) => {
                self.log.prefetch(at);
                Hit { place, at }
            }
            None => Hit::default(),
        };
    }

    /// Whether the hash is the key's. A mutation under a wrong one would store a key twice.
    fn genuine(&self, request: &Request<'_>) -> bool {
        (1..=KEY_BYTES_MAX).contains(&request.key.len())
            && self.hash_key.hash(request.key) == request.hash
    }

    pub(crate) fn mutate(&mut self, clock: &Clock, request: &Request<'_>, guess: Hit) -> Reply<'_> {
        if self.lossless
            && let Some(refusal) = self.prepare(request)
        {
            return refusal;
        }
        match &request.op {
            Op::Get(get) => {
                // It stores: such a reply is never put off.
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
        HEADER + key.len() + value_len > self.item_bytes_max
    }

    #[inline]
    pub(crate) fn next_version(&mut self) -> u64 {
        if self.sequence == self.promised {
            self.promise_versions();
        }
        self.sequence += 1;
        self.sequence
    }

    /// The item of a key, unless it has expired or was flushed; then it is taken out. The guess
    /// for the request saves the search if nothing moved since it was made.
    #[inline(always)]
    pub(crate) fn lookup(&mut self, request: &Request<'_>, guess: Hit) -> Result<Hit, Absent> {
        let log = &self.log;
        if self.index.edits() == self.surveyed && log.is(guess.at, request.key) {
            return self.unless_gone(guess);
        }
        self.seek(request)
    }

    /// [`Self::lookup`] without a guess.
    #[inline(never)]
    pub(crate) fn seek(&mut self, request: &Request<'_>) -> Result<Hit, Absent> {
        let log = &self.log;
        let found = self.index.find(request.hash, |at| log.is(at, request.key));
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
        let flushed = self.flushed(hit.at);
        self.unlink(hit);
        Absent {
            expired: !flushed,
            flushed,
        }
    }

    /// Whether no read may find the item any more.
    #[inline]
    pub(crate) fn gone(&self, at: Offset) -> bool {
        self.flushed(at) || self.log.header(at).deadline().passed(self.now)
    }

    /// Whether a flush came after it was stored.
    #[inline]
    fn flushed(&self, at: Offset) -> bool {
        self.log.header(at).generation.get() != self.generation || self.log.is_beyond_horizon(at)
    }

    #[inline]
    pub(crate) fn item(&self, at: Offset) -> Item<'_> {
        let header = self.log.header(at);
        Item {
            value: self.log.value(at),
            flags: header.flags(),
            version: header.version.get(),
            deadline: header.deadline(),
            fetched: header.has(bit::FETCHED),
            last_access: header.last_access(),
            won: false,
            stale: header.has(bit::STALE),
            win_sent: header.has(bit::WIN_SENT),
        }
    }
}
