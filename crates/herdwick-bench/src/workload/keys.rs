//! Keys and values of fixed sizes, computed from an index, so that every value can be checked
//! without storing it.

use herdwick_request::{ITEM_BYTES_MAX, KEY_BYTES_MAX};

/// Most keys: a step holds its key in 31 bits, and workload D inserts at most as many again.
pub(crate) const KEYS_MAX: u64 = 1 << 30;

/// Keys and values of fixed sizes, computed from an index: nothing has to be stored, and every
/// value that is returned can be checked.
///
/// Key `i` is `i` in hexadecimal behind a filler of `k`. Its value begins with a word of `{i,
/// version}`, and all other words are derived from that one. So a value of another key, a torn
/// value, and a mix of two versions all fail the check. Values below 8 bytes carry no version.
#[derive(Clone, Copy, Debug)]
pub struct KeySpace {
    key_size: usize,
    value_size: usize,
}

/// Invalid sizes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeySpaceError {
    /// A key length that memcached does not allow.
    #[error("a key has 1 to {KEY_BYTES_MAX} bytes, not {0}")]
    KeySize(usize),
    /// A value too large for a store with default limits.
    #[error("a value has at most {max} bytes, not {0}", max = KeySpace::VALUE_MAX)]
    ValueSize(usize),
    /// A key length too short for the keys to be distinct.
    #[error("{keys} keys of {key_size} bytes cannot all differ: raise --key-size")]
    KeyTooShort {
        /// Number of keys.
        keys: u64,
        /// Bytes of a key.
        key_size: usize,
    },
    /// Zero keys, or more than 2^30: an index has 31 bits, and inserts may double the keys.
    #[error("1 to {KEYS_MAX} keys, not {0}")]
    Keys(u64),
}

/// Hexadecimal digits of an index.
const DIGITS: usize = 8;

impl KeySpace {
    /// The largest value that fits an item beside its key and header.
    pub const VALUE_MAX: usize = ITEM_BYTES_MAX - 1024;

    /// Creates the space of `keys` keys of `key_size` bytes with values of `value_size`.
    ///
    /// # Errors
    /// Sizes that no store accepts, or keys too short to be distinct.
    pub fn new(keys: u64, key_size: usize, value_size: usize) -> Result<Self, KeySpaceError> {
        if keys == 0 || keys > KEYS_MAX {
            return Err(KeySpaceError::Keys(keys));
        }
        if key_size == 0 || key_size > KEY_BYTES_MAX {
            return Err(KeySpaceError::KeySize(key_size));
        }
        if value_size > Self::VALUE_MAX {
            return Err(KeySpaceError::ValueSize(value_size));
        }
        // Inserts add at most as many keys again.
        if key_size < DIGITS && keys * 2 > 1 << (4 * key_size) {
            return Err(KeySpaceError::KeyTooShort { keys, key_size });
        }
        Ok(Self {
            key_size,
            value_size,
        })
    }

    /// Returns the bytes of every key.
    #[must_use]
    pub fn key_size(&self) -> usize {
        self.key_size
    }

    /// Returns the bytes of every value.
    #[must_use]
    pub fn value_size(&self) -> usize {
        self.value_size
    }

    /// Writes key `index` into `out`, `key_size` bytes that already contain the filler
    /// ([`KeySpace::key_filler`]): only the digits are written.
    #[inline]
    pub fn key_digits(&self, index: u32, out: &mut [u8]) {
        let digits = hexadecimal(index);
        match out.last_chunk_mut::<DIGITS>() {
            Some(tail) => *tail = digits,
            None => out.copy_from_slice(&digits[DIGITS - out.len()..]),
        }
    }

    /// Returns a key of filler bytes, without its digits.
    #[must_use]
    pub fn key_filler(&self) -> Vec<u8> {
        vec![b'k'; self.key_size]
    }

    /// Writes the value of key `index` at `version` into `out`, `value_size` bytes.
    #[inline]
    pub fn value(&self, index: u32, version: u32, out: &mut [u8]) {
        let version = if out.len() < 8 { 0 } else { version };
        let first = first_word(index, version);
        let (words, rest) = out.as_chunks_mut::<8>();
        for (i, word) in words.iter_mut().enumerate() {
            *word = word_at(first, i).to_le_bytes();
        }
        let last = word_at(first, words.len()).to_le_bytes();
        for (to, from) in rest.iter_mut().zip(last) {
            *to = from;
        }
    }

    /// Returns whether `value` is a value of key `index`, at any version.
    #[inline]
    #[must_use]
    pub fn check(&self, index: u32, value: &[u8]) -> bool {
        if value.len() != self.value_size {
            return false;
        }
        let (words, rest) = value.as_chunks::<8>();
        let first = words
            .first()
            .map_or_else(|| first_word(index, 0), |w| u64::from_le_bytes(*w));
        let mut wrong = (first ^ first_word(index, 0)) & 0xFFFF_FFFF;
        for (i, word) in words.iter().enumerate().skip(1) {
            wrong |= u64::from_le_bytes(*word) ^ word_at(first, i);
        }
        // Byte by byte: comparing slices calls libc even if they are empty, and glibc's memcmp with
        // AVX-512 stalls on bytes stored just before, 67 ns on a Zen 5.
        let last = word_at(first, words.len()).to_le_bytes();
        for (byte, expected) in rest.iter().zip(last) {
            wrong |= u64::from(byte ^ expected);
        }
        wrong == 0
    }
}

