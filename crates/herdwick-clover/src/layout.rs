//! The memory of a data node: entries, the words that link them, and where the areas of the size
//! classes are. `docs/clover.md` draws it.

mod geometry;
mod membership;

use std::hash::{Hash, Hasher};

use herdwick_mem::{WORD, crc64};
use herdwick_read::Bits;
use herdwick_request::HashKey;
use siphasher::sip128::{Hasher128, SipHasher13};

pub use geometry::{
    BadGeometry, CLASSES, Geometry, HEADER_BYTES, HEADER_WORDS, SLOTS_MAX, UNIT, VERSIONS_MAX,
    class_of_len,
};
pub use membership::{BadNodes, MEMBER_WORD, Membership, STORE_WORD};
pub(crate) use membership::{Memberships, agree, is_whole};

/// Longest key in bytes, as memcached's.
pub const KEY_BYTES_MAX: usize = 250;
/// Longest entry: the largest size class.
pub const ENTRY_BYTES_MAX: usize = UNIT << (CLASSES - 1);
/// Longest value in bytes, whatever the key.
pub const VALUE_BYTES_MAX: usize = ENTRY_BYTES_MAX - HEAD_BYTES - KEY_BYTES_MAX;

/// Bytes of an entry before its key.
pub const HEAD_BYTES: usize = 3 * WORD;
/// Word of an entry that links its successor.
pub const LINK_WORD: usize = 0;
/// Word of an entry with the CRC-64/XZ of what follows it.
pub const CRC_WORD: usize = 1;
/// Word of an entry with the lengths and the version.
pub const HEAD_WORD: usize = 2;
/// First byte that the CRC covers.
const COVERED: usize = HEAD_WORD * WORD;

// The fields of a link and of a shortcut, as docs/clover.md draws them.
const VERSION_BITS: u32 = 14;
/// The link: where the successor is, the version that it has there, the version of the entry itself.
const TARGET: Bits = Bits::new(0, 32);
const VERSION: Bits = Bits::new(32, VERSION_BITS);
const OWN: Bits = Bits::new(46, VERSION_BITS);
const UNCOMMITTED: Bits = Bits::new(60, 1);
const TOMBSTONE: Bits = Bits::new(61, 1);
/// The head: lengths, version, and whether the key was deleted.
const VALUE_LEN: Bits = Bits::new(0, 20);
const KEY_LEN: Bits = Bits::new(20, 8);
const HEAD_VERSION: Bits = Bits::new(32, VERSION_BITS);
const HEAD_TOMBSTONE: Bits = Bits::new(46, 1);

/// No entry: the header of the memory is at 0.
const NOWHERE: u64 = 0;
/// The chain has ended: its key was deleted, and the metadata server has forgotten it.
const CLOSED: u64 = TARGET.max();

const _: () = {
    assert!(VERSION.max() as u16 + 1 == VERSIONS_MAX);
    assert!(TOMBSTONE.end() <= 64 && HEAD_TOMBSTONE.end() <= 64);
    assert!(KEY_BYTES_MAX <= KEY_LEN.max() as usize);
    assert!(ENTRY_BYTES_MAX <= VALUE_LEN.max() as usize);
    assert!(ENTRY_BYTES_MAX == 32 << 10 && VALUE_BYTES_MAX == 32_494);
};

/// Names one use of an entry's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The first byte, in units of [`UNIT`] from the start of the memory.
    pub target: u32,
    /// The version that the entry has in this use.
    pub version: u16,
    /// Whether it marks the key as deleted.
    pub tombstone: bool,
}

impl Place {
    /// Returns its first byte, from the start of the memory.
    #[inline]
    #[must_use]
    pub fn offset(self) -> u64 {
        u64::from(self.target) * UNIT as u64
    }

    /// Returns the word of a shortcut that names it.
    #[inline]
    #[must_use]
    pub fn word(self) -> u64 {
        TARGET.put(self.target.into())
            | VERSION.put(self.version.into())
            | TOMBSTONE.put(self.tombstone.into())
    }

    /// Parses the word of a shortcut; `None` if it names no entry.
    #[inline]
    #[must_use]
    pub fn of(word: u64) -> Option<Self> {
        match TARGET.of(word) {
            // A closed chain names no entry either: who follows the shortcut asks the server.
            NOWHERE | CLOSED => None,
            target => Some(Self {
                target: target as u32,
                version: VERSION.of(word) as u16,
                tombstone: TOMBSTONE.of(word) > 0,
            }),
        }
    }

    /// Returns the link of this entry while it has no successor.
    #[inline]
    #[must_use]
    pub fn unlinked(self) -> Link {
        Link {
            own: self.version,
            next: None,
            committed: true,
        }
    }
}

/// What follows an entry in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The entry of a later PUT or DELETE.
    Entry(Place),
    /// Nothing, for ever: the key is deleted.
    Closed,
}

/// The first word of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The version of the entry itself.
    pub own: u16,
    /// Its successor.
    pub next: Option<Next>,
    /// Whether the successor counts. It does not until all replicas have this link.
    pub committed: bool,
}

