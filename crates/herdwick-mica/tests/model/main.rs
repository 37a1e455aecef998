//! Property tests: random requests on the store and on a plain map give the same replies, but for
//! evictions.

#[path = "../common/mod.rs"]
mod common;
mod map;
mod staged;

use std::fs::File;

use common::{Answer, HASH_KEY, nameless_file};
use herdwick_check::Rng;
use herdwick_layout::item::{Form, footprint};
use herdwick_mica::{Store, StoreConfig};
use herdwick_request::{
    Arith, Clock, Delete, EXPTIME_PAST, Execute, Get, Mode, Op, Put, Reply, Request, Second, Status,
};
use map::Model;
use proptest::{
    collection::vec,
    option,
    prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest},
    test_runner::{Config, TestCaseError},
};

/// A request that owns its bytes.
#[derive(Clone, Debug)]
struct Step {
    key: u16,
    op: StepOp,
    /// Ends the batch, and advances the time by this many seconds after it.
    ends: Option<u32>,
    /// After the batch, a flush this many seconds ahead.
    flush: Option<u32>,
}

#[derive(Clone)]
enum StepOp {
    Get(Get),
    Put(Vec<u8>, Put<'static>),
    Delete(Delete),
    Arith(Arith),
}

impl StepOp {
    fn op(&self) -> Op<'_> {
        match self {
            Self::Get(get) => Op::Get(*get),
            Self::Put(value, put) => Op::Put(Put { value, ..*put }),
            Self::Delete(delete) => Op::Delete(*delete),
            Self::Arith(arith) => Op::Arith(*arith),
        }
    }
}

/// Omits the value's bytes: a failing case of a hundred large values is printed and kept in a file
/// in full.
impl std::fmt::Debug for StepOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = |value: &[u8]| value[..value.len().min(8)].escape_ascii().to_string();
        match self {
            Self::Get(get) => get.fmt(f),
            Self::Put(value, put) => {
                write!(f, "{} bytes {}.. {put:?}", value.len(), head(value))
            }
            Self::Delete(delete) => delete.fmt(f),
            Self::Arith(arith) => arith.fmt(f),
        }
    }
}

/// A size of store, and the work on it.
#[derive(Clone, Copy, Debug)]
struct Plan {
    memory_bytes: usize,
    item_bytes_max: usize,
    keys: u16,
    value_bytes: usize,
    /// Whether anything expires or is flushed.
    mortal: bool,
}

/// The store beside the model, in step.
struct Pair {
    store: Store,
    config: StoreConfig,
    /// The file of the items, if they are to outlive the store.
    file: Option<File>,
    /// Evictions of the stores before this one.
    evictions: u64,
    model: Model,
    second: u32,
    /// Requests that the store refused.
    refusals: u64,
    /// Keys that the model holds and the store missed.
    lost: u64,
    /// The maximum bytes that the model's items would take.
    peak: usize,
    /// The bytes that reservations take beside them, at most.
    reserved: usize,
}

impl Pair {
    fn new(plan: &Plan) -> Self {
        let config = StoreConfig {
            memory_bytes: plan.memory_bytes,
            item_bytes_max: plan.item_bytes_max,
            hash_key: HASH_KEY,
        };
        Self {
            store: Store::new(&config).unwrap(),
            config,
            file: None,
            evictions: 0,
            model: Model::default(),
            second: 1,
            refusals: 0,
            lost: 0,
            peak: 0,
            reserved: 0,
        }
    }

    /// Creates a pair with its items in a file.
    fn lasting(plan: &Plan) -> Self {
        let pair = Self::new(plan);
        let file = nameless_file(Store::file_bytes(&pair.config).unwrap());
        let (store, recovered) = Store::in_file(&pair.config, &file, 0, true).unwrap();
        assert_eq!(recovered, None, "zeros are no store");
        Self {
            store,
            file: Some(file),
            ..pair
        }
    }

    /// Creates a pair, with its items in a file if it `lasts`.
    fn of(plan: &Plan, lasts: bool) -> Self {
        if lasts {
            Self::lasting(plan)
        } else {
            Self::new(plan)
        }
    }

