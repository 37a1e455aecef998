//! A client's requests in order, generated before the measurement: packed steps and their key
//! hashes.

use herdwick_check::Rng;
use herdwick_request::{HashKey, KeyHash};

use super::{Dist, KeySpace, Mix, Workload, Zipf};

/// Steps of a cyclic trace: 16 MiB, long enough that no cache learns the cycle at 25 M requests per
/// second.
pub(crate) const TRACE_STEPS: usize = 4 << 20;

/// The bit of a step that marks a PUT; the others are the index of its key.
const PUT: u32 = 1 << 31;

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step(u32);

impl Step {
    /// Returns a read of key `index`.
    #[must_use]
    pub(crate) fn get(index: u32) -> Self {
        Self(index & !PUT)
    }

    /// Returns a write of key `index`.
    #[must_use]
    pub(crate) fn put(index: u32) -> Self {
        Self(index | PUT)
    }

    /// Returns the index of the key.
    #[inline]
    #[must_use]
    pub(crate) fn key(self) -> u32 {
        self.0 & !PUT
    }

    /// Returns whether it is a write.
    #[inline]
    #[must_use]
    pub(crate) fn is_put(self) -> bool {
        self.0 & PUT != 0
    }
}

/// The requests of one client, in order, generated beforehand; cyclic unless it is a fill or a
/// piece.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    steps: Vec<Step>,
    hashes: Vec<KeyHash>,
    hashed_by: Option<HashKey>,
    at: usize,
    cyclic: bool,
}

impl Trace {
    /// Generates `steps` requests of `mix` over `keys` keys, the same for the same seed; the trace
    /// repeats without end.
    #[must_use]
    pub(crate) fn new(mix: Mix, dist: Dist, keys: u64, steps: usize, seed: u64) -> Self {
        let zipf = match dist {
            Dist::Zipf(theta) => Some(Zipf::new(keys, theta)),
            Dist::Uniform => None,
        };
        let mut generator = Generator {
            rng: Rng::new(seed),
            zipf,
            keys,
            inserted: 0,
        };
        Self {
            // A cycle has a step.
            steps: generator.steps(mix, steps.max(1)),
            hashes: Vec::new(),
            hashed_by: None,
            at: 0,
            cyclic: true,
        }
    }

    /// Returns a trace that writes each of `keys` once and ends.
    #[must_use]
    pub(crate) fn fill(keys: std::ops::Range<u32>) -> Self {
        Self {
            steps: keys.map(Step::put).collect(),
            hashes: Vec::new(),
            hashed_by: None,
            at: 0,
            cyclic: false,
        }
    }

    /// Takes the next `count` requests out as a hashed trace that ends.
    #[must_use]
    pub(crate) fn piece(&mut self, count: usize, hash_key: &HashKey, space: &KeySpace) -> Self {
        let steps = std::iter::from_fn(|| self.take()).take(count);
        let mut piece = Self {
            steps: steps.collect(),
            hashes: Vec::new(),
            hashed_by: None,
            at: 0,
            cyclic: false,
        };
        piece.hash(hash_key, space);
        piece
    }

    /// Returns all requests of one cycle, in order.
    #[must_use]
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Computes the locator hash of every step, unless already done with this key.
    pub(crate) fn hash(&mut self, hash_key: &HashKey, space: &KeySpace) {
        if self.hashed_by == Some(*hash_key) {
            return;
        }
        let mut key = space.key_filler();
        let hash = |step: &Step| {
            space.key_digits(step.key(), &mut key);
            hash_key.hash(&key)
        };
        self.hashes = self.steps.iter().map(hash).collect();
        self.hashed_by = Some(*hash_key);
    }

    /// Takes the next request; `None` at the end of a trace that is not cyclic.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Step> {
        let step = self.peek()?;
        self.at += 1;
        Some(step)
    }

    /// Returns the next request with its locator hash, without taking it.
    ///
    /// # Panics
    /// On a trace without [`Trace::hash`].
    #[inline]
    pub(crate) fn peek_hashed(&mut self) -> Option<(Step, KeyHash)> {
        let step = self.peek()?;
        Some((step, self.hashes[self.at]))
    }

    /// Takes the request that was peeked at.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.at += 1;
    }

    /// Takes the next request with its locator hash; panics like [`Trace::peek_hashed`].
    #[inline]
    pub(crate) fn take_hashed(&mut self) -> Option<(Step, KeyHash)> {
        let taken = self.peek_hashed()?;
        self.advance();
        Some(taken)
    }

    /// Returns the next request, without taking it.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<Step> {
        if self.at == self.steps.len() && self.cyclic {
            self.at = 0;
        }
        self.steps.get(self.at).copied()
    }

    /// Returns the number of requests in one cycle.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }
}

struct Generator {
    rng: Rng,
    zipf: Option<Zipf>,
    keys: u64,
    inserted: u64,
}

impl Generator {
    fn steps(&mut self, mix: Mix, count: usize) -> Vec<Step> {
        // F may add two at a time.
        let mut steps = Vec::with_capacity(count + 1);
        while steps.len() < count {
            match mix {
                Mix::Ycsb(Workload::D) => steps.push(self.latest()),
                Mix::Ycsb(Workload::F) => self.modify(&mut steps),
                Mix::Ycsb(_) | Mix::GetShare(_) => steps.push(self.plain(mix.get_share())),
            }
        }
        steps
    }

    fn plain(&mut self, get_share: f64) -> Step {
        let key = self.key();
        if self.rng.unit() < get_share {
            Step::get(key)
        } else {
            Step::put(key)
        }
    }

