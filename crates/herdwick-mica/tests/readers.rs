//! A store in published memory, and a reader of it: what the reader takes for a value was the key's at a
//! time during the look-up, whatever the store does between any two words that are loaded.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    thread,
};

use herdwick_check::{Rng, count, length};
use herdwick_layout::{
    bucket,
    published::{Look, Unsure, View, Word},
};
use herdwick_mem::{Span, Words};
use herdwick_mica::{Store, StoreConfig};
use herdwick_request::{
    Clock, Delete, Execute, Get, HashKey, Op, Put, Reply, Request, Second, Status,
};

const HASH_KEY: HashKey = HashKey([1, 2]);
const KEYS: u64 = 40;
/// More than any item.
const MOST: usize = 64 << 10;

fn published(memory_bytes: usize, item_bytes_max: usize) -> (Store, Span) {
    let config = StoreConfig {
        memory_bytes,
        item_bytes_max,
        hash_key: HASH_KEY,
    };
    let (store, published) = Store::published(&config).unwrap();
    (store, published.words)
}

fn key(n: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[..8].copy_from_slice(&n.to_le_bytes());
    key
}

/// A value that names its key and the operation that stored it; its length follows from them.
fn value(n: u64, op: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).map(|i| (op << 20 | n).wrapping_add(i << 54));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    bytes
}

/// The key and the operation of a value, which is checked as a whole.
fn named(value_read: &[u8]) -> (u64, u64) {
    let first = u64::from_le_bytes(*value_read.first_chunk().expect("a value has a word"));
    let (n, op) = (first & 0xf_ffff, first >> 20);
    assert_eq!(value_read, value(n, op, value_read.len()), "a torn value");
    (n, op)
}

fn execute(store: &mut Store, second: u32, key: &[u8], op: Op<'_>) -> Status {
    let clock = Clock {
        epoch_unix: 1_700_000_000,
        second: Second(second),
    };
    let hash = HASH_KEY.hash(key);
    let mut status = None;
    store.execute(clock, &[Request { hash, key, op }], &mut |_,
                                                             reply: &Reply<
        '_,
    >| {
        status = Some(reply.status);
    });
    status.unwrap()
}

fn set(value: &[u8], exptime: u32) -> Op<'_> {
    Op::Put(Put {
        value,
        exptime,
        ..Put::default()
    })
}

/// Looks a key up in all entries that may be its.
fn get<W: Words>(
    view: &View<W>,
    key: &[u8],
    now: impl Fn() -> Second,
    copy: &mut Vec<u8>,
) -> Result<Vec<u8>, Unsure> {
    let hash = HASH_KEY.hash(key);
    for skip in 0.. {
        let Some(pointer) = view.locate(hash, skip) else {
            break;
        };
        match view.look(&pointer, key, MOST, || Some(now()), copy) {
            Look::Hit(hit) => return Ok(copy[hit.front..].to_vec()),
            Look::Other(_) => {}
            Look::Unsure(unsure) => return Err(unsure),
        }
    }
    Err(Unsure::Absent)
}

#[test]
fn reader_finds_what_was_stored_and_nothing_that_is_gone() {
    let (mut store, words) = published(1 << 20, 64 << 10);
    let view = View::open(words).unwrap();
    let mut copy = Vec::new();
    let mut read = |n, second| get(&view, &key(n), || Second(second), &mut copy);
    for (n, len) in (0..).zip([8, 16, 32, 33, 100, 4095, 4096, 60_000]) {
        let value = value(n, n, len);
        execute(&mut store, 10, &key(n), set(&value, 0));
        assert_eq!(read(n, 10), Ok(value));
    }
    assert_eq!(read(99, 10), Err(Unsure::Absent));
    let other = value(0, 7, 8);
    execute(&mut store, 10, &key(0), set(&other, 0));
    assert_eq!(read(0, 10), Ok(other), "in place");
    execute(&mut store, 10, &key(1), Op::Delete(Delete::default()));
    assert_eq!(read(1, 10), Err(Unsure::Absent));
    let mortal = value(2, 8, 32);
    execute(&mut store, 10, &key(2), set(&mortal, 5));
    assert_eq!(read(2, 14), Ok(mortal));
    assert_eq!(read(2, 15), Err(Unsure::Expired), "before the store knows");
    let stale = Delete {
        invalidate: true,
        ..Delete::default()
    };
    execute(&mut store, 10, &key(3), Op::Delete(stale));
    assert_eq!(read(3, 10), Err(Unsure::Stale));
    store.flush(Second(10), Second(20));
    assert!(read(4, 19).is_ok());
    assert_eq!(read(4, 20), Err(Unsure::Flushed), "a flush that is due");
    store.flush(Second(10), Second(10));
    assert_eq!(read(4, 10), Err(Unsure::Flushed));
    let new = value(5, 9, 100);
    execute(&mut store, 10, &key(5), set(&new, 0));
    assert_eq!(read(5, 10), Ok(new), "stored after the flush");
}

