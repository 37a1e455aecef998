//! The policies beside models that keep every request and every time, and the paper's claims at a smaller size;
//! at the paper's own by `cargo test --release -p herdwick-hkvs -- --ignored`.

use std::collections::HashMap;

use herdwick_check::Rng;
use herdwick_hkvs::{Limits, Policy, Popularity, Seen};
use herdwick_request::KeyHash;
use proptest::prelude::*;

/// A hash whose fingerprint is no other key's below 2^32, and whose bucket is few others'.
fn hash(key: u64) -> KeyHash {
    KeyHash(u64::from((key as u32 + 1).wrapping_mul(0x9e37_79b1)) << 16)
}

/// The paper's policy as section 4.5 describes it, and LRU.
struct Model {
    limits: Limits,
    lru: bool,
    /// The keys of reads that were counted; `None`: another request.
    requests: Vec<Option<u64>>,
    /// Popular keys and the number of their last read.
    popular: HashMap<u64, u64>,
    reads: u64,
}

impl Model {
    fn new(limits: Limits, lru: bool) -> Self {
        let (requests, popular) = (Vec::new(), HashMap::new());
        Self {
            limits,
            lru,
            requests,
            popular,
            reads: 0,
        }
    }

    /// Returns whether the key is popular, was admitted, and which one was evicted.
    fn read(&mut self, key: u64, may_admit: bool) -> (bool, bool, Option<u64>) {
        self.reads += 1;
        if let Some(last) = self.popular.get_mut(&key) {
            *last = self.reads;
            self.requests.push(None);
            return (true, false, None);
        }
        self.requests.push(Some(key));
        let from = self.requests.len().saturating_sub(self.limits.window);
        let counted = self.requests[from..]
            .iter()
            .filter(|other| **other == Some(key))
            .count();
        let enough = self.lru || counted >= self.limits.reads.into();
        if !enough || !may_admit {
            return (false, false, None);
        }
        let mut evicted = None;
        if self.popular.len() == self.limits.keys {
            evicted = self
                .popular
                .iter()
                .min_by_key(|(_, last)| **last)
                .map(|(key, _)| *key);
        }
        evicted.map(|key| self.popular.remove(&key));
        self.popular.insert(key, self.reads);
        (false, true, evicted)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Read(u64, bool),
    Other,
    Remove(u64),
    /// Removes the key that the policy names.
    Victim,
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        40 => (0_u64..24, prop::bool::weighted(0.9)).prop_map(|(key, may)| Step::Read(key, may)),
        4 => Just(Step::Other),
        2 => (0_u64..24).prop_map(Step::Remove),
        2 => Just(Step::Victim),
        1 => Just(Step::Clear),
    ];
    prop::collection::vec(step, 0..400)
}

fn limits() -> impl Strategy<Value = Limits> {
    (1_usize..9, 1_u8..5, 1_usize..60).prop_map(|(keys, reads, window)| Limits {
        keys,
        reads,
        window,
    })
}

proptest! {
    #[test]
    fn combined_and_lru_do_what_their_models_do(limits in limits(), lru: bool, steps in steps()) {
        let mut policy = if lru { Policy::Lru } else { Policy::Combined }.build(limits);
        let mut model = Model::new(limits, lru);
        for step in steps {
            match step {
                Step::Read(key, may_admit) => {
                    let seen = policy.read(hash(key), 10, may_admit);
                    let (popular, admitted, evicted) = model.read(key, may_admit);
                    prop_assert_eq!(matches!(seen, Seen::Popular { .. }), popular);
                    match seen {
                        Seen::Admitted { evicted: was, .. } => {
                            prop_assert!(admitted);
                            prop_assert_eq!(was, evicted.is_some());
                        }
                        _ => prop_assert!(!admitted),
                    }
                }
                Step::Other => {
                    policy.other();
                    model.requests.push(None);
                }
                Step::Remove(key) => {
                    if let Some(slot) = policy.find(hash(key)) {
                        policy.remove(slot);
                    }
                    model.popular.remove(&key);
                }
                Step::Victim => {
                    let least = model.popular.iter().min_by_key(|(_, last)| **last);
                    let least = least.map(|(key, _)| *key);
                    let victim = policy.next_victim(&|_| true);
                    prop_assert_eq!(victim, least.and_then(|key| policy.find(hash(key))));
                    victim.into_iter().for_each(|slot| policy.remove(slot));
                    least.map(|key| model.popular.remove(&key));
                }
                Step::Clear => {
                    policy.clear();
                    model.popular.clear();
                }
            }
            prop_assert_eq!(policy.len(), model.popular.len());
            for key in 0..24 {
                prop_assert_eq!(policy.find(hash(key)).is_some(), model.popular.contains_key(&key));
            }
        }
    }

    /// What every policy promises its caller, and what the two by samples promise besides.
    #[test]
    fn slots_are_of_one_key_each(limits in limits(), steps in steps(), which in 0_usize..4) {
        let mut policy = Policy::ALL[which].build(limits);
        let mut slots: HashMap<u32, u64> = HashMap::new();
        for step in steps {
            match step {
                Step::Read(key, may_admit) => {
                    let before = slots.clone();
                    match policy.read(hash(key), 10 + key as usize, may_admit) {
                        Seen::Popular { slot } => prop_assert_eq!(slots.get(&slot), Some(&key)),
                        Seen::Admitted { slot, evicted } => {
                            prop_assert!(may_admit && (slot as usize) < limits.keys);
                            let old = slots.insert(slot, key);
                            prop_assert_eq!(old.is_some(), evicted);
                            // A smaller item takes a larger one's place, never the other way round.
                            let small = Policy::ALL[which] == Policy::Small;
                            prop_assert!(!small || old.is_none_or(|old| key < old));
                        }
                        Seen::Unpopular => prop_assert!(before.values().all(|other| *other != key)),
                    }
                }
                Step::Other => policy.other(),
                Step::Remove(key) => {
                    if let Some(slot) = policy.find(hash(key)) {
                        policy.remove(slot);
                        prop_assert_eq!(slots.remove(&slot), Some(key));
                    }
                }
                Step::Victim => {
                    let victim = policy.next_victim(&|_| true);
                    prop_assert_eq!(victim.is_none(), slots.is_empty());
                    if let Some(slot) = victim {
                        policy.remove(slot);
                        prop_assert!(slots.remove(&slot).is_some());
                    }
                }
                Step::Clear => {
                    policy.clear();
                    slots.clear();
                }
            }
            prop_assert_eq!(policy.len(), slots.len());
            for (slot, key) in &slots {
                prop_assert_eq!(policy.find(hash(*key)), Some(*slot));
            }
        }
    }
}

