//! Models of other caches for comparison: LRU, SIEVE, S3-FIFO, and Belady's rule, which knows the
//! future. They account bytes and store none.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::table::{Op, Request};

/// Bytes of an item in this server's store besides its value (header, key of 16 bytes, and a slot
/// of the index), and the multiple that the sum is rounded up to.
const OVERHEAD: u64 = 16 + 16 + 8;
const ALIGN: u64 = 8;

/// Returns the bytes that an item with a value of `size` is charged.
pub(super) fn charge(size: u64) -> u64 {
    (OVERHEAD + size).next_multiple_of(ALIGN)
}

/// An eviction policy. It receives the keys in the order of the requests; `at` is the index of the
/// request.
pub(super) trait Policy {
    /// Called when a key that is not held is stored.
    fn insert(&mut self, key: u64, bytes: u64, at: usize);
    /// Called when a key that is held is read, or stored again with `bytes`.
    fn touch(&mut self, key: u64, bytes: u64, at: usize);
    /// Called when a key that is held is deleted, expires, or is replaced by a value that does not
    /// fit.
    fn remove(&mut self, key: u64);
    /// Chooses the key to evict, removes it from the policy, and returns it.
    fn evict(&mut self) -> Option<u64>;
}

#[derive(Clone, Copy)]
struct ResidentObject {
    size: u64,
    /// The second at which it expires; 0: never.
    deadline: u32,
}

/// A cache of `room` bytes with eviction policy `P`.
pub(super) struct Model<P> {
    policy: P,
    held: HashMap<u64, ResidentObject>,
    used: u64,
    room: u64,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A read found a value of this many bytes.
    Hit(u64),
    /// A read found nothing.
    Miss,
    /// Not a read.
    Done,
}

impl<P: Policy> Model<P> {
    pub(super) fn new(policy: P, room: u64) -> Self {
        Self {
            policy,
            held: HashMap::new(),
            used: 0,
            room,
        }
    }

    /// Executes request `at` of the trace; a read that misses stores the item.
    pub(super) fn execute(&mut self, request: &Request, at: usize) -> Answer {
        let gone = |held: &ResidentObject| held.deadline != 0 && held.deadline <= request.second;
        if self.held.get(&request.key).is_some_and(gone) {
            self.forget(request.key);
        }
        let held = self.held.get(&request.key).copied();
        match (request.op, held) {
            (Op::Get, Some(held)) => {
                self.policy.touch(request.key, charge(held.size), at);
                Answer::Hit(held.size)
            }
            (Op::Get, None) => {
                self.store(request, at, u64::from(request.size));
                Answer::Miss
            }
            (Op::Set, _) => {
                self.store(request, at, u64::from(request.size));
                Answer::Done
            }
            (Op::Append, Some(held)) => {
                let grown = held.size + u64::from(request.size);
                let deadline = held.deadline;
                self.store(request, at, grown);
                // `store` has set it by the append; it is gone if the value no longer fits.
                if let Some(held) = self.held.get_mut(&request.key) {
                    held.deadline = deadline;
                }
                Answer::Done
            }
            (Op::Append, None) => Answer::Done,
            (Op::Delete, held) => {
                if held.is_some() {
                    self.forget(request.key);
                }
                Answer::Done
            }
        }
    }

    /// Removes a key that has expired.
    pub(super) fn expire(&mut self, key: u64) {
        if self.held.contains_key(&key) {
            self.forget(key);
        }
    }

    /// Returns the second at which a key expires; 0: never, or the key is not held.
    pub(super) fn deadline(&self, key: u64) -> u32 {
        self.held.get(&key).map_or(0, |held| held.deadline)
    }

    /// Returns the bytes charged now.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    fn forget(&mut self, key: u64) {
        self.policy.remove(key);
        self.drop_held(key);
    }

    fn drop_held(&mut self, key: u64) {
        if let Some(held) = self.held.remove(&key) {
            self.used -= charge(held.size);
        }
    }

    fn store(&mut self, request: &Request, at: usize, size: u64) {
        let bytes = charge(size);
        if bytes > self.room {
            if self.held.contains_key(&request.key) {
                self.forget(request.key);
            }
            return;
        }
        let deadline = if request.ttl > 0 {
            request.second.saturating_add(request.ttl)
        } else {
            0
        };
        let held = ResidentObject { size, deadline };
        match self.held.insert(request.key, held) {
            Some(old) => {
                self.used = self.used + bytes - charge(old.size);
                self.policy.touch(request.key, bytes, at);
                // The new size is counted already.
                self.make_room(0);
            }
            None => {
                // The policy does not know the new key yet, and so cannot evict it.
                self.make_room(bytes);
                self.used += bytes;
                self.policy.insert(request.key, bytes, at);
            }
        }
    }

    /// Evicts items until there is room for `bytes` more.
    fn make_room(&mut self, bytes: u64) {
        while self.used + bytes > self.room {
            match self.policy.evict() {
                Some(key) => self.drop_held(key),
                None => return,
            }
        }
    }
}