/// Two keys whose entries are the same in the index.
#[test]
fn key_of_another_item_is_not_taken_for_the_own() {
    let (mut store, words) = published(256 << 10, 4 << 10);
    let buckets = words.load(Word::Buckets as usize) as usize;
    let mut entries = HashMap::new();
    let (a, b) = (0..)
        .find_map(|n| {
            let hash = HASH_KEY.hash(&key(n));
            let entry = (bucket::first(hash, buckets), bucket::tag(hash));
            Some((entries.insert(entry, n)?, n))
        })
        .unwrap();
    let view = View::open(words).unwrap();
    let mut copy = Vec::new();
    let mut read = |n| get(&view, &key(n), || Second(10), &mut copy);
    let (first, second) = (value(a, 1, 32), value(b, 2, 32));
    execute(&mut store, 10, &key(a), set(&first, 0));
    assert_eq!(read(b), Err(Unsure::Absent));
    execute(&mut store, 10, &key(b), set(&second, 0));
    assert_eq!((read(a), read(b)), (Ok(first), Ok(second)));
}

/// The words of a store; between two loads, the store works.
struct Restless<'a> {
    words: Span,
    work: &'a dyn Fn(),
}

impl Words for Restless<'_> {
    fn count(&self) -> usize {
        self.words.count()
    }
    fn load(&self, index: usize) -> u64 {
        (self.work)();
        self.words.load(index)
    }
    fn load_acquire(&self, index: usize) -> u64 {
        (self.work)();
        self.words.load_acquire(index)
    }
    fn store(&self, _: usize, _: u64) {
        unreachable!("a reader stores nothing");
    }
    fn store_release(&self, _: usize, _: u64) {
        unreachable!("a reader stores nothing");
    }
}

/// A store, what each key has, and what the key that is looked up has had since the look-up began.
struct World {
    store: Store,
    second: u32,
    ops: u64,
    rng: Rng,
    /// Of each key the operation that stored its value, and its deadline.
    keys: Vec<Option<(u64, u32)>>,
    flush_at: u32,
    watched: u64,
    seen: Vec<u64>,
    big: bool,
}

impl World {
    fn random(&mut self, below: u64) -> u64 {
        self.rng.below(below)
    }

    fn current(&self) -> Option<u64> {
        let (op, deadline) = self.keys[self.watched as usize]?;
        (deadline == 0 || self.second < deadline).then_some(op)
    }

    fn note(&mut self) {
        if let Some(op) = self.current()
            && self.seen.last() != Some(&op)
        {
            self.seen.push(op);
        }
    }

    fn flush_if_due(&mut self) {
        if self.flush_at > 0 && self.flush_at <= self.second {
            self.flush_at = 0;
            self.keys.fill(None);
        }
    }

