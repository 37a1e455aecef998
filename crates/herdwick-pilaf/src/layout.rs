//! The table as clients READ it: buckets of one self-verifying entry each, and where a key may be.
//! `docs/pilaf.md` draws it.

use std::hash::Hasher;

use herdwick_mem::{WORD, crc64};
use herdwick_read::Bits;
use herdwick_request::HashKey;
use siphasher::sip128::{Hasher128, SipHasher13};

/// Longest key in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest value in bytes.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// Hash functions of 3-1 cuckoo hashing: each key may be in one of three buckets of one entry.
pub const PLACES: usize = 3;

/// Words of an entry.
pub const ENTRY_WORDS: usize = 4;
/// Bytes of an entry, and of a bucket: 32, as section 5.1.1 of the HERD paper assumes.
pub const ENTRY_BYTES: usize = ENTRY_WORDS * WORD;

/// Word 0: where the extent starts, in words; how often the bucket was changed; the hash function by
/// which its key is here; the state.
const OFFSET: Bits = Bits::new(0, 40);
const VERSION: Bits = Bits::new(40, 20);
const PLACE: Bits = Bits::new(60, 2);
const STATE: Bits = Bits::new(62, 2);
/// Word 1: part of the key's hash, and both lengths.
const TAG: Bits = Bits::new(0, 32);
const KEY_LEN: Bits = Bits::new(32, 15);
const VALUE_LEN: Bits = Bits::new(47, 17);

const _: () = {
    assert!(ENTRY_BYTES == 32);
    assert!(STATE.end() == 64 && VALUE_LEN.end() == 64);
    assert!(KEY_BYTES_MAX <= KEY_LEN.max() as usize);
    assert!(VALUE_BYTES_MAX <= VALUE_LEN.max() as usize);
    assert!(PLACES <= PLACE.max() as usize + 1);
};

/// Longest memory of extents: what an entry can point to.
pub const EXTENT_BYTES_MAX: u64 = (OFFSET.max() + 1) * WORD as u64;

/// What a bucket holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No key.
    Empty,
    /// A key, whose extent the entry names.
    Used,
    /// Nothing any more: the table has moved to another region.
    Moved,
}

/// A bucket's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What the bucket holds; if that is no key, only `version` means something.
    pub state: State,
    /// Changes of this bucket, modulo 2^20: a bucket that reads the same twice was not changed in
    /// between, unless it was changed a million times.
    pub version: u32,
    /// Index of the hash function by which the key is here.
    pub place: u8,
    /// Part of the key's hash: an entry with another tag is another key's.
    pub tag: u32,
    /// First byte of the extent (the key, then the value) in the memory of extents; whole words.
    pub offset: u64,
    /// Bytes of the key.
    pub key_len: usize,
    /// Bytes of the value.
    pub value_len: usize,
    /// CRC-64/XZ of the extent: of key and value.
    pub extent_crc: u64,
}

impl Entry {
    /// Returns an entry without a key.
    #[must_use]
    pub const fn vacant(state: State, version: u32) -> Self {
        Self {
            state,
            version,
            place: 0,
            tag: 0,
            offset: 0,
            key_len: 0,
            value_len: 0,
            extent_crc: 0,
        }
    }

    /// Returns the words of the entry, the last one a CRC-64/XZ of the others.
    #[must_use]
    pub fn words(&self) -> [u64; ENTRY_WORDS] {
        let state = match self.state {
            State::Empty => 0,
            State::Used => 1,
            State::Moved => 2,
        };
        let place = OFFSET.put(self.offset / WORD as u64)
            | VERSION.put(self.version.into())
            | PLACE.put(self.place.into())
            | STATE.put(state);
        let key = TAG.put(self.tag.into())
            | KEY_LEN.put(self.key_len as u64)
            | VALUE_LEN.put(self.value_len as u64);
        let covered = [place, key, self.extent_crc];
        [place, key, self.extent_crc, entry_crc(covered)]
    }

    /// Parses the words of an entry that someone else wrote.
    ///
    /// # Errors
    /// [`BadEntry`].
    #[inline]
    pub fn verified(words: [u64; ENTRY_WORDS]) -> Result<Self, BadEntry> {
        let [a, b, c, crc] = words;
        if entry_crc([a, b, c]) != crc {
            return Err(BadEntry::Torn);
        }
        Self::parsed(words).ok_or(BadEntry::Absurd)
    }