    /// Replaces the store by one recovered from the file, without ending the old one: as after a
    /// kill.
    fn restart(&mut self) -> Result<(), TestCaseError> {
        let file = self.file.as_ref().expect("a pair that lasts");
        let before = self.store.counters();
        let (store, recovered) = Store::in_file(&self.config, file, 0, true).unwrap();
        let recovered = recovered.expect("the file has a store");
        let after = store.counters();
        prop_assert_eq!(recovered.damaged, 0);
        prop_assert_eq!(recovered.items, after.items);
        prop_assert!(after.items + after.evictions <= before.items);
        self.store = store;
        self.evictions += before.evictions;
        self.model.restart();
        Ok(())
    }

    /// As [`Self::work`], with a restart after each `every` steps.
    fn work_and_restart(&mut self, steps: &[Step], every: usize) -> Result<(), TestCaseError> {
        for steps in steps.chunks(every) {
            self.work(steps)?;
            self.restart()?;
        }
        Ok(())
    }

    fn clock(&self) -> Clock {
        Clock {
            epoch_unix: 1_700_000_000,
            second: Second(self.second),
        }
    }

    fn work(&mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        for batch in steps.split_inclusive(|step| step.ends.is_some()) {
            self.batch(batch)?;
            let last = batch.last().expect("no batch is empty");
            self.second += last.ends.unwrap_or(0);
            if let Some(delay) = last.flush {
                let (now, at) = (Second(self.second), Second(self.second + delay));
                self.store.flush(now, at);
                self.model.flush(now, at);
            }
        }
        Ok(())
    }

    /// Executes the steps in one batch, with a probe before each.
    fn batch(&mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        let keys: Vec<Vec<u8>> = steps.iter().map(|step| key(step.key)).collect();
        let ops = steps.iter().zip(&keys);
        let requests: Vec<Request<'_>> = ops
            .flat_map(|(step, key)| [request(key, PROBE), request(key, step.op.op())])
            .collect();
        let evictions = self.store.counters().evictions;
        let answers = self.run(&requests);
        self.model.tick(Second(self.second));
        for (pair, step) in answers.chunks(2).zip(steps) {
            let key = key(step.key);
            self.settle(&key, &pair[0])?;
            if pair[1].status == Status::OutOfMemory {
                self.refused(&key, step)?;
                continue;
            }
            self.compare(&key, &step.op.op(), &pair[1], evictions)?;
            self.peak = self.peak.max(self.model.bytes());
        }
        Ok(())
    }

    /// Runs `op` on the model and compares the replies. The item that the probe before it found may
    /// have been evicted since, for the room that the request takes: a loss like others,
    /// if there were evictions beyond `evictions`.
    fn compare(
        &mut self,
        key: &[u8],
        op: &Op<'_>,
        answer: &Answer,
        evictions: u64,
    ) -> Result<(), TestCaseError> {
        if self.joins_too_much(key, op) && answer.status == Status::NotStored {
            return Ok(());
        }
        let evicted = self.store.counters().evictions > evictions && self.model.holds(key);
        let before = evicted.then(|| self.model.clone());
        let mut expected = self.model.run(self.clock(), key, op);
        if let Some(before) = before
            && *answer != expected
        {
            self.model = before;
            self.model.lose(key);
            self.lost += 1;
            expected = self.model.run(self.clock(), key, op);
        }
        prop_assert_eq!(answer, &expected, "{:?}", op);
        Ok(())
    }

    /// Returns whether a value would become longer than the store's largest item; the model has no
    /// such limit.
    fn joins_too_much(&self, key: &[u8], op: &Op<'_>) -> bool {
        let Op::Put(put) = op else { return false };
        matches!(put.mode, Mode::Append | Mode::Prepend)
            && footprint(
                Form::Full,
                key.len(),
                self.model.value_len(key) + put.value.len(),
            ) > self.config.item_bytes_max
    }

