//! Pseudo-random numbers that are the same in every run, and counts that the environment can raise.

/// xorshift64*.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit
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
