//! Trackers and a syncer beside maps of what the primary and the secondary store hold, under random requests,
//! delays, refusals and lost connections.

use std::{collections::HashMap, time::Duration};

use herdwick_check::Rng;
use herdwick_hkvs::{
    LAG_MAX, LEASE, Limits, Outcome, Policy, Record, SyncAnswer, SyncEnd, SyncOp, SyncToken,
    Syncer, Tracker, channel,
};
use herdwick_request::{Deadline, Item, KeyHash, Marks, Second};

const WORKERS: usize = 2;
const KEYS: u64 = 40;
const LIMITS: Limits = Limits {
    keys: 6,
    reads: 2,
    window: 60,
};

fn key(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

fn hash(number: u64) -> KeyHash {
    KeyHash(Rng::new(number).bits())
}

/// Items above and below 100 bytes have memory of their own.
fn size_class(_key_len: usize, record_len: usize) -> u8 {
    u8::from(record_len > 100)
}

fn worker(number: u64) -> usize {
    number as usize % WORKERS
}

/// What the primary has of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    /// What the store counts, or what a client has chosen.
    version: u64,
    /// How many writes there were before.
    order: u64,
    flags: u32,
    value: Vec<u8>,
    expires: bool,
}

struct World {
    rng: Rng,
    now: Duration,
    epoch: u64,
    trackers: Vec<Tracker>,
    ends: Vec<SyncEnd>,
    syncer: Syncer,
    /// Operations under way, in the order in which they began.
    under_way: Vec<(SyncToken, Vec<u8>, Option<Vec<u8>>)>,
    primary: HashMap<u64, Stored>,
    /// When each key changed last.
    changed: HashMap<u64, Duration>,
    secondary: HashMap<Vec<u8>, Vec<u8>>,
    writes: u64,
    reader: Reader,
    /// Whether the secondary store refuses new values.
    full: bool,
    refused: u64,
    replicated: u64,
}

/// A client that reads both stores, as a session does (`herdwick/src/hkvs`), one request at a time.
#[derive(Default)]
struct Reader {
    /// Until when each worker has allowed reads.
    leased: [Duration; WORKERS],
    /// The version that it knows of keys that the secondary store has.
    known: HashMap<u64, u64>,
    /// The number of the write that it has seen last.
    seen: HashMap<u64, u64>,
    there: u64,
}

impl Reader {
    /// Notes what a reply of the primary has shown of a key.
    fn told(&mut self, number: u64, stored: Option<&Stored>, marks: Marks, now: Duration) {
        if marks.leased {
            self.leased[worker(number)] = now + LEASE;
        }
        match stored.filter(|_| marks.replicated) {
            Some(stored) => self.known.insert(number, stored.version),
            None => self.known.remove(&number),
        };
        if let Some(stored) = stored {
            self.saw(number, stored.order);
        }
    }

    fn saw(&mut self, number: u64, order: u64) {
        let before = self.seen.insert(number, order).unwrap_or(0);
        assert!(
            before <= order,
            "{number} went back from {before} to {order}"
        );
    }

    /// Reads a key at the secondary store.
    fn read(&mut self, number: u64, record: Option<&[u8]>, now: Duration) {
        let is_leased = now < self.leased[worker(number)];
        let Some(known) = self.known.get(&number).filter(|_| is_leased) else {
            return;
        };
        let Some(record) = record.and_then(Record::parse) else {
            self.known.remove(&number);
            return;
        };
        if record.version < *known {
            return;
        }
        self.known.insert(number, record.version);
        self.there += 1;
        let order = u64::from_le_bytes(*record.value.first_chunk().expect("its order"));
        self.saw(number, order);
    }
}