    /// Checks a refusal: a plain Set loses the old value, and there is little room.
    fn refused(&mut self, key: &[u8], step: &Step) -> Result<(), TestCaseError> {
        self.refusals += 1;
        let stored = match &step.op {
            StepOp::Put(value, _) => 32 + key.len() + 600 + value.len(),
            _ => 64 + key.len(),
        };
        let room = self.config.memory_bytes * 8 / 9 * 17 / 20;
        // Segments are 4 KiB here: a few are spare, and a few are being filled. For an item of many
        // of them, free ones have to be adjacent.
        let largest = self.config.item_bytes_max;
        let spare = if largest > 4 << 10 {
            6 * largest + (12 << 12)
        } else {
            3 * largest + (12 << 12)
        };
        prop_assert!(
            self.model.bytes() + self.reserved + stored + spare > room,
            "{}",
            self.model.bytes()
        );
        if let StepOp::Put(
            _,
            Put {
                mode: Mode::Set,
                compare: None,
                ..
            },
        ) = &step.op
            && self.model.holds(key)
        {
            self.model.lose(key);
        }
        Ok(())
    }

    /// Removes a key from the model that the store has lost, and compares the probe with the rest.
    fn settle(&mut self, key: &[u8], probe: &Answer) -> Result<(), TestCaseError> {
        if probe.value.is_none() && self.model.holds(key) {
            prop_assert!(!probe.expired && !probe.flushed);
            self.model.lose(key);
            self.lost += 1;
        }
        let mut probe = probe.clone();
        // The model drops at once what the store drops when it meets it.
        probe.expired = false;
        probe.flushed = false;
        prop_assert_eq!(probe, self.model.run(self.clock(), key, &PROBE));
        Ok(())
    }

    /// Reads every key of the model, and checks the counters.
    fn audit(&mut self) -> Result<(), TestCaseError> {
        self.model.tick(Second(self.second));
        for key in self.model.keys() {
            let answers = self.run(&[request(&key, PROBE)]);
            self.settle(&key, &answers[0])?;
        }
        Ok(())
    }

    fn run(&mut self, requests: &[Request<'_>]) -> Vec<Answer> {
        let mut answers = Vec::new();
        let clock = self.clock();
        self.store
            .execute(clock, requests, &mut |i, reply: &Reply<'_>| {
                assert_eq!(i, answers.len());
                answers.push(Answer::from(reply));
            });
        assert_eq!(answers.len(), requests.len());
        answers
    }
}

/// A get that changes nothing, except that it may win a stale item.
const PROBE: Op<'static> = Op::Get(Get {
    touch: None,
    vivify: None,
    recache: None,
    touch_first: false,
    unaware: false,
    version: None,
    quiet_access: true,
});

fn request<'a>(key: &'a [u8], op: Op<'a>) -> Request<'a> {
    Request {
        hash: HASH_KEY.hash(key),
        key,
        op,
    }
}

/// Returns key `n`; the lengths vary.
fn key(n: u16) -> Vec<u8> {
    let mut key = format!("key {n} ").into_bytes();
    key.resize(key.len() + usize::from(n % 23), b'k');
    key
}

/// Returns a value in which a lost byte shows at its position.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i % 251) as u8 ^ (i >> 10) as u8 ^ seed)
        .collect()
}

fn exptime(mortal: bool) -> impl Strategy<Value = u32> {
    if mortal {
        prop_oneof![4 => Just(0), 4 => 1..20u32, 1 => Just(EXPTIME_PAST)].boxed()
    } else {
        Just(0).boxed()
    }
}

fn version() -> impl Strategy<Value = Option<u64>> {
    option::weighted(0.3, 0u64..4)
}

fn get(mortal: bool) -> impl Strategy<Value = StepOp> {
    let exptime = || option::weighted(0.2, exptime(mortal));
    (
        (exptime(), any::<bool>(), any::<bool>()),
        exptime(),
        exptime(),
        version(),
        any::<bool>(),
    )
        .prop_map(
            |((touch, touch_first, unaware), vivify, recache, version, quiet_access)| {
                StepOp::Get(Get {
                    touch,
                    vivify,
                    recache,
                    touch_first,
                    unaware,
                    version,
                    quiet_access,
                })
            },
        )
}