impl Link {
    /// Returns the word.
    #[inline]
    #[must_use]
    pub fn word(self) -> u64 {
        let next = match self.next {
            None => NOWHERE,
            Some(Next::Closed) => CLOSED,
            Some(Next::Entry(place)) => place.word(),
        };
        next | OWN.put(self.own.into()) | UNCOMMITTED.put((!self.committed).into())
    }

    /// Parses the word.
    #[inline]
    #[must_use]
    pub fn of(word: u64) -> Self {
        let next = match TARGET.of(word) {
            NOWHERE => None,
            CLOSED => Some(Next::Closed),
            _ => Place::of(word).map(Next::Entry),
        };
        Self {
            own: OWN.of(word) as u16,
            next,
            committed: UNCOMMITTED.of(word) == 0,
        }
    }

    /// Returns the link that all replicas have in the end.
    #[inline]
    #[must_use]
    pub fn settled(self) -> Self {
        Self {
            committed: true,
            ..self
        }
    }

    /// Returns the successor that counts.
    #[inline]
    #[must_use]
    pub fn successor(self) -> Option<Next> {
        self.next.filter(|_| self.committed)
    }
}

/// The head of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes of the key.
    pub key_len: usize,
    /// Bytes of the value; 0 of a tombstone.
    pub value_len: usize,
    /// The version.
    pub version: u16,
    /// Whether the entry marks the key as deleted.
    pub tombstone: bool,
}

impl Head {
    /// Returns the word.
    #[must_use]
    pub fn word(&self) -> u64 {
        VALUE_LEN.put(self.value_len as u64)
            | KEY_LEN.put(self.key_len as u64)
            | HEAD_VERSION.put(self.version.into())
            | HEAD_TOMBSTONE.put(self.tombstone.into())
    }

    /// Parses the word; `None` if no entry of a class of `room` bytes has it.
    #[inline]
    #[must_use]
    pub fn of(word: u64, room: usize) -> Option<Self> {
        let head = Self {
            key_len: KEY_LEN.of(word) as usize,
            value_len: VALUE_LEN.of(word) as usize,
            version: HEAD_VERSION.of(word) as u16,
            tombstone: HEAD_TOMBSTONE.of(word) > 0,
        };
        // Checked against the class before the lengths are used: what was READ may be anything.
        let sized = (1..=KEY_BYTES_MAX).contains(&head.key_len) && head.entry_len() <= room;
        (sized && !(head.tombstone && head.value_len > 0)).then_some(head)
    }

    /// Returns the bytes of the whole entry.
    #[must_use]
    pub fn entry_len(&self) -> usize {
        HEAD_BYTES + self.key_len + self.value_len
    }
}

/// Lays an entry out in `out`, which has its length: the key, the value, and no successor.
///
/// # Panics
/// When `out` has another length than [`Head::entry_len`].
pub fn lay_out(place: Place, key: &[u8], value: &[u8], out: &mut [u8]) {
    let head = Head {
        key_len: key.len(),
        value_len: value.len(),
        version: place.version,
        tombstone: place.tombstone,
    };
    assert_eq!(out.len(), head.entry_len());
    let (words, body) = out.split_at_mut(HEAD_BYTES);
    let (front, behind) = body.split_at_mut(key.len());
    herdwick_mem::copy(front, key);
    herdwick_mem::copy(behind, value);
    // Head, CRC, link in this order: the CRC covers the head, and is before it.
    words[COVERED..].copy_from_slice(&head.word().to_le_bytes());
    let crc = crc64(0, &out[COVERED..]);
    out[CRC_WORD * WORD..COVERED].copy_from_slice(&crc.to_le_bytes());
    let link = place.unlinked().word();
    out[..CRC_WORD * WORD].copy_from_slice(&link.to_le_bytes());
}

/// An entry that was READ and is whole.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The link, as it was during the READ.
    pub link: Link,
    /// The head.
    pub head: Head,
    /// The key.
    pub key: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Parses the bytes of a READ of the entry at `place`: up to all of its class. `None`: the memory
    /// has another use now, or was being written.
    #[inline]
    #[must_use]
    pub fn verified(place: Place, bytes: &'a [u8]) -> Option<Self> {
        // Version and key come first: they are cheaper than the checksum, and most stale entries
        // end there.
        let entry = Self::parsed(place, bytes)?;
        let covered = bytes.get(COVERED..entry.head.entry_len())?;
        (crc64(0, covered) == word(bytes, CRC_WORD)).then_some(entry)
    }

    /// As [`Entry::verified`], without the checksum: for a part of the entry with its whole key.
    #[inline]
    #[must_use]
    pub fn parsed(place: Place, bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() < HEAD_BYTES {
            return None;
        }
        let link = Link::of(word(bytes, LINK_WORD));
        let head = Head::of(word(bytes, HEAD_WORD), ENTRY_BYTES_MAX)?;
        // Both words: the link is changed by CASes and is not covered by the checksum, the head is.
        let ours = link.own == place.version && head.version == place.version;
        let key = bytes.get(HEAD_BYTES..HEAD_BYTES + head.key_len)?;
        (ours && head.tombstone == place.tombstone).then_some(Self { link, head, key })
    }

    /// Returns the bytes of the value within those of the entry.
    #[must_use]
    pub fn value(&self) -> std::ops::Range<usize> {
        HEAD_BYTES + self.head.key_len..self.head.entry_len()
    }
}

