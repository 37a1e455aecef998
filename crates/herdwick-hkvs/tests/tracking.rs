//! Trackers and a syncer beside maps of what the primary and the secondary store hold, under random requests,
//! delays, refusals and lost connections.

use std::{collections::HashMap, time::Duration};

use herdwick_check::Rng;
use herdwick_hkvs::{
    LAG_MAX, Limits, Outcome, Policy, Record, SyncAnswer, SyncEnd, SyncOp, SyncToken, Syncer,
    Tracker, channel,
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

fn worker(number: u64) -> usize {
    number as usize % WORKERS
}

/// What the primary has of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    version: u64,
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
    version: u64,
    /// Whether the secondary store refuses new values.
    full: bool,
    refused: u64,
    replicated: u64,
}

impl World {
    fn new(seed: u64, policy: Policy) -> Self {
        let (mut trackers, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..WORKERS {
            let (worker, end) = channel();
            trackers.push(Tracker::new(policy.build(LIMITS), LIMITS.keys, worker));
            ends.push(end);
        }
        let mut syncer = Syncer::new(WORKERS);
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
            version: 0,
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
                self.version += 1;
                let size =
                    self.rng.below(60) as usize * if self.rng.below(30) == 0 { 200 } else { 1 };
                let stored = Stored {
                    version: self.version,
                    flags: self.rng.below(3) as u32,
                    value: vec![self.version as u8; size],
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
                }
                None => tracker.missed(hash),
            },
        }
        tracker.take_sent();
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
        value: &stored.value,
        flags: stored.flags,
        version: stored.version,
        deadline: Deadline(if stored.expires { 100 } else { 0 }),
        fetched: true,
        last_access: Second(1),
        won: false,
        stale: false,
        win_sent: false,
    }
}

#[test]
fn clients_read_what_the_primary_has_or_had_within_the_bound() {
    let (mut replicated, mut refused) = (0, 0);
    for seed in 0..60 {
        let policy = Policy::ALL[seed as usize % Policy::ALL.len()];
        let mut world = World::new(seed, policy);
        for _ in 0..4000 {
            world.request();
            // Sometimes the secondary store stands still for longer than the bound.
            let pace = world.rng.below(8);
            (0..pace).for_each(|_| world.sync());
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
    }
    assert!(
        replicated > 10_000 && refused > 100,
        "{replicated} {refused}"
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
    let mut tracker = Tracker::new(Policy::Combined.build(limits), limits.keys, end);
    let now = Duration::from_secs(1);
    tracker.begin(now, 1);
    let stored = Stored {
        version: 1,
        flags: 0,
        value: vec![1; 10],
        expires: false,
    };
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