fn put(mortal: bool, value_bytes: usize) -> impl Strategy<Value = StepOp> {
    let mode = prop_oneof![
        6 => Just(Mode::Set),
        1 => Just(Mode::Add),
        1 => Just(Mode::Replace),
        1 => Just(Mode::Append),
        1 => Just(Mode::Prepend),
    ];
    // Among values of many segments, small ones.
    let most = move |part: usize| (value_bytes / part).max(1);
    let small = if value_bytes > 20_000 { 16 } else { 1 };
    let len = prop_oneof![0..most(1), 0..most(small)];
    let value = prop_oneof![
        3 => (len, any::<u8>()).prop_map(|(len, seed)| pattern(len, seed)),
        1 => any::<u64>().prop_map(|n| (n % 1000).to_string().into_bytes()),
    ];
    let rest = (any::<u32>(), exptime(mortal), any::<bool>());
    let viv = option::weighted(0.3, exptime(mortal));
    (mode, value, rest, version(), version(), viv).prop_map(
        |(mode, mut value, (flags, exptime, invalidate), compare, version, vivify)| {
            if matches!(mode, Mode::Append | Mode::Prepend) {
                value.truncate(16);
            }
            let put = Put {
                mode,
                value: &[],
                flags,
                exptime,
                compare,
                version,
                invalidate,
                vivify,
                staged: None,
            };
            StepOp::Put(value, put)
        },
    )
}

fn delete(mortal: bool) -> impl Strategy<Value = StepOp> {
    let exptime = option::weighted(0.3, exptime(mortal));
    let kept = (any::<bool>(), 0u32..3);
    (version(), version(), any::<bool>(), exptime, kept).prop_map(
        |(compare, version, invalidate, exptime, (drop_value, flags))| {
            StepOp::Delete(Delete {
                compare,
                version,
                invalidate,
                exptime,
                drop_value,
                flags,
            })
        },
    )
}

fn arith(mortal: bool) -> impl Strategy<Value = StepOp> {
    let delta = prop_oneof![0u64..200, any::<u64>()];
    let exptime = || option::weighted(0.3, exptime(mortal));
    let numbers = (any::<bool>(), delta, 0u64..2000);
    (numbers, exptime(), exptime(), version(), version()).prop_map(
        |((decrement, delta, initial), vivify, touch, compare, version)| {
            StepOp::Arith(Arith {
                decrement,
                delta,
                vivify,
                initial,
                touch,
                compare,
                version,
            })
        },
    )
}

fn steps(plan: Plan, count: usize) -> impl Strategy<Value = Vec<Step>> {
    let op = prop_oneof![
        3 => get(plan.mortal),
        6 => put(plan.mortal, plan.value_bytes),
        1 => delete(plan.mortal),
        1 => arith(plan.mortal),
    ];
    let flush = if plan.mortal {
        option::weighted(0.01, 0u32..5).boxed()
    } else {
        Just(None).boxed()
    };
    let step = (0..plan.keys, op, option::weighted(0.05, 0u32..3), flush);
    let step = step.prop_map(|(key, op, ends, flush)| Step {
        key,
        op,
        ends: ends.or_else(|| flush.map(|_| 0)),
        flush,
    });
    vec(step, count / 2..count)
}

/// A store less than half full, with churn.
const ROOMY: Plan = Plan {
    memory_bytes: 216 << 10,
    item_bytes_max: 4 << 10,
    keys: 300,
    value_bytes: 400,
    mortal: false,
};

/// A store that is too small for a tenth of its keys, and cleans all the time.
const TIGHT: Plan = Plan {
    memory_bytes: 160 << 10,
    item_bytes_max: 1 << 10,
    keys: 3200,
    value_bytes: 600,
    mortal: false,
};

/// Far more items than fit, for a store that evicts nothing.
const FULL: Plan = Plan {
    memory_bytes: 184 << 10,
    item_bytes_max: 1 << 10,
    keys: 3200,
    value_bytes: 600,
    mortal: false,
};

/// A store larger than what a step towards a limit takes.
const LIMITED: Plan = Plan {
    memory_bytes: 2 << 20,
    item_bytes_max: 16 << 10,
    keys: 1000,
    value_bytes: 8000,
    mortal: false,
};

