//! Random requests on the store and on the plain map of `herdwick-mica`'s tests give the same replies, but
//! for evictions, and every item that is missing was counted as one.

// The model has memcached's rules, whatever the store.
#[path = "../../../herdwick-mica/tests/common/mod.rs"]
mod common;
#[path = "../../../herdwick-mica/tests/model/map.rs"]
#[expect(dead_code, reason = "this store is not recovered from a file")]
mod map;

use common::{Answer, HASH_KEY};
use herdwick_check::{Rng, count};
use herdwick_request::{
    Arith, Clock, Delete, EXPTIME_PAST, Execute, Get, Mode, Op, Put, Reply, Request, Second, Status,
};
use herdwick_slab::{Growth, SlabConfig, Store};
use map::Model;

/// A size of store, and the work on it.
struct Plan {
    memory_bytes: usize,
    item_bytes_max: usize,
    keys: u64,
    value_bytes: u64,
    /// Whether anything expires or is flushed.
    mortal: bool,
    /// Whether a limit rises and falls.
    limited: bool,
    lossless: bool,
}

const ROOMY: Plan = Plan {
    memory_bytes: 2 << 20,
    item_bytes_max: 8 << 10,
    keys: 300,
    value_bytes: 400,
    mortal: true,
    limited: false,
    lossless: false,
};

const TIGHT: Plan = Plan {
    memory_bytes: 192 << 10,
    item_bytes_max: 2 << 10,
    keys: 3000,
    value_bytes: 700,
    mortal: false,
    ..ROOMY
};

const MORTAL: Plan = Plan {
    mortal: true,
    ..TIGHT
};

/// Slabs go from class to class all the time: there are few, of large chunks.
const LARGE: Plan = Plan {
    memory_bytes: 6 << 20,
    item_bytes_max: 1 << 20,
    keys: 40,
    value_bytes: (1 << 20) - 64,
    ..ROOMY
};

const LIMITED: Plan = Plan {
    limited: true,
    keys: 2000,
    value_bytes: 3000,
    ..ROOMY
};

const FULL: Plan = Plan {
    lossless: true,
    ..TIGHT
};

/// The store beside the model, in step.
struct Pair {
    store: Store,
    model: Model,
    plan: Plan,
    rng: Rng,
    second: u32,
    lost: u64,
    refused: u64,
}

const PROBE: Op<'static> = Op::Get(Get {
    touch: None,
    vivify: None,
    recache: None,
    touch_first: false,
    unaware: false,
    version: None,
    quiet_access: true,
});

impl Pair {
    fn new(plan: Plan, seed: u64) -> Self {
        let mut store = Store::new(&SlabConfig {
            memory_bytes: plan.memory_bytes,
            item_bytes_max: plan.item_bytes_max,
            hash_key: HASH_KEY,
            growth: Growth::default(),
        })
        .unwrap();
        if plan.lossless {
            store.evict_nothing();
        }
        Self {
            store,
            model: Model::default(),
            plan,
            rng: Rng::new(seed),
            second: 1,
            lost: 0,
            refused: 0,
        }
    }

    fn clock(&self) -> Clock {
        Clock {
            epoch_unix: 1_700_000_000,
            second: Second(self.second),
        }
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.rng.below(n) == 0
    }

    fn exptime(&mut self) -> u32 {
        match self.rng.below(9) {
            0 if self.plan.mortal => EXPTIME_PAST,
            1..5 if self.plan.mortal => self.rng.below(20) as u32 + 1,
            _ => 0,
        }
    }

    fn maybe_exptime(&mut self) -> Option<u32> {
        self.one_in(4).then(|| self.exptime())
    }

    fn version(&mut self) -> Option<u64> {
        self.one_in(4).then(|| self.rng.below(4))
    }

    fn value(&mut self) -> Vec<u8> {
        if self.one_in(4) {
            return self.rng.below(1000).to_string().into_bytes();
        }
        let most = if self.one_in(2) { 16 } else { 1 };
        let len = self.rng.below(self.plan.value_bytes / most) as usize;
        let seed = self.rng.below(256) as u8;
        let byte = |i: usize| (i % 251) as u8 ^ (i >> 10) as u8 ^ seed;
        (0..len).map(byte).collect()
    }