impl World {
    fn new(seed: u64, policy: Policy) -> Self {
        let (mut trackers, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..WORKERS {
            let (worker, end) = channel();
            trackers.push(Tracker::new(
                (policy.build(LIMITS), LIMITS.keys),
                size_class,
                worker,
            ));
            ends.push(end);
        }
        let mut syncer = Syncer::new(WORKERS, LIMITS.keys);
        syncer.begin(1);
        Self {
            rng: Rng::new(seed),
            now: Duration::from_secs(1),
            epoch: 1,
            trackers,
            ends,
            syncer,
            under_way: Vec::new(),
            primary: HashMap::new(),
            changed: HashMap::new(),
            secondary: HashMap::new(),
            writes: 0,
            reader: Reader::default(),
            full: false,
            refused: 0,
            replicated: 0,
        }
    }

    fn begin(&mut self, worker: usize) {
        self.trackers[worker].begin(self.now, self.epoch);
        if !self.trackers[worker].marks().leased {
            return;
        }
        // No client that is allowed to reads what was replaced longer ago than that.
        for number in (0..KEYS).filter(|number| self::worker(*number) == worker) {
            let Some(record) = self.secondary.get(&key(number)) else {
                continue;
            };
            if !self.is_current(number, record) {
                let since = self.now - self.changed[&number];
                assert!(since <= LAG_MAX, "{number} is stale since {since:?}");
            }
        }
    }

    fn is_current(&self, number: u64, record: &[u8]) -> bool {
        let record = Record::parse(record).expect("a record");
        self.primary.get(&number).is_some_and(|stored| {
            let shown = (stored.version, stored.flags, &stored.value[..]);
            shown == (record.version, record.flags, record.value)
        })
    }

    fn request(&mut self) {
        // Few of the keys take most of the requests.
        let hot = self.rng.below(4) > 0;
        let number = self.rng.below(if hot { 8 } else { KEYS });
        let worker = worker(number);
        self.begin(worker);
        let (key, hash) = (key(number), hash(number));
        let tracker = &mut self.trackers[worker];
        match self.rng.below(20) {
            0 => {
                self.primary.remove(&number);
                self.changed.insert(number, self.now);
                tracker.changed(hash, &key, None);
            }
            1..=4 => {
                self.writes += 1;
                let size =
                    self.rng.below(60) as usize * if self.rng.below(30) == 0 { 200 } else { 1 };
                let mut value = self.writes.to_le_bytes().to_vec();
                value.resize(8 + size, self.writes as u8);
                // Some clients choose versions, which may go back, or be the same again.
                let version = match self.rng.below(12) {
                    0 => self.rng.below(30),
                    1 => 1 << 40,
                    _ => self.writes,
                };
                let stored = Stored {
                    version,
                    order: self.writes,
                    flags: self.rng.below(3) as u32,
                    value,
                    expires: self.rng.below(10) == 0,
                };
                tracker.changed(hash, &key, Some(&item(&stored)));
                self.primary.insert(number, stored);
                self.changed.insert(number, self.now);
            }
            _ => match self.primary.get(&number) {
                Some(stored) => {
                    let marks = tracker.read(hash, &key, &item(stored), (Second(1), || true));
                    self.replicated += u64::from(marks.replicated && marks.leased);
                    self.reader.told(number, Some(stored), marks, self.now);
                }
                None => {
                    // Sometimes a client claims the hash for another key.
                    let is_own = self.rng.below(4) > 0;
                    tracker.missed(hash, || is_own);
                    if is_own {
                        self.reader.told(number, None, tracker.marks(), self.now);
                    }
                }
            },
        }
        tracker.take_sent();
    }

    /// The reader reads some keys at the secondary store.
    fn read_there(&mut self) {
        for number in 0..8 {
            let record = self.secondary.get(&key(number)).map(|record| &record[..]);
            self.reader.read(number, record, self.now);
        }
    }

    /// The thread begins operations, or one of them ends.
    fn sync(&mut self) {
        for (worker, end) in self.ends.iter_mut().enumerate() {
            if let Some(change) = end.changes.pop()
                && let Some(change) = self.syncer.accept(worker, change)
            {
                end.back.push(change).expect("has room");
            }
        }
        while let Some((token, op)) = self.syncer.next_op() {
            let (key, record) = match op {
                SyncOp::Store { key, record } => (key.to_vec(), Some(record.to_vec())),
                SyncOp::Delete { key } => (key.to_vec(), None),
            };
            // As in a session: one at a time of each key.
            if self.under_way.iter().any(|(_, other, _)| *other == key) {
                break;
            }
            self.syncer.begun();
            self.under_way.push((token, key, record));
        }
        if self.under_way.is_empty() {
            return;
        }
        let index = self.rng.index(self.under_way.len());
        let (token, key, record) = self.under_way.swap_remove(index);
        let answer = match record {
            None => {
                self.secondary.remove(&key);
                SyncAnswer::Done
            }
            Some(_) if self.full => {
                self.refused += 1;
                SyncAnswer::Refused
            }
            Some(record) => {
                self.secondary.insert(key, record);
                SyncAnswer::Done
            }
        };
        if let Some((worker, change)) = self.syncer.answered(token, answer) {
            self.ends[worker].back.push(change).expect("has room");
        }
    }

    /// The connection is lost, and another begins with an empty store.
    fn reconnect(&mut self) {
        self.epoch += 1;
        self.under_way.clear();
        self.secondary.clear();
        for (worker, change) in self.syncer.abandon() {
            assert_eq!(change.outcome, Outcome::Lost);
            self.ends[worker].back.push(change).expect("has room");
        }
        self.syncer.begin(self.epoch);
        // Another session, which knows nothing of that store.
        self.reader.known.clear();
        self.reader.leased = Default::default();
    }

    /// Nothing happens any more but what is under way.
    fn settle(&mut self) {
        self.full = false;
        for _ in 0..20_000 {
            (0..WORKERS).for_each(|worker| self.trackers[worker].begin(self.now, self.epoch));
            self.sync();
        }
        assert!(self.syncer.is_idle() && self.under_way.is_empty());
        for (key, record) in &self.secondary {
            let number = String::from_utf8_lossy(&key[4..])
                .parse()
                .expect("a number");
            assert!(self.is_current(number, record), "{number}");
        }
        // What a reply says is in the secondary store is there, and nothing else is.
        let mut replicated = 0;
        for number in 0..KEYS {
            let Some(stored) = self.primary.get(&number) else {
                continue;
            };
            // An item that expires is not admitted, so that none is evicted.
            let stored = Stored {
                expires: true,
                ..stored.clone()
            };
            let (key, hash) = (key(number), hash(number));
            let tracker = &mut self.trackers[worker(number)];
            tracker.begin(self.now, self.epoch);
            let Marks {
                replicated: is,
                leased,
                ..
            } = tracker.read(hash, &key, &item(&stored), (Second(0), || true));
            assert!(leased);
            assert_eq!(is, self.secondary.contains_key(&key), "{number}");
            replicated += usize::from(is);
        }
        assert_eq!(replicated, self.secondary.len());
    }
}

fn item(stored: &Stored) -> Item<'_> {
    Item {
        flags: stored.flags,
        deadline: Deadline(if stored.expires { 100 } else { 0 }),
        ..Item::plain(&stored.value, stored.version)
    }
}