/// Keys in the order of insertion.
#[derive(Default)]
struct Queue {
    keys: BTreeMap<u64, u64>,
    places: HashMap<u64, u64>,
    next: u64,
}

impl Queue {
    fn push(&mut self, key: u64) {
        self.keys.insert(self.next, key);
        self.places.insert(key, self.next);
        self.next += 1;
    }

    /// Removes a key; returns its place in the order, or `None` if it was not queued.
    fn remove(&mut self, key: u64) -> Option<u64> {
        let place = self.places.remove(&key)?;
        self.keys.remove(&place);
        Some(place)
    }

    fn oldest(&self) -> Option<u64> {
        self.keys.first_key_value().map(|(_, key)| *key)
    }

    /// Returns the first key at or behind `place`, with its place; at the end it wraps around to
    /// the oldest key.
    fn from(&self, place: u64) -> Option<(u64, u64)> {
        let behind = self.keys.range(place..).next();
        let found = behind.or_else(|| self.keys.first_key_value());
        found.map(|(place, key)| (*place, *key))
    }
}

/// Evicts the least recently used key.
#[derive(Default)]
pub(super) struct Lru(Queue);

impl Policy for Lru {
    fn insert(&mut self, key: u64, _: u64, _: usize) {
        self.0.push(key);
    }

    fn touch(&mut self, key: u64, _: u64, _: usize) {
        self.0.remove(key);
        self.0.push(key);
    }

    fn remove(&mut self, key: u64) {
        self.0.remove(key);
    }

    fn evict(&mut self) -> Option<u64> {
        let key = self.0.oldest()?;
        self.0.remove(key);
        Some(key)
    }
}

/// SIEVE (Zhang et al., NSDI'24): a hand moves from the oldest key to the newest, spares keys that
/// were read since it last passed, evicts the first other key, and keeps its position.
#[derive(Default)]
pub(super) struct Sieve {
    queue: Queue,
    visited: HashSet<u64>,
    hand: u64,
}

impl Policy for Sieve {
    fn insert(&mut self, key: u64, _: u64, _: usize) {
        self.queue.push(key);
    }

    fn touch(&mut self, key: u64, _: u64, _: usize) {
        self.visited.insert(key);
    }

    fn remove(&mut self, key: u64) {
        self.queue.remove(key);
        self.visited.remove(&key);
    }

    fn evict(&mut self) -> Option<u64> {
        loop {
            let (place, key) = self.queue.from(self.hand)?;
            self.hand = place + 1;
            if !self.visited.remove(&key) {
                self.queue.remove(key);
                return Some(key);
            }
        }
    }
}

/// S3-FIFO (Yang et al., SOSP'23): a new key enters a small queue, a tenth of the room. It is
/// promoted to the main queue if it is read twice there, or if it is stored again while the ghost
/// queue remembers it.
pub(super) struct S3Fifo {
    small: Queue,
    main: Queue,
    ghost: Queue,
    /// Bytes of each item, and its reads, counted up to [`READS_MAX`].
    items: HashMap<u64, (u64, u8)>,
    ghost_bytes: HashMap<u64, u64>,
    small_used: u64,
    ghost_used: u64,
    room: u64,
}

/// The parameters of the S3-FIFO paper: a tenth of the memory is the small queue, two bits count reads.
const SMALL_OF: u64 = 10;
const READS_MAX: u8 = 3;

impl S3Fifo {
    pub(super) fn new(room: u64) -> Self {
        Self {
            small: Queue::default(),
            main: Queue::default(),
            ghost: Queue::default(),
            items: HashMap::new(),
            ghost_bytes: HashMap::new(),
            small_used: 0,
            ghost_used: 0,
            room,
        }
    }

    /// Removes a key from the ghost queue; returns whether it was in it.
    fn take_ghost(&mut self, key: u64) -> bool {
        self.ghost.remove(key);
        let bytes = self.ghost_bytes.remove(&key);
        self.ghost_used -= bytes.unwrap_or(0);
        bytes.is_some()
    }

    fn remember(&mut self, key: u64, bytes: u64) {
        self.ghost.push(key);
        self.ghost_bytes.insert(key, bytes);
        self.ghost_used += bytes;
        // As many bytes as the main queue may hold.
        while self.ghost_used > self.room - self.room / SMALL_OF {
            match self.ghost.oldest() {
                Some(oldest) => self.take_ghost(oldest),
                None => return,
            };
        }
    }