    fn put<'a>(&mut self, value: &'a mut Vec<u8>) -> Put<'a> {
        let mode = match self.rng.below(10) {
            0 => Mode::Add,
            1 => Mode::Replace,
            2 => Mode::Append,
            3 => Mode::Prepend,
            _ => Mode::Set,
        };
        if matches!(mode, Mode::Append | Mode::Prepend) {
            value.truncate(16);
        }
        Put {
            mode,
            value,
            flags: self.rng.below(5) as u32,
            exptime: self.exptime(),
            compare: self.version(),
            version: self.version(),
            invalidate: self.one_in(2),
            vivify: self.maybe_exptime(),
            staged: None,
        }
    }

    fn op<'a>(&mut self, value: &'a mut Vec<u8>) -> Op<'a> {
        match self.rng.below(11) {
            0..3 => Op::Get(Get {
                touch: self.maybe_exptime(),
                vivify: self.maybe_exptime(),
                recache: self.maybe_exptime(),
                touch_first: self.one_in(2),
                unaware: self.one_in(2),
                version: self.version(),
                quiet_access: self.one_in(2),
            }),
            3 => Op::Delete(Delete {
                compare: self.version(),
                version: self.version(),
                invalidate: self.one_in(2),
                exptime: self.maybe_exptime(),
                drop_value: self.one_in(2),
                flags: self.rng.below(3) as u32,
            }),
            4 => Op::Arith(Arith {
                decrement: self.one_in(2),
                delta: self.rng.below(200),
                vivify: self.maybe_exptime(),
                initial: self.rng.below(2000),
                touch: self.maybe_exptime(),
                compare: self.version(),
                version: self.version(),
            }),
            _ => Op::Put(self.put(value)),
        }
    }

    fn run(&mut self, key: &[u8], op: Op<'_>) -> Answer {
        let request = Request {
            hash: HASH_KEY.hash(key),
            key,
            op,
        };
        let (clock, mut answer) = (self.clock(), None);
        self.store
            .execute(clock, &[request], &mut |_, reply: &Reply<'_>| {
                answer = Some(Answer::from(reply));
            });
        answer.expect("a reply")
    }

    /// Compares a look at the item with the model; the store may have lost it.
    fn settle(&mut self, key: &[u8]) {
        let mut probe = self.run(key, PROBE);
        if probe.value.is_none() && self.model.holds(key) {
            self.model.lose(key);
            self.lost += 1;
        }
        // The model drops at once what the store drops when it meets it.
        (probe.expired, probe.flushed) = (false, false);
        let clock = self.clock();
        assert_eq!(probe, self.model.run(clock, key, &PROBE));
    }

    fn step(&mut self) {
        let key = format!("key {}", self.rng.below(self.plan.keys));
        let mut key = key.into_bytes();
        key.resize(key.len() + usize::from(key[key.len() - 1] % 23), b'k');
        self.settle(&key);
        let mut value = self.value();
        let op = self.op(&mut value);
        let evictions = self.store.counters().evictions;
        let answer = match op {
            Op::Put(put) if self.one_in(3) => self.run_staged(&key, &put),
            op => self.run(&key, op),
        };
        if answer.status == Status::OutOfMemory {
            self.refused += 1;
            assert!(self.plan.lossless, "{op:?}");
            if let Op::Put(put) = op
                && put.mode == Mode::Set
                && put.compare.is_none()
            {
                self.model.lose(&key);
            }
            return;
        }
        self.compare(&key, &op, &answer, evictions);
        self.pass_time();
    }

    /// Stages the value, with other work while it arrives.
    fn run_staged(&mut self, key: &[u8], put: &Put<'_>) -> Answer {
        let (now, len) = (Second(self.second), put.value.len());
        let staged = self.store.stage(now, key, len);
        let (front, back) = put.value.split_at(len / 2);
        self.store.append(staged, front);
        if self.one_in(4) {
            // Evicts, and moves slabs.
            for n in 0..self.rng.below(20) {
                let other = format!("other {}", n % 7).into_bytes();
                let value = self.value();
                let put = Put {
                    value: &value,
                    ..Put::default()
                };
                let answer = self.run(&other, Op::Put(put));
                if answer.status == Status::OutOfMemory {
                    self.model.lose(&other);
                } else {
                    let clock = self.clock();
                    self.model.run(clock, &other, &Op::Put(put));
                }
            }
            self.settle(key);
        }
        self.store.append(staged, back);
        if self.one_in(8) {
            self.store.abort(staged);
            let absent = Op::Put(Put {
                value: &[],
                staged: Some(staged),
                ..Put::default()
            });
            assert_eq!(self.run(key, absent).status, Status::BadKey);
            return self.run(key, Op::Put(*put));
        }
        let answer = self.run(
            key,
            Op::Put(Put {
                value: &[],
                staged: Some(staged),
                ..*put
            }),
        );
        // Its slab may have been needed.
        match answer.status {
            Status::OutOfMemory if !self.plan.lossless => {
                if put.mode == Mode::Set && put.compare.is_none() {
                    self.model.lose(key);
                }
                self.settle(key);
                self.run(key, Op::Put(*put))
            }
            _ => answer,
        }
    }

    fn compare(&mut self, key: &[u8], op: &Op<'_>, answer: &Answer, evictions: u64) {
        if let Op::Put(put) = op
            && matches!(put.mode, Mode::Append | Mode::Prepend)
            && 32 + key.len() + self.model.value_len(key) + put.value.len()
                > self.plan.item_bytes_max
        {
            assert_eq!(answer.status, Status::NotStored);
            return;
        }
        // The item that the look before found may have gone for the room that the request takes.
        let evicted = self.store.counters().evictions > evictions && self.model.holds(key);
        let before = evicted.then(|| self.model.clone());
        let clock = self.clock();
        let mut expected = self.model.run(clock, key, op);
        if let Some(before) = before
            && *answer != expected
        {
            self.model = before;
            self.model.lose(key);
            self.lost += 1;
            expected = self.model.run(clock, key, op);
        }
        assert_eq!(*answer, expected, "{op:?}");
    }

    fn pass_time(&mut self) {
        if self.one_in(20) {
            self.second += self.rng.below(3) as u32;
            self.model.tick(Second(self.second));
        }
        if self.plan.mortal && self.one_in(200) {
            let at = Second(self.second + self.rng.below(5) as u32);
            self.store.flush(Second(self.second), at);
            self.model.flush(Second(self.second), at);
        }
        if self.plan.limited {
            if self.one_in(500) {
                let most = self.store.unused_max() as u64;
                let unused = self.rng.below(most + 1);
                self.store.leave_unused(unused as usize);
            }
            self.store.adjust();
        }
        if self.one_in(50) {
            let bucket = self.rng.index(self.store.buckets());
            self.store.remove_expired(Second(self.second), bucket);
        }
    }

    fn finish(mut self) -> Self {
        for key in self.model.keys() {
            self.settle(&key);
        }
        let mut seen = 0;
        for bucket in 0..self.store.buckets() {
            self.store.scan(Second(self.second), bucket, |key, _, _| {
                assert!(self.model.holds(key), "{}", key.escape_ascii());
                seen += 1;
            });
        }
        assert_eq!(seen, self.model.keys().len());
        let counters = self.store.counters();
        assert!(self.lost <= counters.evictions, "{counters:?}");
        self
    }
}

