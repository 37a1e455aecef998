//! Random numbers from a seed: the same sequence on every machine and after every update.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): 64 random bits in a few instructions, the same
/// sequence for the same seed on every machine. A crate of the registry does not promise that after an
/// update, and traces of the benchmark and schedules of faults must not change.
///
/// ```
/// let mut rng = herdwick_check::Rng::new(1_234_567);
/// assert_eq!(rng.bits(), 6_457_827_717_110_365_317);
/// assert!(rng.below(6) < 6 && rng.unit() < 1.0);
/// ```
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates the sequence of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number uniform in `0..n`, 0 if `n` is 0; for `n` below 2^32 the bias is below 2^-32.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        // Multiply and shift (Lemire): no division, unlike a remainder.
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Returns an index into `len` places.
    #[inline]
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns a number uniform in `[0, 1)`, with 53 bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The finaliser of SplitMix64: a permutation of the words, whose every bit depends on all bits.
#[inline]
#[must_use]
pub const fn mix(word: u64) -> u64 {
    let z = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
