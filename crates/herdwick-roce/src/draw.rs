//! Random numbers of an engine, drawn from one seed: queue pair and sequence numbers, secrets,
//! rkeys.

use core::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::Secret;

/// A generator whose numbers cannot be predicted without the seed, even from earlier ones: SipHash
/// of a counter.
pub(crate) struct Draw {
    seed: [u8; 16],
    drawn: u64,
    rkeys: u32,
}

/// Domain separation of the hash: numbers of different uses are independent.
const NUMBERS: u64 = 0;
const RKEYS: u64 = 1;

impl Draw {
    pub(crate) fn new(seed: [u8; 16]) -> Self {
        Self {
            seed,
            drawn: 0,
            rkeys: 0,
        }
    }

    /// Returns 32 random bits.
    pub(crate) fn bits(&mut self) -> u32 {
        self.drawn += 1;
        self.hash(NUMBERS, self.drawn)
    }

    /// Returns 128 random bits.
    pub(crate) fn secret(&mut self) -> Secret {
        let mut secret = [0; 16];
        for word in secret.chunks_exact_mut(4) {
            word.copy_from_slice(&self.bits().to_le_bytes());
        }
        Secret(secret)
    }

    /// Returns 32 random bits that do not repeat before all 2^32 values were drawn: a counter
    /// through a Feistel network of four rounds, which is a permutation.
    pub(crate) fn rkey(&mut self) -> u32 {
        self.rkeys = self.rkeys.wrapping_add(1);
        let (mut left, mut right) = (self.rkeys >> 16, self.rkeys & 0xffff);
        // Four rounds make a strong pseudorandom permutation of a random function (Luby and
        // Rackoff).
        for round in 0..4 {
            // Each round has a domain of its own, 1 to 4; `NUMBERS` is 0.
            let mixed = self.hash(RKEYS + round, right.into()) & 0xffff;
            (left, right) = (right, left ^ mixed);
        }
        left << 16 | right
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "half of the hash is enough"
    )]
    fn hash(&self, domain: u64, value: u64) -> u32 {
        let mut hasher = SipHasher13::new_with_key(&self.seed);
        hasher.write_u64(domain);
        hasher.write_u64(value);
        hasher.finish() as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Draw;

    #[test]
    fn rkeys_never_repeat() {
        let mut draw = Draw::new([7; 16]);
        let drawn: BTreeSet<u32> = (0..100_000).map(|_| draw.rkey()).collect();
        assert_eq!(drawn.len(), 100_000);
    }
}