fn work(plan: Plan, seed: u64, steps: u64) -> Pair {
    let mut pair = Pair::new(plan, seed);
    for _ in 0..count("HERDWICK_SLAB_OPERATIONS", steps) {
        pair.step();
    }
    pair.finish()
}

#[test]
fn roomy_store_loses_nothing() {
    let pair = work(ROOMY, 1, 60_000);
    assert_eq!(pair.lost, 0);
    assert_eq!(pair.store.counters().evictions, 0);
}

#[test]
fn tight_store_loses_what_it_counts() {
    let pair = work(TIGHT, 2, 60_000);
    let counters = pair.store.counters();
    assert!(
        counters.evictions > 1000 && counters.refreshed > 100,
        "{counters:?}"
    );
    assert!(counters.slabs_moved > 0, "{counters:?}");
}

#[test]
fn room_of_expired_and_flushed_items_is_used_again() {
    let pair = work(MORTAL, 6, 40_000);
    let counters = pair.store.counters();
    assert!(
        counters.reclaimed > 100 && counters.crawler_reclaimed > 10,
        "{counters:?}"
    );
}

#[test]
fn slabs_go_from_class_to_class() {
    let pair = work(LARGE, 3, 1_500);
    let counters = pair.store.counters();
    assert!(counters.slabs_moved > 100, "{counters:?}");
}

#[test]
fn limited_store_keeps_what_it_has_room_for() {
    let pair = work(LIMITED, 4, 40_000);
    let counters = pair.store.counters();
    assert!(
        counters.slabs_moved > 20 && counters.moved > 0,
        "{counters:?}"
    );
    assert_eq!(counters.returns_failed, 0);
}

#[test]
fn lossless_store_evicts_nothing_and_refuses() {
    let pair = work(FULL, 5, 40_000);
    assert_eq!((pair.lost, pair.store.counters().evictions), (0, 0));
    assert!(pair.refused > 100, "{}", pair.refused);
}