    /// Evicts the oldest key of the small queue that was read at most once; the keys before it move
    /// to the main queue.
    fn evict_small(&mut self) -> Option<u64> {
        while let Some(key) = self.small.oldest() {
            self.small.remove(key);
            let (bytes, reads) = self.items[&key];
            self.small_used -= bytes;
            if reads > 1 {
                // Reads are counted anew in the main queue.
                self.items.insert(key, (bytes, 0));
                self.main.push(key);
                continue;
            }
            self.items.remove(&key);
            self.remember(key, bytes);
            return Some(key);
        }
        None
    }

    fn evict_main(&mut self) -> Option<u64> {
        loop {
            let key = self.main.oldest()?;
            self.main.remove(key);
            let (bytes, reads) = self.items[&key];
            if reads == 0 {
                self.items.remove(&key);
                return Some(key);
            }
            self.items.insert(key, (bytes, reads - 1));
            self.main.push(key);
        }
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, key: u64, bytes: u64, _: usize) {
        self.items.insert(key, (bytes, 0));
        if self.take_ghost(key) {
            self.main.push(key);
        } else {
            self.small.push(key);
            self.small_used += bytes;
        }
    }

    fn touch(&mut self, key: u64, bytes: u64, _: usize) {
        if let Some((held, reads)) = self.items.get_mut(&key) {
            if self.small.places.contains_key(&key) {
                self.small_used = self.small_used + bytes - *held;
            }
            (*held, *reads) = (bytes, (*reads + 1).min(READS_MAX));
        }
    }

    fn remove(&mut self, key: u64) {
        if let Some((bytes, _)) = self.items.remove(&key) {
            if self.small.remove(key).is_some() {
                self.small_used -= bytes;
            }
            self.main.remove(key);
        }
    }

    fn evict(&mut self) -> Option<u64> {
        let from_small = self.small_used > self.room / SMALL_OF;
        let small = if from_small { self.evict_small() } else { None };
        small
            .or_else(|| self.evict_main())
            .or_else(|| self.evict_small())
    }
}

/// Belady's rule: evicts the key whose next read is farthest in the future. This is optimal among
/// caches that store every item they are given, if all items have one size; with different sizes
/// another choice may be better.
pub(super) struct Belady {
    /// For each request the index of the next read of its key, or [`NEVER`] if there is none or the
    /// item has expired or is overwritten by then.
    next: Vec<u64>,
    order: BTreeSet<(u64, u64)>,
    held: HashMap<u64, u64>,
}

const NEVER: u64 = u64::MAX;

impl Belady {
    pub(super) fn new(trace: &[Request]) -> Self {
        let mut next = vec![NEVER; trace.len()];
        let mut seen: HashMap<u64, usize> = HashMap::new();
        for (at, request) in trace.iter().enumerate().rev() {
            if let Some(later) = seen.get(&request.key) {
                let expires = request.ttl > 0
                    && trace[*later].second >= request.second.saturating_add(request.ttl);
                next[at] = if expires { NEVER } else { *later as u64 };
            }
            match request.op {
                Op::Get => seen.insert(request.key, at),
                // A set or delete makes the item held before worthless.
                Op::Set | Op::Delete => seen.remove(&request.key),
                Op::Append => None,
            };
        }
        Self {
            next,
            order: BTreeSet::new(),
            held: HashMap::new(),
        }
    }
}

impl Policy for Belady {
    fn insert(&mut self, key: u64, _: u64, at: usize) {
        self.held.insert(key, self.next[at]);
        self.order.insert((self.next[at], key));
    }

    fn touch(&mut self, key: u64, bytes: u64, at: usize) {
        self.remove(key);
        self.insert(key, bytes, at);
    }

    fn remove(&mut self, key: u64) {
        if let Some(next) = self.held.remove(&key) {
            self.order.remove(&(next, key));
        }
    }