#[test]
fn clients_read_what_the_primary_has_or_had_within_the_bound() {
    let (mut replicated, mut refused, mut there) = (0, 0, 0);
    for seed in 0..60 {
        let policy = Policy::ALL[seed as usize % Policy::ALL.len()];
        let mut world = World::new(seed, policy);
        for _ in 0..4000 {
            world.request();
            // Sometimes the secondary store stands still for longer than the bound.
            let pace = world.rng.below(8);
            (0..pace).for_each(|_| world.sync());
            world.read_there();
            let pause = if world.rng.below(200) == 0 { 400 } else { 1 };
            world.now += Duration::from_millis(world.rng.below(2) * pause);
            match world.rng.below(2000) {
                0 => world.reconnect(),
                1 => world.full = !world.full,
                2 => {
                    let all: Vec<u64> = world.primary.drain().map(|(number, _)| number).collect();
                    let now = world.now;
                    world
                        .changed
                        .extend(all.into_iter().map(|number| (number, now)));
                    for worker in 0..WORKERS {
                        world.begin(worker);
                        world.trackers[worker].flush(Second(0));
                    }
                }
                _ => {}
            }
        }
        world.settle();
        replicated += world.replicated;
        refused += world.refused;
        there += world.reader.there;
    }
    assert!(
        replicated > 10_000 && refused > 100 && there > 10_000,
        "{replicated} {refused} {there}"
    );
}