    /// Parses the words of an entry without its checksum, as its only writer may. `None`: no entry has
    /// these words.
    #[inline]
    pub(crate) fn parsed(words: [u64; ENTRY_WORDS]) -> Option<Self> {
        let [place, key, extent_crc, _] = words;
        let entry = Self {
            state: match STATE.of(place) {
                0 => State::Empty,
                1 => State::Used,
                2 => State::Moved,
                _ => return None,
            },
            version: VERSION.of(place) as u32,
            place: PLACE.of(place) as u8,
            tag: TAG.of(key) as u32,
            offset: OFFSET.of(place) * WORD as u64,
            key_len: KEY_LEN.of(key) as usize,
            value_len: VALUE_LEN.of(key) as usize,
            extent_crc,
        };
        let used = entry.state == State::Used;
        let sized = (1..=KEY_BYTES_MAX).contains(&entry.key_len)
            && entry.value_len <= VALUE_BYTES_MAX
            && usize::from(entry.place) < PLACES;
        (!used || sized).then_some(entry)
    }

    /// Returns the bytes of the extent.
    #[must_use]
    pub fn extent_len(&self) -> usize {
        self.key_len + self.value_len
    }
}

/// Words that are no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadEntry {
    /// The checksum is wrong: the bucket was read while it was written.
    Torn,
    /// The checksum is right, but no server writes such an entry.
    Absurd,
}

#[inline]
fn entry_crc(covered: [u64; ENTRY_WORDS - 1]) -> u64 {
    let mut bytes = [0; ENTRY_BYTES - WORD];
    for (to, word) in bytes.chunks_exact_mut(WORD).zip(covered) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    crc64(0, &bytes)
}

/// The hash of a key: 128 bits, from which its places and its tag are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CuckooHash(pub(crate) [u64; 2]);

impl CuckooHash {
    /// Hashes a key (SipHash-1-3 with a key that the server draws, so that only its clients can
    /// choose keys with the same places).
    #[inline]
    #[must_use]
    pub fn of(hash_key: &HashKey, key: &[u8]) -> Self {
        let [a, b] = hash_key.0;
        let mut hasher = SipHasher13::new_with_keys(a, b);
        hasher.write(key);
        let hash = hasher.finish128();
        Self([hash.h1, hash.h2])
    }

    /// Returns the three buckets, of `buckets`, that the key may be in, in the order in which they
    /// are looked at.
    #[inline]
    #[must_use]
    pub fn places(&self, buckets: u64) -> [u64; PLACES] {
        let [a, b] = self.0;
        // 2^64 over the golden ratio: the product has what is in the lower bits in the upper ones,
        // too, which decide the place.
        let c = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        [a, b, c].map(|hash| ((u128::from(hash) * u128::from(buckets)) >> 64) as u64)
    }

    /// Returns the tag: bits that decide little about the places.
    #[inline]
    #[must_use]
    pub fn tag(&self) -> u32 {
        self.0[0] as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry() -> impl Strategy<Value = Entry> {
        let lengths = (1..=KEY_BYTES_MAX, 0..=VALUE_BYTES_MAX);
        let numbers = (
            0..1_u32 << 20,
            0..3_u8,
            any::<u32>(),
            0..1_u64 << 40,
            any::<u64>(),
        );
        (lengths, numbers).prop_map(|((key_len, value_len), numbers)| {
            let (version, place, tag, offset, extent_crc) = numbers;
            Entry {
                state: State::Used,
                version,
                place,
                tag,
                offset: offset * 8,
                key_len,
                value_len,
                extent_crc,
            }
        })
    }

    proptest! {
        #[test]
        fn entries_survive_their_words(entry in entry()) {
            prop_assert_eq!(Entry::verified(entry.words()), Ok(entry));
        }

        #[test]
        fn a_mix_of_two_entries_is_torn(a in entry(), b in entry(), mask in 1..15_u8) {
            let (old, new) = (a.words(), b.words());
            let mixed = std::array::from_fn(|i| if mask >> i & 1 > 0 { new[i] } else { old[i] });
            prop_assume!(mixed != old && mixed != new);
            prop_assert_eq!(Entry::verified(mixed), Err(BadEntry::Torn));
        }

        #[test]
        fn any_words_are_refused_or_within_bounds(words in any::<[u64; 4]>()) {
            let [a, b, c, _] = words;
            if let Ok(entry) = Entry::verified([a, b, c, entry_crc([a, b, c])]) {
                prop_assert!(entry.key_len <= 32767 && entry.value_len < 1 << 17);
                if entry.state == State::Used {
                    prop_assert!(entry.key_len <= KEY_BYTES_MAX && entry.value_len <= VALUE_BYTES_MAX);
                }
            }
        }
    }

    #[test]
    fn places_lie_in_the_table_and_differ_between_keys() {
        let key = HashKey([1, 2]);
        let mut seen = std::collections::BTreeMap::<[u64; 3], u32>::new();
        for n in 0..1000_u32 {
            let places = CuckooHash::of(&key, &n.to_le_bytes()).places(1000);
            assert!(places.iter().all(|place| *place < 1000));
            *seen.entry(places).or_default() += 1;
        }
        assert!(seen.len() > 990, "{}", seen.len());
    }
}