/// Returns a word of `bytes`, which has it.
#[inline]
fn word(bytes: &[u8], index: usize) -> u64 {
    let bytes = bytes[index * WORD..].first_chunk::<WORD>();
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The hash of a key, by which client and metadata server know it: 128 bits, under a key that the
/// server draws, so that only its clients can search for two keys with one hash. Every entry has
/// its whole key, which a GET compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyHash(pub(crate) [u64; 2]);

impl Hash for KeyHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Half of the hash is enough to place it. A table compares both.
        state.write_u64(self.0[0]);
    }
}

impl KeyHash {
    /// Hashes a key (SipHash-1-3).
    #[inline]
    #[must_use]
    pub fn of(hash_key: &HashKey, key: &[u8]) -> Self {
        let [a, b] = hash_key.0;
        let mut hasher = SipHasher13::new_with_keys(a, b);
        hasher.write(key);
        let hash = hasher.finish128();
        Self([hash.h1, hash.h2])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = Place> {
        let parts = (1..u32::MAX, 0..VERSIONS_MAX, any::<bool>());
        parts.prop_map(|(target, version, tombstone)| Place {
            target,
            version,
            tombstone,
        })
    }

    fn link() -> impl Strategy<Value = Link> {
        let next = prop_oneof![
            Just(None),
            Just(Some(Next::Closed)),
            place().prop_map(|place| Some(Next::Entry(place))),
        ];
        (0..VERSIONS_MAX, next, any::<bool>()).prop_map(|(own, next, committed)| Link {
            own,
            next,
            committed,
        })
    }

    proptest! {
        #[test]
        fn places_and_links_survive_their_words(place in place(), link in link()) {
            prop_assert_eq!(Place::of(place.word()), Some(place));
            prop_assert_eq!(Link::of(link.word()), link);
        }

        #[test]
        fn any_bytes_are_refused_or_within_bounds(bytes in prop::collection::vec(any::<u8>(), 0..300), place in place()) {
            if let Some(entry) = Entry::parsed(place, &bytes) {
                prop_assert!(entry.key.len() <= KEY_BYTES_MAX);
                prop_assert!(entry.head.entry_len() <= ENTRY_BYTES_MAX);
            }
            prop_assert!(Entry::verified(place, &bytes).is_none());
        }

        /// A READ beside the next use of the memory: words of both.
        #[test]
        fn a_mix_of_two_uses_is_no_entry(
            place in place(),
            (key, old, new) in (1..=KEY_BYTES_MAX, 0..200_usize, 0..200_usize),
            mask in any::<u64>(),
        ) {
            let place = Place { tombstone: false, ..place };
            let next = Place { version: (place.version + 1) % VERSIONS_MAX, ..place };
            let (key, len) = (vec![7; key], HEAD_BYTES + key + old.max(new));
            let (mut a, mut b) = (vec![0; len], vec![0; len]);
            lay_out(place, &key, &vec![1; old], &mut a[..HEAD_BYTES + key.len() + old]);
            lay_out(next, &key, &vec![2; new], &mut b[..HEAD_BYTES + key.len() + new]);
            let mixed: Vec<u8> = (0..len).map(|i| if mask >> (i / 8 % 64) & 1 > 0 { a[i] } else { b[i] }).collect();
            for (place, whole) in [(place, &a), (next, &b)] {
                let used = Entry::verified(place, whole).map(|entry| entry.head.entry_len()).unwrap();
                let found = Entry::verified(place, &mixed);
                prop_assert_eq!(found.is_some(), mixed[..used] == whole[..used]);
            }
        }
    }

    #[test]
    fn an_entry_is_read_as_it_was_laid_out() {
        let place = Place {
            target: 9,
            version: 3,
            tombstone: false,
        };
        let mut bytes = vec![0; HEAD_BYTES + 3 + 5];
        lay_out(place, b"key", b"value", &mut bytes);
        let entry = Entry::verified(place, &bytes).unwrap();
        assert_eq!(
            (entry.key, &bytes[entry.value()]),
            (&b"key"[..], &b"value"[..])
        );
        assert_eq!(entry.link, place.unlinked());
        for other in [
            Place {
                version: 4,
                ..place
            },
            Place {
                tombstone: true,
                ..place
            },
        ] {
            assert!(Entry::verified(other, &bytes).is_none());
        }
        bytes[HEAD_BYTES + 4] ^= 1;
        assert!(Entry::verified(place, &bytes).is_none());
    }
}
