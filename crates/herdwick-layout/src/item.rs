//! The layout of an item in the store: a header of 16, 24 or 32 bytes, key, value, and the gap before
//! an item that would lie across two cache lines. docs/store.md has the byte map.

mod sum;

use herdwick_mem::crc32c;
use herdwick_request::{Deadline, Second};

pub use sum::{Found, amend, bury, checksum, examine, intact, publish, seal, seal_staged, touch};

/// Which words the header of an item has. An item is written in the shortest form that holds what is
/// known of it, and may keep a longer one when it is written again in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// 16 bytes: no client flags, no deadline, a version below 2^40, a value below 4 KiB.
    #[default]
    Compact,
    /// 24 bytes: as [`Form::Compact`], with client flags and a deadline.
    Extended,
    /// 32 bytes: any header.
    Full,
}

impl Form {
    /// Returns the shortest form for an item.
    #[inline]
    #[must_use]
    pub fn of(flags: u32, deadline: Deadline, version: u64, value_len: usize) -> Self {
        if version >> VERSION_BITS != 0 || value_len > SHORT_MAX {
            Self::Full
        } else if flags != 0 || deadline != Deadline::NEVER {
            Self::Extended
        } else {
            Self::Compact
        }
    }

    /// Returns the bytes of a header.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> usize {
        HEADER_MIN + 8 * self as usize
    }
}

/// Bytes of the shortest header.
pub const HEADER_MIN: usize = 16;
/// Bytes of the longest header.
pub const HEADER_MAX: usize = 32;
const _: () = assert!(Form::Compact.bytes() == HEADER_MIN && Form::Full.bytes() == HEADER_MAX);
/// Items begin at multiples of this.
pub const ALIGN: usize = 8;
/// Bytes of a cache line. An item that fits one lies within one, unless its form is the full one.
pub const LINE: usize = 64;

/// Offsets in the first word.
const KEY_LEN_AT: usize = 0;
const BITS_AT: usize = 1;
const SHAPE_AT: usize = 2;
/// The checksum of a [`Form::Compact`] item, the client flags of another.
const LOW_AT: usize = 4;
/// Offset of the word of last access and version.
const STAMP_AT: usize = 8;
/// Offset of the word of checksum and deadline: not in [`Form::Compact`].
const CHECK_AT: usize = 16;
/// Offset of the word of a long value's length and a wide version: in [`Form::Full`] alone.
const WIDE_AT: usize = 24;
const _: () = assert!(LOW_AT + 4 == STAMP_AT && STAMP_AT + 8 == CHECK_AT);
const _: () = assert!(CHECK_AT + 8 == WIDE_AT && WIDE_AT + 8 == HEADER_MAX);

/// Bits of the shape that hold the value's length; those of the form follow.
const LENGTH_BITS: u32 = 12;
const SHORT_MAX: usize = (1 << LENGTH_BITS) - 1;
/// Bits of the stamp that hold the second of the last access; the version follows.
const ACCESS_BITS: u32 = 24;
const ACCESS: u64 = (1 << ACCESS_BITS) - 1;
/// Bits of the version that the stamp holds.
const VERSION_BITS: u32 = u64::BITS - ACCESS_BITS;

/// The header of an item, decoded.
///
/// Only items in a file that outlives the process have a checksum. It covers the header, but for the
/// bookkeeping of reads (the last access and most of `bits`), and key and value. The checksum of a
/// dead item is inverted: no single flipped bit revives it.
///
/// Where an item has a deadline, that and the checksum are one word. So a touch is one store, and a
/// reservation becomes an item by one: a process that is killed leaves the item as it was before or
/// after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// 1 to 250; 0 in a gap.
    pub key_len: u8,
    /// A set of [`bit`]s.
    pub bits: u8,
    /// Which words are there.
    pub form: Form,
    /// Bytes of the value; of the gap in a gap.
    pub value_len: u32,
    /// The client's flags.
    pub flags: u32,
    /// When it expires.
    pub deadline: Deadline,
    /// The version; in a reservation the number that names it.
    pub version: u64,
    /// The [`Second`] of the last access, modulo 2^24.
    pub accessed: u32,
}

/// Bits of [`Header::bits`].
pub mod bit {
    /// Read since it was stored.
    pub const FETCHED: u8 = 1;
    /// Marked stale by a delete or an older set.
    pub const STALE: u8 = 2;
    /// A reader has won the right to recache it (the reply flag `W`).
    pub const WIN_SENT: u8 = 4;
    /// Used since it was stored or copied.
    pub const USED: u8 = 8;
    /// How often it was used: 0 for never, `n` for about `2^(n-1)` times.
    pub const LEVEL: u8 = LEVEL_MAX << LEVEL_AT;
    const LEVEL_AT: u32 = 4;
    /// The highest level of use.
    pub const LEVEL_MAX: u8 = 7;
    /// A reservation: its version names it, and the checksum covers the lengths and the key only.
    pub const STAGED: u8 = 128;