    fn step(&mut self) {
        self.ops += 1;
        let n = match self.random(3) {
            0 => self.watched,
            _ => self.random(KEYS),
        };
        let (op, second) = (self.ops, self.second);
        match self.random(64) {
            0 if self.random(8) == 0 => {
                let ahead = self.random(3) as u32;
                // One that is due is done, and not replaced.
                execute(&mut self.store, second, b"none", Op::Get(Get::default()));
                self.flush_at = second + ahead;
                self.store.flush(Second(second), Second(self.flush_at));
            }
            1 => self.second += 1,
            2..8 => {
                execute(
                    &mut self.store,
                    second,
                    &key(n),
                    Op::Delete(Delete::default()),
                );
                self.keys[n as usize] = None;
            }
            8..12 => {
                let exptime = 1 + self.random(3) as u32;
                let touch = Get {
                    touch: Some(exptime),
                    ..Get::default()
                };
                if execute(&mut self.store, second, &key(n), Op::Get(touch)) == Status::Done
                    && let Some((_, deadline)) = &mut self.keys[n as usize]
                {
                    *deadline = second + exptime;
                }
            }
            dice => {
                let len = match (self.big, dice % 4) {
                    (true, 0) => 8 + self.random(9000),
                    (_, 1) => 32,
                    _ => 8 + self.random(60),
                };
                let exptime = if dice % 5 == 0 { 2 } else { 0 };
                let value = value(n, op, len as usize);
                let status = execute(&mut self.store, second, &key(n), set(&value, exptime));
                assert_eq!(status, Status::Done);
                let deadline = if exptime > 0 { second + exptime } else { 0 };
                self.keys[n as usize] = Some((op, deadline));
            }
        }
        self.flush_if_due();
        self.note();
    }
}

/// Returns the look-ups that were hits, and how often each reason was given for the others.
fn restless(seed: u64, lookups: u64, big: bool) -> (u64, Vec<Unsure>) {
    let item_bytes_max = if big { 10 << 10 } else { 1 << 10 };
    let memory = if big { 256 << 10 } else { 144 << 10 };
    let (store, words) = published(memory, item_bytes_max);
    let world = RefCell::new(World {
        store,
        second: 2,
        ops: 0,
        rng: Rng::new(seed),
        keys: vec![None; KEYS as usize],
        flush_at: 0,
        watched: 0,
        seen: Vec::new(),
        big,
    });
    let calm = Cell::new(false);
    let work = || {
        let mut world = world.borrow_mut();
        if calm.get() {
            return;
        }
        match world.random(40) {
            0..3 => world.step(),
            // A reader that was stopped for long, while all segments are used again.
            3 => (0..world.random(400)).for_each(|_| world.step()),
            _ => {}
        }
    };
    calm.set(true);
    let view = View::open(Restless { words, work: &work }).unwrap();
    calm.set(false);
    let (mut hits, mut unsure, mut copy) = (0, Vec::new(), Vec::new());
    for _ in 0..lookups {
        let n = {
            let mut world = world.borrow_mut();
            let n = world.random(KEYS);
            (world.watched, world.seen) = (n, Vec::new());
            world.note();
            n
        };
        let now = || Second(world.borrow().second);
        match get(&view, &key(n), now, &mut copy) {
            Ok(value) => {
                let (of, op) = named(&value);
                assert_eq!(of, n, "another key's value");
                let seen = &world.borrow().seen;
                assert!(seen.contains(&op), "seed {seed}: {op} of {seen:?}");
                hits += 1;
            }
            Err(why) => unsure.push(why),
        }
        world.borrow_mut().step();
    }
    (hits, unsure)
}

#[test]
fn whatever_the_store_does_between_two_loads_no_wrong_value_is_read() {
    let lookups = count("HERDWICK_READERS_LOOKUPS", length(2_000, 5_000));
    let mut reasons = Vec::new();
    for (seed, big) in [(1, false), (2, true), (3, false), (4, true)] {
        let (hits, unsure) = restless(seed, lookups, big);
        assert!(hits > lookups / 10, "{hits} hits of {lookups}");
        reasons.extend(unsure);
    }
    for reason in [
        Unsure::Absent,
        Unsure::Torn,
        Unsure::Moved,
        Unsure::Flushed,
        Unsure::Expired,
    ] {
        assert!(reasons.contains(&reason), "{reason:?} was never the reason");
    }
}

/// What a writer has done that is over, as a reader on another thread may rely on it.
struct Acknowledged {
    /// Of each key the number of the operation before which every value is gone.
    floors: Vec<AtomicU64>,
    second: AtomicU32,
    gets: AtomicU64,
}

/// A store, and the deadline of each key.
struct Writer<'a> {
    store: Store,
    over: &'a Acknowledged,
    deadlines: Vec<u32>,
    second: u32,
    op: u64,
    rng: Rng,
}