/// As [`FULL`], with items of up to six segments.
const FULL_OF_RUNS: Plan = Plan {
    memory_bytes: 1 << 20,
    item_bytes_max: 24 << 10,
    keys: 400,
    value_bytes: 23 << 10,
    mortal: false,
};

/// As [`LIMITED`], with items of up to six segments.
const LIMITED_WITH_RUNS: Plan = Plan {
    item_bytes_max: 48 << 10,
    keys: 400,
    value_bytes: 47 << 10,
    ..LIMITED
};

/// Values of up to a megabyte.
const LARGE: Plan = Plan {
    memory_bytes: 6 << 20,
    item_bytes_max: 1 << 20,
    keys: 12,
    value_bytes: (1 << 20) - 64,
    mortal: false,
};

/// A store whose index grows fourfold.
const GROWING: Plan = Plan {
    memory_bytes: 2 << 20,
    item_bytes_max: 32 << 10,
    keys: u16::MAX,
    value_bytes: 30_000,
    mortal: false,
};

/// Values of up to so many bytes, of so many keys, and other requests.
fn churn(rng: &mut Rng, value_bytes: usize, keys: u64, count: usize) -> Vec<Step> {
    let step = |n| {
        let value = pattern(rng.index(value_bytes), n as u8);
        let op = match rng.below(8) {
            0 => StepOp::Delete(Delete::default()),
            1..3 => StepOp::Get(Get::default()),
            _ => StepOp::Put(value, Put::default()),
        };
        Step {
            key: rng.below(keys) as u16,
            op,
            ends: None,
            flush: None,
        }
    };
    (0..count).map(step).collect()
}

/// The index is small for large values, grows with small ones while segments are cleaned for it, shrinks again when
/// they are gone, and each item is found in every step of that.
#[test]
fn index_grows_and_shrinks_and_loses_nothing_that_is_not_counted() {
    let mut rng = Rng::new(23);
    let mut pair = Pair::new(&GROWING);
    let least = pair.store.slots();
    let mut slots = least;
    let small = (20, 20_000, 45_000);
    let large = (GROWING.value_bytes, 20_000, 1_500);
    for (value_bytes, keys, count) in [
        (GROWING.value_bytes, 2_000, 600),
        (3_000, 3_000, 3_000),
        small,
        large,
        small,
        large,
    ] {
        for _ in 0..10 {
            let steps = churn(&mut rng, value_bytes, keys, count / 10);
            pair.work(&steps).unwrap();
            let grows = (value_bytes, keys) != (large.0, large.1);
            assert!(if grows {
                pair.store.slots() >= slots
            } else {
                pair.store.slots() <= slots
            });
            slots = pair.store.slots();
            if value_bytes == GROWING.value_bytes && keys == 2_000 {
                assert_eq!(slots, least, "for large values");
            }
        }
        audit_growing(&mut pair);
        if value_bytes == small.0 {
            assert_eq!(slots, 4 * least);
            delete_all_but_a_few(&mut pair, &mut slots);
            audit_growing(&mut pair);
            assert_eq!(slots, least);
        }
    }
    let counters = pair.store.counters();
    assert!(counters.evictions > 1_000, "{counters:?}");
    assert!(
        counters.index_evictions < counters.evictions / 50,
        "{counters:?}"
    );
    assert_eq!(counters.returns_failed, 0);
}

/// Deletes most items, in no order, while others are stored; the index never grows.
fn delete_all_but_a_few(pair: &mut Pair, slots: &mut usize) {
    for n in 0..20 {
        let delete = |key: u64| Step {
            key: (key * 7_919 % 20_000) as u16,
            op: StepOp::Delete(Delete::default()),
            ends: None,
            flush: None,
        };
        let put = |key| Step {
            op: StepOp::Put(pattern(20, key as u8), Put::default()),
            ..delete(key)
        };
        let deletes = (n * 1_000..(n + 1) * 1_000).filter(|key| key % 20 != 0);
        let steps: Vec<Step> = deletes
            .flat_map(|key| [Some(delete(key)), (key % 50 == 1).then(|| put(key))])
            .flatten()
            .collect();
        pair.work(&steps).unwrap();
        assert!(pair.store.slots() <= *slots);
        *slots = pair.store.slots();
    }
}