    /// Returns the level of use.
    #[inline]
    #[must_use]
    pub fn level(bits: u8) -> u8 {
        (bits & LEVEL) >> LEVEL_AT
    }

    /// Returns the bits with another level of use, at most [`LEVEL_MAX`].
    #[inline]
    #[must_use]
    pub fn with_level(bits: u8, level: u8) -> u8 {
        (bits & !LEVEL) | level << LEVEL_AT
    }
}

impl Header {
    /// Decodes the header of the item, or gap, at the beginning of `item`.
    ///
    /// # Panics
    /// If `item` is shorter than its header.
    #[inline(always)]
    #[must_use]
    pub fn read(item: &[u8]) -> Self {
        let (first, stamp) = (word(item, 0), word(item, STAMP_AT));
        let shape = (first >> (8 * SHAPE_AT)) as u16;
        let mut header = Self {
            key_len: first as u8,
            bits: (first >> (8 * BITS_AT)) as u8,
            form: Form::Compact,
            value_len: u32::from(shape) & SHORT_MAX as u32,
            flags: 0,
            deadline: Deadline::NEVER,
            // 40 bits; a full header adds the others.
            version: stamp >> ACCESS_BITS,
            accessed: (stamp & ACCESS) as u32,
        };
        let form = shape >> LENGTH_BITS;
        // The usual form has no more words.
        if form == 0 {
            return header;
        }
        header.form = Form::Extended;
        header.flags = (first >> (8 * LOW_AT)) as u32;
        header.deadline = Deadline((word(item, CHECK_AT) >> 32) as u32);
        // A form above `Full` is taken for it: where bytes may be anything, `is_whole` has refused
        // it.
        if form > 1 {
            let wide = word(item, WIDE_AT);
            header.form = Form::Full;
            header.value_len = wide as u32;
            header.version |= (wide >> 32) << VERSION_BITS;
        }
        header
    }

    /// Returns the words, without a checksum.
    #[inline(always)]
    fn words(&self) -> [u64; 4] {
        let short = match self.form {
            // The length is in the word of its own then.
            Form::Full => 0,
            _ => u64::from(self.value_len),
        };
        let shape = short | (self.form as u64) << LENGTH_BITS;
        let first = u64::from(self.key_len)
            | u64::from(self.bits) << (8 * BITS_AT)
            | shape << (8 * SHAPE_AT)
            | u64::from(self.flags) << (8 * LOW_AT);
        // The upper 24 bits fall out, and are in `wide`.
        let stamp = u64::from(self.accessed) & ACCESS | self.version << ACCESS_BITS;
        let check = u64::from(self.deadline.0) << 32;
        let wide = u64::from(self.value_len) | self.version >> VERSION_BITS << 32;
        [first, stamp, check, wide]
    }

    /// Returns the bytes of the value.
    #[inline]
    #[must_use]
    pub fn value_len(&self) -> usize {
        self.value_len as usize
    }

    /// Returns the second of the last access, which was within 2^24 seconds (194 days) before `now`.
    #[inline]
    #[must_use]
    pub fn last_access(&self, now: Second) -> Second {
        // The second is stored modulo 2^24: the distance to `now` is right as long as it is below
        // that.
        Second(now.0 - (now.0.wrapping_sub(self.accessed) & ACCESS as u32).min(now.0))
    }

    /// Returns whether `bit` is set.
    #[inline]
    #[must_use]
    pub fn has(&self, bit: u8) -> bool {
        self.bits & bit != 0
    }

    /// Returns the bytes up to the value.
    #[inline]
    #[must_use]
    pub fn front(&self) -> usize {
        self.form.bytes() + usize::from(self.key_len)
    }

    /// Returns the bytes up to the end of the value.
    #[inline]
    #[must_use]
    pub fn end(&self) -> usize {
        self.front() + self.value_len()
    }

    /// Returns the bytes in the store, padding included.
    #[inline]
    #[must_use]
    pub fn footprint(&self) -> usize {
        padded(self.form, self.end())
    }

    /// Returns the header in a form that is long enough for what it has now, and at least its own.
    #[inline]
    #[must_use]
    pub fn fitting(self) -> Self {
        let needed = Form::of(self.flags, self.deadline, self.version, self.value_len());
        Self {
            // Never shorter: the item stays where it is, and its key must not move.
            form: self.form.max(needed),
            ..self
        }
    }
}

/// Returns the bytes that an item of this form takes in the store, padding included.
#[must_use]
#[inline]
pub fn footprint(form: Form, key_len: usize, value_len: usize) -> usize {
    padded(form, form.bytes() + key_len + value_len)
}

