//! Random numbers that are the same in every run, and counts that the environment can raise.

use herdwick_check::Rng;

/// Random numbers, and choices by them.
#[derive(Clone, Debug)]
pub struct Chance(Rng);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.bits()
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0.index(limit)
    }

    /// Returns true with probability 1/n.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Returns `usual`, or the value of the variable `HERDWICK_<name>`.
#[expect(
    clippy::disallowed_methods,
    reason = "the one knob: millions take minutes"
)]
pub fn many(name: &str, usual: usize) -> usize {
    let asked = std::env::var(format!("HERDWICK_{name}")).ok();
    asked.map_or(usual, |asked| asked.parse().expect("a number"))
}