/// Checks that a store has lost what it counted as evicted, and that a walk finds all others.
fn audit_growing(pair: &mut Pair) {
    pair.audit().unwrap();
    let counters = pair.store.counters();
    assert_eq!(pair.lost, counters.evictions);
    assert_eq!(counters.items, pair.model.keys().len() as u64);
    let (now, mut items) = (Second(pair.second), 0);
    for bucket in 0..pair.store.buckets() {
        pair.store.scan(now, bucket, |_, _, _| items += 1);
    }
    assert_eq!(counters.items, items);
}

#[test]
fn store_matches_the_model_while_it_turns_over_a_hundred_times() {
    let mut pair = Pair::new(&TIGHT);
    let laps = 100;
    let mut stored = 0;
    let mut n = 0usize;
    while stored < laps * TIGHT.memory_bytes {
        let steps: Vec<Step> = (0..13)
            .map(|_| {
                n += 1;
                let value = pattern(n * 7919 % TIGHT.value_bytes, n as u8);
                stored += value.len();
                Step {
                    key: (n * n % 1201) as u16,
                    op: StepOp::Put(value, Put::default()),
                    ends: None,
                    flush: None,
                }
            })
            .collect();
        pair.work(&steps).unwrap();
    }
    pair.audit().unwrap();
    let counters = pair.store.counters();
    assert!(counters.evictions > 100 * laps as u64, "{counters:?}");
    assert_eq!(pair.lost, counters.evictions);
}

/// A number padded with more spaces than a width in `format!` can express (16 bits).
#[test]
fn padded_number_in_a_long_value_keeps_its_length() {
    let mut pair = Pair::new(&LARGE);
    let mut value = vec![b' '; 100_000];
    value[0] = b'7';
    let step = |op| Step {
        key: 1,
        op,
        ends: Some(0),
        flush: None,
    };
    let arith = Arith {
        delta: 5,
        ..Arith::default()
    };
    let put = StepOp::Put(value, Put::default());
    pair.work(&[step(put), step(StepOp::Arith(arith))]).unwrap();
    pair.audit().unwrap();
    assert_eq!(pair.lost, 0);
}

/// Fills a store that evicts nothing, and restarts it if it is to last.
fn evict_nothing(plan: &Plan, steps: &[Step], restart: bool) -> Result<(), TestCaseError> {
    let mut pair = Pair::of(plan, restart);
    pair.store.evict_nothing();
    for steps in steps.chunks(500) {
        pair.work(steps)?;
        pair.audit()?;
        if restart {
            pair.restart()?;
            pair.store.evict_nothing();
        }
    }
    prop_assert_eq!((pair.lost, pair.store.counters().evictions), (0, 0));
    prop_assert!(pair.refusals > 0 || steps.len() < 2000);
    Ok(())
}

/// Limits, each with the number of steps towards it that are taken before the next requests.
fn limits(plan: Plan) -> impl Strategy<Value = Vec<(usize, usize)>> {
    vec((0..plan.memory_bytes * 2, 0usize..8), 20)
}

fn move_limit(
    plan: &Plan,
    steps: &[Step],
    limits: Vec<(usize, usize)>,
) -> Result<(), TestCaseError> {
    let mut pair = Pair::new(plan);
    for (some, (unused, turns)) in steps.chunks(150).zip(limits) {
        pair.store.leave_unused(unused);
        // Requests come between the steps towards a limit, and before it is reached.
        for few in some.chunks(10).take(turns) {
            pair.store.adjust();
            pair.work(few)?;
        }
        pair.work(some)?;
        pair.audit()?;
        let unused = unused.min(pair.store.unused_max());
        while pair.store.adjust() {}
        let used = pair.store.counters().bytes as usize;
        prop_assert!(used <= plan.memory_bytes - unused, "{} of {}", used, unused);
    }
    pair.store.leave_unused(0);
    pair.work(steps)?;
    pair.audit()?;
    prop_assert_eq!(pair.lost, pair.store.counters().evictions);
    prop_assert_eq!(pair.store.counters().returns_failed, 0);
    Ok(())
}

