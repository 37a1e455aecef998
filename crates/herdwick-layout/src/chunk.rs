//! A chunk of a store in slabs: header, key, value; the words that say which are flushed; and what a reader of
//! both may believe. The reader has copies of them, as READs returned them, in which anything may be mixed.

use herdwick_mem::{crc32c, same};
use herdwick_request::{Deadline, KEY_BYTES_MAX, Second};

/// Bytes of the header.
pub const HEADER: usize = 32;
/// Bytes of the checksum of header and key, the first of the header.
pub(crate) const SUM: usize = 4;
/// The stag whose window shows the [`StoreHead`].
pub const HEAD_STAG: u32 = 0;

/// What a reader has to know of all items: words that are READ beside a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreHead {
    /// Flushes so far: an item of an earlier count is flushed.
    pub flushes: u32,
    /// The second of the flush that is due next; 0 for none.
    pub flush_at: u32,
}

impl StoreHead {
    /// Bytes of it.
    pub const BYTES: usize = 8;

    /// Returns it as a word.
    #[must_use]
    pub fn word(self) -> u64 {
        u64::from(self.flushes) | u64::from(self.flush_at) << 32
    }

    /// Reads it; `None` from fewer bytes.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self::of(u64::from_le_bytes(*bytes.first_chunk()?)))
    }

    /// Returns what a word of [`Self::word`] tells.
    #[must_use]
    pub fn of(word: u64) -> Self {
        Self {
            flushes: word as u32,
            flush_at: (word >> 32) as u32,
        }
    }
}

/// What is kept of an item beside its key and its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Bytes of the key.
    pub key_len: u8,
    /// Whether the item is stale: one reader wins the right to store it anew, so a reader asks the store.
    pub stale: bool,
    /// Bytes of the value.
    pub value_len: u32,
    /// memcached's CAS unique.
    pub version: u64,
    /// The client's flags.
    pub flags: u32,
    /// When it expires.
    pub deadline: Deadline,
    /// CRC-32C of the value; 0 in a store that no one READs.
    pub value_sum: u32,
}

/// What a checksum covers besides the chunk: an item is valid under one stag, until a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The stag.
    pub stag: u32,
    /// The number of flushes before the item was stored.
    pub flushes: u32,
}

/// Why a reader has no answer, and asks the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistrust {
    /// The checksum is another one: the item is being written, is of another stag, was flushed, or is gone.
    Torn,
    /// The item is another key's.
    OtherKey,
    /// The item is longer than what was READ: so many bytes.
    Longer(usize),
    /// The item has a deadline or a flush is due, and there is no clock to tell by, or it has passed.
    Expired,
    /// The item is stale.
    Stale,
}

impl ChunkHeader {
    /// Reads the header of a chunk.
    ///
    /// # Panics
    /// If `chunk` is shorter than a header.
    #[inline]
    #[must_use]
    pub fn read(chunk: &[u8]) -> Self {
        let word = |n: usize| u64::from_le_bytes(std::array::from_fn(|i| chunk[n * 8 + i]));
        Self {
            key_len: (word(0) >> 32) as u8,
            stale: word(0) >> 40 & 1 > 0,
            version: word(1),
            value_len: word(2) as u32,
            flags: (word(2) >> 32) as u32,
            deadline: Deadline(word(3) as u32),
            value_sum: (word(3) >> 32) as u32,
        }
    }

    #[inline]
    fn words(&self) -> [u64; HEADER / 8] {
        [
            u64::from(self.key_len) << 32 | u64::from(self.stale) << 40,
            self.version,
            u64::from(self.value_len) | u64::from(self.flags) << 32,
            u64::from(self.deadline.0) | u64::from(self.value_sum) << 32,
        ]
    }

    /// Writes the header, without a checksum.
    ///
    /// # Panics
    /// If `chunk` is shorter than a header.
    #[inline]
    pub fn write(&self, chunk: &mut [u8]) {
        chunk[..HEADER].copy_from_slice(self.words().map(u64::to_le_bytes).as_flattened());
    }

    /// Writes the header with its checksum. The key is in the chunk already.
    ///
    /// # Panics
    /// If `chunk` is shorter than header and key.
    #[inline]
    pub fn seal(&self, chunk: &mut [u8], seal: Seal) {
        self.write(chunk);
        let sum = sum(&chunk[..self.front()], seal);
        chunk[..SUM].copy_from_slice(&sum.to_le_bytes());
    }

    /// Returns the bytes before the value.
    #[inline]
    #[must_use]
    pub fn front(&self) -> usize {
        HEADER + usize::from(self.key_len)
    }

    /// Returns the bytes of header, key and value.
    #[inline]
    #[must_use]
    pub fn end(&self) -> usize {
        self.front() + self.value_len as usize
    }
}

/// Returns the checksum of header and key, the bytes of the checksum left out.
fn sum(front: &[u8], seal: Seal) -> u32 {
    let valid = u64::from(seal.stag) | u64::from(seal.flushes) << 32;
    // The stag and the count of flushes begin the message, without being stored: under another
    // stag, or after a flush, the sum differs.
    crc32c(crc32c(0, &valid.to_le_bytes()), &front[SUM..])
}

/// Returns the bytes that an item needs of a chunk.
#[must_use]
pub fn len(key: &[u8], value_len: usize) -> usize {
    HEADER + key.len() + value_len
}

/// Has no reader believe a chunk any more.
///
/// # Panics
/// If `chunk` is shorter than a header.
#[inline]
pub fn bury(chunk: &mut [u8]) {
    // Inverted, not zeroed: the sum of no item is the inverse of its own.
    for byte in &mut chunk[..SUM] {
        *byte = !*byte;
    }
}