impl Writer<'_> {
    /// Every value of a key that was stored by an operation before `op` is gone.
    fn acknowledge(&self, n: usize, op: u64) {
        self.over.floors[n].store(op, Ordering::Release);
    }

    fn step(&mut self) {
        self.op += 1;
        let (op, second) = (self.op, self.second);
        let n = self.rng.below(KEYS);
        let at = n as usize;
        match self.rng.below(4096) {
            0 => {
                self.store.flush(Second(second), Second(second));
                (0..KEYS as usize).for_each(|n| self.acknowledge(n, op + 1));
            }
            1..8 => {
                self.second += 1;
                self.over.second.store(self.second, Ordering::Release);
                for n in 0..KEYS as usize {
                    if (1..=self.second).contains(&self.deadlines[n]) {
                        self.acknowledge(n, op + 1);
                    }
                }
            }
            8..256 => {
                execute(
                    &mut self.store,
                    second,
                    &key(n),
                    Op::Delete(Delete::default()),
                );
                self.acknowledge(at, op + 1);
            }
            256..512 => {
                let touch = Get {
                    touch: Some(2),
                    ..Get::default()
                };
                if execute(&mut self.store, second, &key(n), Op::Get(touch)) == Status::Done {
                    self.deadlines[at] = second + 2;
                }
            }
            dice => {
                let exptime = if dice % 8 == 0 { 1 } else { 0 };
                let len = [8, 32, 64, 700, 5000][(op / 64 % 5) as usize];
                let value = value(n, op, len);
                let status = execute(&mut self.store, second, &key(n), set(&value, exptime));
                assert_eq!(status, Status::Done);
                self.deadlines[at] = if exptime > 0 { second + exptime } else { 0 };
                self.acknowledge(at, op);
            }
        }
    }
}

/// Reads keys, until so many GETs had a value.
fn read_beside(words: Span, over: &Acknowledged, gets: u64) {
    let view = View::open(words).unwrap();
    let (mut copy, mut n) = (Vec::new(), 0);
    let mut last = vec![0; KEYS as usize];
    while over.gets.load(Ordering::Relaxed) < gets {
        n = (n + 7) % KEYS;
        let floor = over.floors[n as usize].load(Ordering::Acquire);
        let now = || Second(over.second.load(Ordering::Acquire));
        if let Ok(value) = get(&view, &key(n), now, &mut copy) {
            let (of, op) = named(&value);
            assert_eq!(of, n);
            assert!(op >= floor, "{op} after all before {floor} were gone");
            assert!(
                op >= last[n as usize],
                "{op} after {} was read",
                last[n as usize]
            );
            last[n as usize] = op;
            over.gets.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A thread that loads words of another mapping while the store writes them: whatever the CPU and the
/// compiler make of the order of its stores.
#[test]
fn a_reader_on_another_thread_reads_nothing_that_is_gone() {
    let gets = count("HERDWICK_READERS_GETS", length(40_000, 100_000));
    let (store, words) = published(256 << 10, 8 << 10);
    let over = Acknowledged {
        floors: (0..KEYS).map(|_| AtomicU64::new(0)).collect(),
        second: AtomicU32::new(10),
        gets: AtomicU64::new(0),
    };
    let mut writer = Writer {
        store,
        over: &over,
        deadlines: vec![0; KEYS as usize],
        second: 10,
        op: 0,
        rng: Rng::new(7),
    };
    thread::scope(|scope| {
        let reader = scope.spawn(|| read_beside(words, &over, gets));
        while !reader.is_finished() {
            (0..1000).for_each(|_| writer.step());
        }
    });
    println!("{gets} GETs beside {} operations", writer.op);
}

#[test]
fn memory_of_a_published_store_fits_its_limit() {
    for memory_bytes in [1 << 20, 3_333_333, 64 << 20] {
        let (store, words) = published(memory_bytes, 4 << 10);
        assert!(
            words.len() <= memory_bytes,
            "{} of {memory_bytes}",
            words.len()
        );
        assert!(words.len() > memory_bytes / 10 * 9);
        assert_eq!(store.unused_max(), 0);
    }
}

#[test]
fn words_that_are_no_store_are_not_opened() {
    let (_store, words) = published(1 << 20, 4 << 10);
    for word in 0..8 {
        let copy = Span::anonymous(words.len()).unwrap();
        (0..16).for_each(|n| copy.store(n, words.load(n)));
        assert!(View::open(copy.clone()).is_some());
        copy.store(word, u64::MAX);
        assert_eq!(View::open(copy).is_some(), word > 5, "word {word}");
    }
}