#[test]
fn a_worker_at_the_limit_drops_keys_and_never_waits() {
    let (end, _sync) = channel();
    let limits = Limits {
        keys: 4000,
        reads: 1,
        window: 10_000,
    };
    let mut tracker = Tracker::new(
        (Policy::Combined.build(limits), limits.keys),
        size_class,
        end,
    );
    let now = Duration::from_secs(1);
    tracker.begin(now, 1);
    let mut stored = stored(1);
    for number in 0..3000 {
        tracker.read(
            hash(number),
            &key(number),
            &item(&stored),
            (Second(1), || true),
        );
    }
    // The limit of changes is that of admissions: none of them is taken.
    assert_eq!(tracker.counters().keys, 128);
    stored.version = 2;
    for number in 0..3000 {
        tracker.changed(hash(number), &key(number), Some(&item(&stored)));
    }
    let counters = tracker.counters();
    assert_eq!((counters.keys, counters.dropped), (0, 128));
    assert_eq!(counters.under_way, 128);
    assert!(tracker.marks().leased);
    tracker.begin(now + LAG_MAX + Duration::from_millis(1), 1);
    assert!(!tracker.marks().leased);
    // Without a connection nothing is due.
    tracker.begin(now + LAG_MAX, 0);
    assert_eq!(tracker.counters().under_way, 0);
    assert!(!tracker.marks().leased);
}

fn stored(version: u64) -> Stored {
    Stored {
        version,
        order: version,
        flags: 0,
        value: vec![1; 10],
        expires: false,
    }
}

/// A tracker that admits what is read once, and the other end.
fn eager(keys: usize) -> (Tracker, SyncEnd) {
    let (end, sync) = channel();
    let limits = Limits {
        keys,
        reads: 1,
        window: 10_000,
    };
    let policy = Policy::Combined.build(limits);
    (Tracker::new((policy, keys), size_class, end), sync)
}

fn read(tracker: &mut Tracker, number: u64, stored: &Stored) -> Marks {
    let (key, hash) = (key(number), hash(number));
    tracker.read(hash, &key, &item(stored), (Second(1), || true))
}

#[test]
fn only_what_may_be_read_out_of_date_ends_leases() {
    let (mut tracker, mut sync) = eager(10);
    let late = LAG_MAX + Duration::from_millis(1);
    let mut now = Duration::from_secs(1);
    tracker.begin(now, 1);
    read(&mut tracker, 1, &stored(1));
    // A secondary store that is full keeps a new key waiting, and nothing is read there meanwhile.
    now += late;
    tracker.begin(now, 1);
    assert!(tracker.marks().leased);
    let change = sync.changes.pop().expect("the admission");
    sync.back.push(change).expect("has room");
    tracker.begin(now, 1);
    assert!(read(&mut tracker, 1, &stored(1)).replicated);
    tracker.changed(hash(1), &key(1), Some(&item(&stored(2))));
    now += late;
    tracker.begin(now, 1);
    assert!(!tracker.marks().leased, "the old value is there");
}

/// A tracker with a secondary store that has room for so many items of each size class.
struct Small {
    tracker: Tracker,
    sync: SyncEnd,
    syncer: Syncer,
    there: HashMap<Vec<u8>, Vec<u8>>,
    rooms: [usize; 2],
    now: Duration,
}

impl Small {
    fn new(rooms: [usize; 2]) -> Self {
        let (tracker, sync) = eager(64);
        let mut syncer = Syncer::new(1, 64);
        syncer.begin(1);
        Self {
            tracker,
            sync,
            syncer,
            there: HashMap::new(),
            rooms,
            now: Duration::from_secs(1),
        }
    }

    fn read(&mut self, number: u64, stored: &Stored) -> Marks {
        read(&mut self.tracker, number, stored)
    }

    fn has_room(&self, key: &[u8], record: &[u8]) -> bool {
        let class = |record: &[u8]| usize::from(size_class(0, record.len()));
        let others = self.there.iter().filter(|(other, _)| *other != key);
        let taken = others.filter(|(_, other)| class(other) == class(record));
        taken.count() < self.rooms[class(record)]
    }