    /// Generates a step of YCSB D: inserts append a new key, reads count back from the newest one.
    /// Inserts end when the number of keys has doubled.
    fn latest(&mut self) -> Step {
        let may_insert = self.inserted < self.keys;
        if may_insert && self.rng.unit() >= Mix::Ycsb(Workload::D).get_share() {
            self.inserted += 1;
            return Step::put((self.keys + self.inserted - 1) as u32);
        }
        let age = self.rank();
        Step::get((self.keys + self.inserted - 1 - age) as u32)
    }

    /// Generates a read, or a read and a write of the same key (YCSB F).
    fn modify(&mut self, steps: &mut Vec<Step>) {
        let key = self.key();
        steps.push(Step::get(key));
        if self.rng.unit() >= 0.5 {
            steps.push(Step::put(key));
        }
    }

    /// Draws a key, with the hot ones spread over all indices: 2654435761 is a prime above
    /// `KEYS_MAX`, so the multiplication permutes `0..keys`.
    fn key(&mut self) -> u32 {
        (self.rank() * 2_654_435_761 % self.keys) as u32
    }

    fn rank(&mut self) -> u64 {
        match &self.zipf {
            Some(zipf) => zipf.draw(&mut self.rng),
            None => self.rng.below(self.keys),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    fn steps(mix: Mix, dist: Dist, keys: u64, count: usize) -> Vec<Step> {
        let mut trace = Trace::new(mix, dist, keys, count, 7);
        (0..count).map(|_| trace.take().unwrap()).collect()
    }

    #[test]
    fn mixes_have_their_share_of_reads() {
        let all = [
            Workload::A,
            Workload::B,
            Workload::C,
            Workload::D,
            Workload::F,
        ];
        let ycsb = all.into_iter().map(Mix::Ycsb);
        for mix in ycsb.chain([Mix::GetShare(0.0), Mix::GetShare(0.25)]) {
            let steps = steps(mix, Dist::Zipf(0.99), 100_000, 200_000);
            let gets = steps.iter().filter(|step| !step.is_put()).count() as f64;
            // 0.004 is four sigma of 200,000 fair coins.
            assert!(
                (gets / 200_000.0 - mix.get_share()).abs() < 0.0045,
                "{mix:?}"
            );
        }
    }

    #[test]
    fn uniform_draws_pass_chi_square() {
        let (keys, draws) = (1000, 1_000_000);
        let mut counts = HashMap::new();
        for step in steps(Mix::Ycsb(Workload::C), Dist::Uniform, keys, draws) {
            *counts.entry(step.key()).or_insert(0.0) += 1.0;
        }
        let expected = draws as f64 / keys as f64;
        let chi: f64 = (0..keys as u32)
            .map(|key| counts.get(&key).copied().unwrap_or(0.0))
            .map(|count: f64| (count - expected).powi(2) / expected)
            .sum();
        // 999 degrees of freedom: mean 999, sigma 44.7; four sigma either side.
        assert!((820.0..1178.0).contains(&chi), "{chi}");
    }

    #[test]
    fn ranks_map_to_distinct_scattered_keys() {
        for keys in [1_u64, 2, 97, 4096, 1_000_000] {
            let spread: HashSet<u64> = (0..keys).map(|r| r * 2_654_435_761 % keys).collect();
            assert_eq!(spread.len() as u64, keys);
        }
        let steps = steps(Mix::Ycsb(Workload::C), Dist::Zipf(0.99), 1_000_000, 100_000);
        let low = steps.iter().filter(|step| step.key() < 500_000).count();
        assert!((30_000..70_000).contains(&low), "{low}");
    }

    #[test]
    fn workload_d_inserts_in_order_and_reads_what_exists() {
        let mut newest = 999;
        for step in steps(Mix::Ycsb(Workload::D), Dist::Zipf(0.99), 1000, 10_000) {
            if step.is_put() {
                newest += 1;
                assert_eq!(step.key(), newest);
            }
            assert!(step.key() <= newest && step.key() + 1000 > newest);
        }
        assert!(newest > 1000);
    }

    #[test]
    fn workload_f_writes_the_key_it_just_read() {
        let steps = steps(Mix::Ycsb(Workload::F), Dist::Uniform, 1000, 10_000);
        for pair in steps.windows(2).filter(|pair| pair[1].is_put()) {
            assert_eq!(pair[0], Step::get(pair[1].key()));
        }
    }

    #[test]
    fn trace_repeats_and_fill_ends() {
        let mut trace = Trace::new(Mix::GetShare(0.5), Dist::Uniform, 10, 3, 1);
        let first: Vec<_> = (0..3).map(|_| trace.take()).collect();
        let second: Vec<_> = (0..3).map(|_| trace.take()).collect();
        assert_eq!(first, second);

        let mut fill = Trace::fill(4..6);
        let taken: Vec<_> = std::iter::from_fn(|| fill.take()).collect();
        assert_eq!(taken, [Step::put(4), Step::put(5)]);
        assert_eq!(fill.take(), None);
    }

    #[test]
    fn trace_hashes_match_the_keys() {
        let (hash_key, space) = (HashKey([1, 2]), KeySpace::new(100, 16, 32).unwrap());
        let mut trace = Trace::fill(0..100);
        trace.hash(&hash_key, &space);
        let mut key = space.key_filler();
        while let Some((step, hash)) = trace.take_hashed() {
            space.key_digits(step.key(), &mut key);
            assert_eq!(hash, hash_key.hash(&key));
        }
    }
}