    fn evict(&mut self) -> Option<u64> {
        let (_, key) = self.order.pop_last()?;
        self.held.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads keys `a`, `b`, .. in a cache of `room` items; returns `+` for a hit, `-` for a miss.
    fn reads(policy: impl Policy, room: u64, keys: &str) -> String {
        let mut model = Model::new(policy, room * charge(8));
        let mut said = String::new();
        for (at, key) in keys.bytes().enumerate() {
            let request = request(Op::Get, key.into(), 8, 1);
            said.push(match model.execute(&request, at) {
                Answer::Hit(8) => '+',
                Answer::Miss => '-',
                other => panic!("{other:?}"),
            });
            assert!(model.used() <= room * charge(8));
        }
        said
    }

    fn request(op: Op, key: u64, size: u32, second: u32) -> Request {
        Request {
            second,
            key,
            size,
            ttl: 0,
            op,
        }
    }

    fn trace(keys: &str) -> Vec<Request> {
        keys.bytes()
            .map(|key| request(Op::Get, key.into(), 8, 1))
            .collect()
    }

    #[test]
    fn lru_keeps_the_most_recently_read_items() {
        // Room for two: c replaces b, and b replaces c.
        assert_eq!(reads(Lru::default(), 2, "abacabc"), "--+-+--");
    }

    #[test]
    fn sieve_skips_visited_items_and_keeps_its_hand_position() {
        // The paper's rule, by hand: a is read again, so d replaces b and the hand stays at c; e
        // replaces c, although a is the oldest and no longer marked.
        let keys = "abcadeabc";
        assert_eq!(reads(Sieve::default(), 3, keys), "---+--+--");
    }

    #[test]
    fn s3_fifo_evicts_a_scan_from_the_small_queue() {
        // Room for ten, one of it small. a is read three times and is promoted to the main queue; a
        // scan of twenty keys follows, and a is still held. LRU has lost it.
        let keys = "aaabcdefghijklmnopqrstua";
        let last = |said: String| said.chars().last();
        assert_eq!(
            last(reads(S3Fifo::new(10 * charge(8)), 10, keys)),
            Some('+')
        );
        assert_eq!(last(reads(Lru::default(), 10, keys)), Some('-'));
    }

    #[test]
    fn s3_fifo_inserts_ghost_hits_into_the_main_queue() {
        // a is evicted from the small queue when the room is full, is stored again while the ghost
        // queue remembers it, and outlives another scan.
        let keys = "abcdefghijkamnopqrstuvwxya";
        let said = reads(S3Fifo::new(10 * charge(8)), 10, keys);
        assert_eq!((&said[11..12], &said[25..]), ("-", "+"), "{said}");
        assert_eq!(&reads(Lru::default(), 10, keys)[25..], "-");
    }

    #[test]
    fn belady_evicts_the_item_that_is_read_furthest_ahead() {
        // The textbook example: three frames, 7 0 1 2 0 3 0 4 2 3 0 3 2 1 2 0 1 7 0 1, nine faults.
        let keys = "70120304230321201701";
        let said = reads(Belady::new(&trace(keys)), 3, keys);
        assert_eq!(said.matches('-').count(), 9, "{said}");
        // LRU has twelve faults.
        assert_eq!(reads(Lru::default(), 3, keys).matches('-').count(), 12);
    }

    #[test]
    fn no_policy_beats_belady_for_items_of_equal_size() {
        let mut rng = herdwick_check::Rng::new(5);
        for room in [3, 10, 30] {
            let keys: String = (0..3000)
                .map(|_| char::from((rng.below(8) * rng.below(15)) as u8))
                .collect();
            let hits = |said: String| said.matches('+').count();
            let best = hits(reads(Belady::new(&trace(&keys)), room, &keys));
            assert!(hits(reads(Lru::default(), room, &keys)) <= best);
            assert!(hits(reads(Sieve::default(), room, &keys)) <= best);
            assert!(hits(reads(S3Fifo::new(room * charge(8)), room, &keys)) <= best);
        }
    }

    #[test]
    fn model_follows_sets_appends_deletes_and_expiry() {
        let mut model = Model::new(Lru::default(), 1 << 20);
        let mut at = 0;
        let mut ask = |op, size, ttl, second| {
            at += 1;
            let request = Request {
                ttl,
                ..request(op, 7, size, second)
            };
            model.execute(&request, at)
        };
        assert_eq!(ask(Op::Append, 10, 0, 1), Answer::Done);
        assert_eq!(
            ask(Op::Get, 100, 5, 1),
            Answer::Miss,
            "nothing was there to append to"
        );
        assert_eq!(ask(Op::Append, 10, 0, 2), Answer::Done);
        assert_eq!(ask(Op::Get, 100, 5, 5), Answer::Hit(110));
        assert_eq!(
            ask(Op::Get, 100, 0, 6),
            Answer::Miss,
            "five seconds after it was stored"
        );
        assert_eq!(ask(Op::Set, 30, 0, 7), Answer::Done);
        assert_eq!(ask(Op::Get, 100, 0, 99), Answer::Hit(30));
        assert_eq!(ask(Op::Delete, 0, 0, 99), Answer::Done);
        assert_eq!(model.used(), 0);
    }
}