/// Half a line or a line, or else a multiple of [`ALIGN`]. The full form, which a store that evicts
/// nothing has for all, takes neither, so that it leaves no gaps.
#[inline]
fn padded(form: Form, len: usize) -> usize {
    if form == Form::Full || len > LINE {
        let len = len.next_multiple_of(ALIGN);
        // One word more: a length of a line would be taken for that of a lined item.
        len + if len == LINE { ALIGN } else { 0 }
    } else if len > LINE / 2 {
        LINE
    } else {
        LINE / 2
    }
}

/// Returns whether an item that takes `len` bytes lies within a cache line.
#[must_use]
#[inline]
pub fn is_lined(len: usize) -> bool {
    len == LINE || len == LINE / 2
}

/// Returns the bytes of the gap before an item that takes `len` bytes, if what is before it ends at
/// `end`.
#[must_use]
#[inline]
pub fn gap_before(end: usize, len: usize) -> usize {
    let used = end % LINE;
    if is_lined(len) && used + len > LINE {
        LINE - used
    } else {
        0
    }
}

#[inline(always)]
fn word(item: &[u8], at: usize) -> u64 {
    let (bytes, _) = item[at..]
        .split_first_chunk()
        .expect("an item has its header");
    u64::from_le_bytes(*bytes)
}

#[inline(always)]
fn put_word(item: &mut [u8], at: usize, word: u64) {
    item[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// Returns whether the item at the beginning of `item` has this key.
#[inline(always)]
#[must_use]
pub fn has_key(item: &[u8], key: &[u8]) -> bool {
    let Some(header) = item.first_chunk::<HEADER_MIN>() else {
        return false;
    };
    let form = usize::from(header[SHAPE_AT + 1] >> (LENGTH_BITS - 8));
    let front = HEADER_MIN + 8 * form;
    // Where the form says; a form that does not exist ends behind the item, and is no match.
    match item.get(front..front + key.len()) {
        Some(own) => header[KEY_LEN_AT] as usize == key.len() && herdwick_mem::same(own, key),
        None => false,
    }
}

/// Changes the bits, by one store.
#[inline]
pub fn set_bits(item: &mut [u8], bits: u8) {
    // One byte, so a kill leaves the old or the new one.
    item[BITS_AT] = bits;
}

/// Changes the second of the last access, by one store.
#[inline]
pub fn set_last_access(item: &mut [u8], second: Second) {
    // Version and access share a word: one store changes the access alone.
    let stamp = word(item, STAMP_AT) & !ACCESS | u64::from(second.0) & ACCESS;
    put_word(item, STAMP_AT, stamp);
}

/// Changes the deadline of an item that has a word for it, by one store, but not its checksum.
///
/// # Panics
/// If `item` is shorter than such a header.
#[inline]
pub fn set_deadline(item: &mut [u8], deadline: Deadline) {
    let check = word(item, CHECK_AT) & u64::from(u32::MAX);
    put_word(item, CHECK_AT, check | u64::from(deadline.0) << 32);
}

/// Writes a header, with no checksum yet.
///
/// # Panics
/// If `item` is shorter than the header.
#[inline(always)]
pub fn put_header(item: &mut [u8], header: &Header) {
    let [first, stamp, check, wide] = header.words();
    put_word(item, 0, first);
    put_word(item, STAMP_AT, stamp);
    if header.form > Form::Compact {
        // A shorter form has the key there.
        put_word(item, CHECK_AT, check);
    }
    if header.form == Form::Full {
        put_word(item, WIDE_AT, wide);
    }
}

/// Writes a gap of `len` bytes, a multiple of [`ALIGN`]: nothing lies in them.
///
/// # Panics
/// If `bytes` is shorter than a word.
#[inline]
pub fn put_gap(bytes: &mut [u8], len: u32) {
    put_word(bytes, 0, gap(len));
}

/// The word of a gap: no key, no bits, a check of the length, and the length.
fn gap(len: u32) -> u64 {
    // A check that a word of arbitrary bytes passes once in 65,536 times.
    let check = crc32c(0, &len.to_le_bytes()) as u16;
    u64::from(check) << (8 * SHAPE_AT) | u64::from(len) << (8 * LOW_AT)
}

/// Returns whether `bytes` begin with a gap. What follows its word may be anything, or nothing.
///
/// # Panics
/// If `bytes` is empty.
#[inline]
#[must_use]
pub fn is_gap(bytes: &[u8]) -> bool {
    bytes[KEY_LEN_AT] == 0
}

/// Returns the bytes to what lies behind the item, or gap, at the beginning of `bytes`.
///
/// # Panics
/// If `bytes` is shorter than its header.
#[inline]
#[must_use]
pub fn step(bytes: &[u8]) -> usize {
    if is_gap(bytes) {
        (word(bytes, 0) >> (8 * LOW_AT)) as usize
    } else {
        Header::read(bytes).footprint()
    }
}