/// Returns the first word of a value: the low half is a bijective mix of the index, the high half
/// the version.
#[inline]
fn first_word(index: u32, version: u32) -> u64 {
    let name = index.wrapping_mul(0x9E37_79B1) ^ 0x5bd1_e995;
    u64::from(version) << 32 | u64::from(name)
}

/// Returns word `i` of a value that begins with `first`.
#[inline]
fn word_at(first: u64, i: usize) -> u64 {
    if i == 0 {
        return first;
    }
    let mixed = (first ^ i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ mixed >> 29
}

/// Formats eight lower-case digits: spreads the nibbles over the bytes of a word and converts all
/// of them at once.
#[inline]
fn hexadecimal(index: u32) -> [u8; DIGITS] {
    let x = u64::from(index.swap_bytes());
    let x = (x | x << 16) & 0x0000_FFFF_0000_FFFF;
    let x = (x | x << 8) & 0x00FF_00FF_00FF_00FF;
    // Each byte of the index now occupies two bytes; its high nibble moves to the first.
    let x = (x >> 4 & 0x000F_000F_000F_000F) | (x & 0x000F_000F_000F_000F) << 8;
    // A nibble above 9 carries into bit 4 when 6 is added: 1 for a letter, else 0.
    let letters = (x + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    // `0` is 0x30; a letter is 0x27 further (`a` - `0` - 10).
    (x + 0x3030_3030_3030_3030 + letters * 0x27).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(space: &KeySpace, index: u32) -> String {
        let mut key = space.key_filler();
        space.key_digits(index, &mut key);
        String::from_utf8(key).unwrap()
    }

    #[test]
    fn keys_are_hexadecimal_after_padding() {
        let space = KeySpace::new(1 << 20, 16, 32).unwrap();
        for index in [0, 9, 10, 255, 0x1234_abcd, u32::MAX] {
            assert_eq!(
                key(&space, index),
                format!("{index:k>16}", index = format!("{index:08x}"))
            );
        }
        let short = KeySpace::new(1 << 15, 4, 32).unwrap();
        assert_eq!(key(&short, 0xabc), "0abc");
    }

    #[test]
    fn invalid_sizes_are_refused_by_name() {
        assert_eq!(
            KeySpace::new(0, 16, 32).unwrap_err(),
            KeySpaceError::Keys(0)
        );
        assert_eq!(
            KeySpace::new(1, 0, 32).unwrap_err(),
            KeySpaceError::KeySize(0)
        );
        assert_eq!(
            KeySpace::new(1, 251, 32).unwrap_err(),
            KeySpaceError::KeySize(251)
        );
        assert_eq!(
            KeySpace::new(1, 16, 1 << 20).unwrap_err(),
            KeySpaceError::ValueSize(1 << 20)
        );
        let short = KeySpaceError::KeyTooShort {
            keys: 129,
            key_size: 2,
        };
        assert_eq!(KeySpace::new(129, 2, 32).unwrap_err(), short);
        assert!(KeySpace::new(128, 2, 32).is_ok());
    }

    #[test]
    fn value_check_accepts_only_its_key_and_detects_any_changed_byte() {
        for size in [1, 3, 8, 9, 16, 32, 33, 100, 1024] {
            let space = KeySpace::new(1 << 20, 16, size).unwrap();
            let mut value = vec![0; size];
            for version in [0, 1, u32::MAX] {
                space.value(77, version, &mut value);
                assert!(space.check(77, &value), "size {size}");
                assert!(!space.check(78, &value) || size < 8, "size {size}");
                assert!(!space.check(77, &value[..size - 1]));
            }
            // In a value of a single word the version bytes may take any value; no other byte may.
            let fixed = if size < 16 {
                (0..size.min(4)).collect()
            } else {
                (0..size).collect::<Vec<_>>()
            };
            for at in fixed {
                value[at] ^= 1;
                assert!(!space.check(77, &value), "size {size}, byte {at}");
                value[at] ^= 1;
            }
        }
    }

    #[test]
    fn value_check_detects_a_mix_of_two_versions() {
        let space = KeySpace::new(1 << 20, 16, 32).unwrap();
        let (mut old, mut new) = ([0; 32], [0; 32]);
        space.value(5, 1, &mut old);
        space.value(5, 2, &mut new);
        for cut in (8..32).step_by(8) {
            let torn: Vec<u8> = new[..cut].iter().chain(&old[cut..]).copied().collect();
            assert!(!space.check(5, &torn));
        }
    }
}