proptest! {
    #![proptest_config(Config { cases: 12, ..Config::default() })]

    #[test]
    fn half_full_store_has_no_misses(steps in steps(ROOMY, 3000)) {
        let mut pair = Pair::new(&ROOMY);
        pair.work(&steps)?;
        pair.audit()?;
        prop_assert!(pair.peak < ROOMY.memory_bytes / 2, "{} is no test of half full", pair.peak);
        prop_assert_eq!((pair.lost, pair.store.counters().evictions), (0, 0));
    }

    #[test]
    fn every_miss_is_a_counted_eviction_and_vice_versa(steps in steps(TIGHT, 3000)) {
        let mut pair = Pair::new(&TIGHT);
        pair.work(&steps)?;
        pair.audit()?;
        let counters = pair.store.counters();
        prop_assert_eq!(pair.lost, counters.evictions);
        prop_assert_eq!(counters.items, pair.model.keys().len() as u64);
        let (now, mut bytes) = (Second(pair.second), 0);
        for bucket in 0..pair.store.buckets() {
            pair.store.scan(now, bucket, |_, _, len| bytes += len);
        }
        prop_assert_eq!(counters.bytes, bytes as u64);
        prop_assert!(bytes <= pair.model.bytes());
    }

    #[test]
    fn restart_recovers_exactly_the_stored_items(
        steps in steps(Plan { mortal: true, ..ROOMY }, 3000),
        every in 1usize..300,
    ) {
        let mut pair = Pair::lasting(&Plan { mortal: true, ..ROOMY });
        pair.work_and_restart(&steps, every)?;
        pair.audit()?;
        prop_assert_eq!((pair.lost, pair.store.counters().evictions), (0, 0));
    }

    #[test]
    fn restart_loses_only_evicted_items(
        steps in steps(TIGHT, 3000),
        every in 1usize..300,
    ) {
        let mut pair = Pair::lasting(&TIGHT);
        pair.work_and_restart(&steps, every)?;
        pair.audit()?;
        prop_assert_eq!(pair.lost, pair.evictions + pair.store.counters().evictions);
    }

    #[test]
    fn lossless_store_loses_nothing_and_refuses_when_full(
        steps in steps(FULL, 3000),
        restart in any::<bool>(),
    ) {
        evict_nothing(&FULL, &steps, restart)?;
    }

    #[test]
    fn lossless_store_makes_room_for_runs_of_segments(
        steps in steps(FULL_OF_RUNS, 1000),
        restart in any::<bool>(),
    ) {
        evict_nothing(&FULL_OF_RUNS, &steps, restart)?;
    }

    #[test]
    fn a_limit_that_moves_loses_nothing_but_what_is_evicted(
        steps in steps(LIMITED, 3000),
        limits in limits(LIMITED),
    ) {
        move_limit(&LIMITED, &steps, limits)?;
    }

    #[test]
    fn a_limit_that_moves_leaves_room_for_runs_of_segments(
        steps in steps(LIMITED_WITH_RUNS, 1500),
        limits in limits(LIMITED_WITH_RUNS),
    ) {
        move_limit(&LIMITED_WITH_RUNS, &steps, limits)?;
    }

    #[test]
    fn large_values_are_returned_whole(steps in steps(LARGE, 150)) {
        let mut pair = Pair::new(&LARGE);
        pair.work(&steps)?;
        pair.audit()?;
        prop_assert_eq!(pair.lost, pair.store.counters().evictions);
    }

    #[test]
    fn expired_and_flushed_items_are_gone_at_their_second(
        steps in steps(Plan { mortal: true, ..TIGHT }, 3000),
    ) {
        let mut pair = Pair::new(&Plan { mortal: true, ..TIGHT });
        pair.work(&steps)?;
        pair.audit()?;
        prop_assert!(pair.lost <= pair.store.counters().evictions);
    }
}
