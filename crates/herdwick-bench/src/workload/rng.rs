//! The random numbers of the benchmark: SplitMix64, the same sequence for the same seed.

/// SplitMix64 (Steele et al., OOPSLA'14): 64 random bits in a few instructions, the same sequence
/// for the same seed on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// Creates the sequence of `seed`.
    #[must_use]
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    #[inline]
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number uniform in `0..n`; for `n` below 2^32 the bias is below 2^-32.
    #[inline]
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        // Multiply and shift (Lemire): no division, unlike a remainder.
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a number uniform in `[0, 1)`, with 53 bits.
    #[inline]
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rng_matches_the_published_sequence() {
        // First outputs for seed 1234567 of Vigna's splitmix64.c, as Rosetta Code lists them.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.bits(), 6_457_827_717_110_365_317);
        assert_eq!(rng.bits(), 3_203_168_211_198_807_973);
        assert_eq!(rng.bits(), 9_817_491_932_198_370_423);
    }
}
