//! The items of a run: 16-byte keys, and values that identify their key.

use herdwick_check::Rng;
use herdwick_request::{HashKey, KeyHash};

/// Of every system in a run.
// `herd` and `wick` in ASCII: any key would do.
pub(crate) const HASH_KEY: HashKey = HashKey([0x6865_7264, 0x7769_636b]);
/// A value begins with its key's number.
pub(crate) const VALUE_BYTES_MIN: usize = 8;

pub(crate) const KEY_BYTES: usize = 16;

/// Returns the key with this number: hexadecimal digits.
pub(crate) fn key(index: u32) -> [u8; KEY_BYTES] {
    let mut key = [b'0'; KEY_BYTES];
    for (place, digit) in key.iter_mut().rev().enumerate().take(8) {
        *digit = b"0123456789abcdef"[(index >> (4 * place) & 15) as usize];
    }
    key
}

pub(crate) fn hash(key: &[u8]) -> KeyHash {
    HASH_KEY.hash(key)
}

/// Writes the value of key `index` into `out`.
pub(crate) fn fill(index: u32, out: &mut [u8]) {
    out.fill(0x2a);
    out[..8].copy_from_slice(&u64::from(index).to_le_bytes());
}

/// Whether `value` is one of key `index`.
pub(crate) fn belongs(index: u32, value: &[u8]) -> bool {
    value.starts_with(&u64::from(index).to_le_bytes())
}

/// Draws of small numbers.
pub(crate) struct Draws(Rng);

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.bits()
    }

    /// Returns a number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(self.0.below(bound.into())).unwrap_or(bound - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_belong_to_their_keys() {
        let mut value = [0; 32];
        fill(7, &mut value);
        assert!(belongs(7, &value) && !belongs(8, &value) && !belongs(7, &value[..7]));
        assert_eq!(&key(0xab), b"00000000000000ab");
    }

    #[test]
    fn draws_stay_below_their_bound() {
        let mut draws = Draws::new(1);
        let mut seen = [0; 3];
        for _ in 0..3000 {
            seen[draws.below(3) as usize] += 1;
        }
        assert!(
            seen.iter().all(|count| (900..1100).contains(count)),
            "{seen:?}"
        );
    }
}