    /// Time passes, and the changes are carried out.
    fn turn(&mut self) {
        self.now += Duration::from_millis(20);
        self.tracker.begin(self.now, 1);
        while let Some(change) = self.sync.changes.pop() {
            if let Some(change) = self.syncer.accept(0, change) {
                self.sync.back.push(change).expect("has room");
            }
        }
        while let Some((token, op)) = self.syncer.next_op() {
            let (key, record) = match op {
                SyncOp::Store { key, record } => (key.to_vec(), Some(record.to_vec())),
                SyncOp::Delete { key } => (key.to_vec(), None),
            };
            let answer = match record {
                Some(record) if !self.has_room(&key, &record) => SyncAnswer::Refused,
                Some(record) => {
                    self.there.insert(key, record);
                    SyncAnswer::Done
                }
                None => {
                    self.there.remove(&key);
                    SyncAnswer::Done
                }
            };
            self.syncer.begun();
            if let Some((_, change)) = self.syncer.answered(token, answer) {
                self.sync.back.push(change).expect("has room");
            }
        }
    }
}

#[test]
fn the_hottest_keys_find_room_in_a_secondary_store_that_is_smaller_than_the_policy() {
    let mut small = Small::new([4, 0]);
    for number in 0..30 {
        small.read(number, &stored(1));
        small.turn();
    }
    // Two keys are read all the time from now on, and were not among the first.
    for _ in 0..100 {
        for number in [100, 101] {
            small.read(number, &stored(1));
        }
        small.turn();
    }
    for number in [100, 101] {
        assert!(small.there.contains_key(&key(number)));
        assert!(small.read(number, &stored(1)).replicated);
    }
}

#[test]
fn keys_whose_size_class_is_full_take_the_places_of_no_others() {
    let mut small = Small::new([64, 4]);
    let large = |version| Stored {
        value: vec![2; 200],
        ..stored(version)
    };
    for number in 0..30 {
        small.turn();
        small.read(number, &stored(1));
    }
    // The small ones are not read any more, and so those that were read least recently.
    for number in 200..240 {
        small.read(number, &large(1));
        (0..10).for_each(|_| small.turn());
    }
    for _ in 0..100 {
        for number in [100, 101] {
            small.read(number, &large(1));
        }
        small.turn();
    }
    assert!(small.tracker.counters().refused > 10);
    for number in [100, 101].into_iter().chain(0..30) {
        assert!(small.there.contains_key(&key(number)), "{number}");
    }
    // An update that no longer fits in its class is one of the other class.
    let before = small.tracker.counters().refused;
    small
        .tracker
        .changed(hash(0), &key(0), Some(&item(&large(2))));
    (0..10).for_each(|_| small.turn());
    assert_eq!(small.tracker.counters().refused, before + 1);
    for number in 1..30 {
        assert!(small.there.contains_key(&key(number)), "{number}");
    }
    assert!(!small.there.contains_key(&key(0)));
}

/// Keys of up to 250 bytes take no more memory than there is for all of them.
#[test]
fn keys_that_are_long_are_fewer() {
    const SLOTS: usize = 100;
    let mut syncer = Syncer::new(1, SLOTS);
    syncer.begin(1);
    let (mut tracker, mut sync) = eager(SLOTS);
    tracker.begin(Duration::from_secs(1), 1);
    let long = |number: u64| format!("{number:0>250}").into_bytes();
    for number in 0..SLOTS as u64 {
        let stored = stored(1);
        let of = (Second(1), || true);
        tracker.read(hash(number), &long(number), &item(&stored), of);
    }
    let (mut kept, mut refused) = (0, 0);
    while let Some(change) = sync.changes.pop() {
        match syncer.accept(0, change) {
            None => kept += 1,
            Some(change) => {
                assert_eq!(change.outcome, Outcome::Refused);
                refused += 1;
            }
        }
    }
    assert_eq!(kept + refused, SLOTS);
    assert!(kept >= 20 && kept * 250 <= Syncer::bytes(SLOTS), "{kept}");
}

#[test]
fn a_hash_that_is_not_the_keys_own_is_no_miss_of_the_key() {
    let (mut tracker, _sync) = eager(10);
    tracker.begin(Duration::from_secs(1), 1);
    read(&mut tracker, 1, &stored(1));
    tracker.missed(hash(1), || false);
    assert_eq!(tracker.counters().keys, 1);
    tracker.missed(hash(1), || true);
    assert_eq!(tracker.counters().keys, 0);
}