/// Ranks by Zipf .99, by inversion of the sums of their weights.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(keys: u64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=keys).map(|rank| {
            sum += (rank as f64).powf(-0.99);
            sum
        });
        Self(sums.collect())
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        let at = rng.unit() * self.0.last().copied().unwrap_or(1.0);
        self.0.partition_point(|sum| *sum < at) as u64
    }
}

/// Reads, and how often the key was popular before, and another was evicted.
#[derive(Clone, Copy, Debug, Default)]
struct Seens {
    reads: u64,
    popular: u64,
    evicted: u64,
}

fn read(policy: &mut dyn Popularity, zipf: &Zipf, rng: &mut Rng, reads: u64) -> Seens {
    let mut seens = Seens {
        reads,
        ..Seens::default()
    };
    for _ in 0..reads {
        // A hash as the server's: all its bits depend on the key.
        let mut key = Rng::new(zipf.draw(rng));
        match policy.read(KeyHash(key.bits()), 48, true) {
            Seen::Popular { .. } => seens.popular += 1,
            Seen::Admitted { evicted, .. } => seens.evicted += u64::from(evicted),
            Seen::Unpopular => {}
        }
    }
    seens
}

/// Section 5.1 of the paper: 100,000 of 8 M keys draw 72 % of the reads, K = 4 and N = 800,000 "reduces the
/// eviction rate to 0". All sizes divided by `part`.
fn claims(part: u64) -> (Seens, Seens, Seens) {
    let paper = Limits::default();
    let limits = Limits {
        keys: paper.keys / part as usize,
        window: paper.window / part as usize,
        ..paper
    };
    assert!(Policy::Combined.bytes(limits) as u64 <= 15_000_000 / part + 1_000_000);
    let mut policy = Policy::Combined.build(limits);
    let (zipf, mut rng) = (Zipf::new(8_000_000 / part), Rng::new(7));
    let first = read(&mut *policy, &zipf, &mut rng, 8_000_000 / part);
    read(&mut *policy, &zipf, &mut rng, 92_000_000 / part);
    let last = read(&mut *policy, &zipf, &mut rng, 8_000_000 / part);
    let mut lru = Policy::Lru.build(limits);
    read(&mut *lru, &zipf, &mut rng, 8_000_000 / part);
    let lru = read(&mut *lru, &zipf, &mut rng, 8_000_000 / part);
    println!("first {first:?}\nlast {last:?}\nlru {lru:?}");
    (first, last, lru)
}

fn holds((first, last, lru): (Seens, Seens, Seens), least: f64) {
    let share = |part: u64, seens: Seens| part as f64 / seens.reads as f64;
    assert_eq!(first.evicted, 0);
    assert!(share(last.popular, last) >= least, "{last:?}");
    assert!(share(last.evicted, last) <= 0.001, "{last:?}");
    // What the window is for.
    assert!(lru.evicted > 50 * last.evicted, "{lru:?}");
}

#[test]
fn a_fortieth_of_the_papers_keys_are_offloaded_without_many_evictions() {
    // Of fewer keys the hottest eightieth draws less: 63 % at this size, 72 % at the paper's.
    holds(claims(40), 0.58);
}

#[test]
#[ignore = "takes a minute of a release build"]
fn the_papers_keys_are_offloaded_without_many_evictions() {
    holds(claims(1), 0.70);
}