/// Judges a chunk that was READ under `stag`, and the head that was READ with it. The item that is returned was
/// the key's at a time between the beginning of the READs and their end, neither expired nor flushed. `now`
/// is the latest second that it may be for the store, if that is known.
///
/// # Errors
/// [`Mistrust`].
pub fn judge(
    chunk: &[u8],
    head: StoreHead,
    stag: u32,
    key: &[u8],
    now: Option<Second>,
) -> Result<ChunkHeader, Mistrust> {
    if chunk.len() < HEADER {
        return Err(Mistrust::Longer(HEADER + key.len()));
    }
    let header = ChunkHeader::read(chunk);
    // Before the checksum: the lengths decide what it covers.
    if usize::from(header.key_len) != key.len() || key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Mistrust::OtherKey);
    }
    let seal = Seal {
        stag,
        flushes: head.flushes,
    };
    let Some(bytes) = chunk.get(HEADER..header.front()) else {
        return Err(Mistrust::Longer(HEADER + key.len()));
    };
    // Cheaper than the checksum, and most mismatches end here.
    if !same(bytes, key) {
        return Err(Mistrust::OtherKey);
    }
    let sealed = u32::from_le_bytes(std::array::from_fn(|i| chunk[i]));
    if sum(&chunk[..header.front()], seal) != sealed {
        return Err(Mistrust::Torn);
    }
    let Some(value) = chunk.get(header.front()..header.end()) else {
        return Err(Mistrust::Longer(header.end()));
    };
    // The sum of the header covers it, so a value is of this header.
    if crc32c(0, value) != header.value_sum {
        return Err(Mistrust::Torn);
    }
    if header.stale {
        return Err(Mistrust::Stale);
    }
    // Without both no clock is needed.
    let timed = header.deadline != Deadline::NEVER || head.flush_at > 0;
    let is_live =
        |now: Second| !header.deadline.passed(now) && (head.flush_at == 0 || now.0 < head.flush_at);
    if timed && !now.is_some_and(is_live) {
        return Err(Mistrust::Expired);
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEAL: Seal = Seal {
        stag: 9,
        flushes: 3,
    };
    const HEAD: StoreHead = StoreHead {
        flushes: 3,
        flush_at: 0,
    };
    const KEY: &[u8] = b"a key";
    const NOW: Option<Second> = Some(Second(100));

    fn chunk(deadline: Deadline) -> Vec<u8> {
        let value = b"a value";
        let header = ChunkHeader {
            key_len: KEY.len() as u8,
            stale: false,
            value_len: value.len() as u32,
            version: u64::MAX - 1,
            flags: 0xdead_beef,
            deadline,
            value_sum: crc32c(0, value),
        };
        let mut chunk = vec![0xaa; 64];
        chunk[HEADER..header.front()].copy_from_slice(KEY);
        chunk[header.front()..header.end()].copy_from_slice(value);
        header.seal(&mut chunk, SEAL);
        assert_eq!(ChunkHeader::read(&chunk), header);
        chunk
    }

    #[test]
    fn sealed_chunk_is_its_keys_under_its_stag_until_it_is_buried_or_flushed() {
        let mut chunk = chunk(Deadline::NEVER);
        let header = judge(&chunk, HEAD, 9, KEY, None).unwrap();
        assert_eq!(&chunk[header.front()..header.end()], b"a value");
        assert_eq!(judge(&chunk, HEAD, 8, KEY, NOW), Err(Mistrust::Torn));
        assert_eq!(
            judge(&chunk, HEAD, 9, b"b key", NOW),
            Err(Mistrust::OtherKey)
        );
        let flushed = StoreHead {
            flushes: 4,
            flush_at: 0,
        };
        assert_eq!(judge(&chunk, flushed, 9, KEY, NOW), Err(Mistrust::Torn));
        let longer = judge(&chunk[..40], HEAD, 9, KEY, NOW);
        assert_eq!(longer, Err(Mistrust::Longer(header.end())));
        bury(&mut chunk);
        assert_eq!(judge(&chunk, HEAD, 9, KEY, NOW), Err(Mistrust::Torn));
    }

    #[test]
    fn every_changed_byte_of_an_item_is_found() {
        let chunk = chunk(Deadline::NEVER);
        let end = ChunkHeader::read(&chunk).end();
        for at in 0..end {
            for bit in 0..8 {
                let mut torn = chunk.clone();
                torn[at] ^= 1 << bit;
                assert!(judge(&torn, HEAD, 9, KEY, NOW).is_err(), "byte {at}");
            }
        }
        for len in 0..end {
            assert!(judge(&chunk[..len], HEAD, 9, KEY, NOW).is_err());
        }
    }

    #[test]
    fn deadlines_and_due_flushes_need_a_clock_that_has_not_reached_them() {
        let timed = chunk(Deadline(100));
        let at = |now| judge(&timed, HEAD, 9, KEY, now).map(|_| ());
        assert_eq!(at(None), Err(Mistrust::Expired));
        assert_eq!(at(Some(Second(99))), Ok(()));
        assert_eq!(at(NOW), Err(Mistrust::Expired));
        let forever = chunk(Deadline::NEVER);
        for (flush_at, live) in [(0, true), (101, true), (100, false), (1, false)] {
            let head = StoreHead {
                flushes: 3,
                flush_at,
            };
            let judged = judge(&forever, head, 9, KEY, NOW);
            assert_eq!(judged.is_ok(), live, "{flush_at}");
        }
        assert_eq!(
            StoreHead::read(
                &StoreHead {
                    flushes: 7,
                    flush_at: 8
                }
                .word()
                .to_le_bytes()
            )
            .unwrap()
            .flush_at,
            8
        );
    }
}
