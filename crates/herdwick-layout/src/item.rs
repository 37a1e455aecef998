//! The layout of an item: a 32-byte header with a checksum, then key and value.

use std::sync::atomic::{Ordering, compiler_fence};

use herdwick_mem::{crc32c, crc32c_shift};
use herdwick_request::{Deadline, KEY_BYTES_MAX, Second};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

/// The first 32 bytes of an item; key and value follow, then padding to 8 bytes.
///
/// Only items in a file that outlives the process have a checksum. It covers `version..` to the end
/// of the value, and its seed covers the other fields except the bookkeeping of reads
/// (`last_access` and most of `bits`). The checksum of a dead item is inverted: no single flipped
/// bit revives it.
///
/// The checksum and the deadline are one word. So a touch is one store, and a reservation becomes an
/// item by one: a process that is killed leaves the item as it was before or after it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// 1 to 250.
    pub key_len: u8,
    /// A set of [`bit`]s.
    pub bits: u8,
    /// The flush generation in which it was stored.
    pub generation: U16,
    /// The [`Second`] of the last access.
    pub last_access: U32,
    /// The checksum or its inverse in the low 32 bits, the [`Deadline`] in the high ones: see
    /// [`check`].
    pub check: U64,
    /// The version; in a reservation the number that names it.
    pub version: U64,
    /// Value length and flags. One word, because the checksum reads it back as one: two stores of
    /// half a word each could not be forwarded to that load.
    pub shape: U64,
}

/// Bytes of a [`Header`].
pub const HEADER: usize = size_of::<Header>();
/// Offset of the first byte that the checksum covers.
const CRC_FROM: usize = std::mem::offset_of!(Header, version);
/// Items begin at multiples of this.
pub const ALIGN: usize = 8;

const _: () = assert!(HEADER == 32 && CRC_FROM == 16 && HEADER.is_multiple_of(ALIGN));
const _: () = assert!(std::mem::offset_of!(Header, key_len) == 0);
const _: () = assert!(std::mem::offset_of!(Header, check) == 8);
const _: () = assert!(std::mem::offset_of!(Header, shape) == 24);

/// Bits of [`Header::bits`].
pub mod bit {
    /// Read since it was stored.
    pub const FETCHED: u8 = 1;
    /// Marked stale by a delete or an older set.
    pub const STALE: u8 = 2;
    /// A reader has won the right to recache it (the reply flag `W`).
    pub const WIN_SENT: u8 = 4;
    /// The count of uses, 0 to [`COUNT_MAX`], in units of 8.
    pub const COUNT: u8 = COUNT_MAX * USE;
    const USE: u8 = 8;
    /// The greatest count of uses.
    pub const COUNT_MAX: u8 = 15;
    /// What a use adds to the count. A new item has a count of 1.
    pub const COUNTED: u8 = 2;
    /// A reservation: its version names it, and the checksum covers the lengths and the key only.
    pub const STAGED: u8 = 128;

    /// Returns the count of uses.
    #[inline]
    #[must_use]
    pub fn count(bits: u8) -> u8 {
        (bits & COUNT) / USE
    }

    /// Returns the bits with another count of uses, at most [`COUNT_MAX`].
    #[inline]
    #[must_use]
    pub fn with_count(bits: u8, count: u8) -> u8 {
        (bits & !COUNT) | (count * USE)
    }

    /// Returns the bits after one more use; the count saturates.
    #[inline]
    #[must_use]
    pub fn counted(bits: u8) -> u8 {
        with_count(bits, (count(bits) + COUNTED).min(COUNT_MAX))
    }
}

/// Encodes [`Header::check`].
#[inline]
#[must_use]
pub fn check(crc: u32, deadline: Deadline) -> U64 {
    (u64::from(crc) | u64::from(deadline.0) << 32).into()
}

/// Encodes [`Header::shape`]: the value's length in the low 32 bits, the flags in the high ones.
#[inline]
#[must_use]
pub fn shape(value_len: usize, flags: u32) -> U64 {
    (u64::from(value_len as u32) | u64::from(flags) << 32).into()
}

impl Header {
    /// Returns the bytes of the value.
    #[inline]
    #[must_use]
    pub fn value_len(&self) -> usize {
        self.shape.get() as u32 as usize
    }

    /// Returns the client's flags.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> u32 {
        (self.shape.get() >> 32) as u32
    }

    /// Returns the checksum, or its inverse.
    #[inline]
    #[must_use]
    pub fn crc(&self) -> u32 {
        self.check.get() as u32
    }

    /// Changes the checksum, by one store.
    #[inline]
    pub fn set_crc(&mut self, crc: u32) {
        self.check = check(crc, self.deadline());
    }

    /// Changes the deadline, by one store. The checksum is that of the former one.
    #[inline]
    pub fn set_deadline(&mut self, deadline: Deadline) {
        self.check = check(self.crc(), deadline);
    }

    /// Returns the deadline.
    #[inline]
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        Deadline((self.check.get() >> 32) as u32)
    }

    /// Returns the second of the last access.
    #[inline]
    #[must_use]
    pub fn last_access(&self) -> Second {
        Second(self.last_access.get())
    }

    /// Returns whether `bit` is set.
    #[inline]
    #[must_use]
    pub fn has(&self, bit: u8) -> bool {
        self.bits & bit != 0
    }

    /// Returns the bytes of key and value.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> usize {
        self.key_len as usize + self.value_len()
    }

    /// Returns the bytes that it takes, header and padding included.
    #[inline]
    #[must_use]
    pub fn footprint(&self) -> usize {
        footprint(self.key_len as usize, self.value_len())
    }
}

/// Returns the bytes that an item takes, header and padding included.
#[must_use]
#[inline]
pub fn footprint(key_len: usize, value_len: usize) -> usize {
    (HEADER + key_len + value_len).next_multiple_of(ALIGN)
}

/// Computes and stores the checksum of an item. `item` is all its bytes but the padding.
///
/// # Panics
/// If `item` is shorter than a header.
#[inline]
pub fn seal(item: &mut [u8]) {
    let crc = checksum(item);
    header_mut(item).set_crc(crc);
}

/// Returns the checksum of an item; see [`Header`] for what it covers. `item` is all its bytes but
/// the padding.
///
/// # Panics
/// If `item` is shorter than a header.
#[inline]
#[must_use]
pub fn checksum(item: &[u8]) -> u32 {
    checksum_until(item, header(item).deadline())
}

/// Returns the checksum that an item would have with another deadline.
#[inline]
fn checksum_until(item: &[u8], deadline: Deadline) -> u32 {
    let header = header(item);
    let kind = u32::from(header.key_len) | u32::from(header.bits & bit::STALE) << 8;
    let seed = kind | u32::from(header.generation.get()) << 16;
    crc32c(seed ^ deadline.0.rotate_left(12), &item[CRC_FROM..])
}

/// Returns the checksum of a reservation: it covers the lengths and the key, which stay as they are
/// when it becomes an item.
fn checksum_staged(item: &[u8]) -> u32 {
    let header = header(item);
    let key = &item[HEADER..HEADER + usize::from(header.key_len)];
    crc32c(!(header.value_len() as u32), key)
}

#[inline]
fn header(item: &[u8]) -> &Header {
    let (header, _) = Header::ref_from_prefix(item).expect("an item has a header");
    header
}

#[inline]
fn header_mut(item: &mut [u8]) -> &mut Header {
    let (header, _) = Header::mut_from_prefix(item).expect("an item has a header");
    header
}

/// Stores the checksum that marks a reservation, which is dead until [`publish`]. `item` begins with
/// header and key.
///
/// # Panics
/// If `item` is shorter than these.
pub fn seal_staged(item: &mut [u8]) {
    let crc = !checksum_staged(item);
    header_mut(item).set_crc(crc);
}

/// Makes a reservation an item with another header of the same lengths. `item` is all its bytes but
/// the padding. Until the last store, of one word, it is a reservation to [`examine`]. `before_last`
/// is called before that.
///
/// # Panics
/// If `item` is shorter than a header.
pub fn publish(item: &mut [u8], published: Header, before_last: impl FnOnce()) {
    let to = header_mut(item);
    let was = to.check;
    *to = Header {
        check: was,
        ..published
    };
    let deadline = published.deadline();
    let crc = checksum_until(item, deadline);
    compiler_fence(Ordering::Release);
    before_last();
    header_mut(item).check = check(crc, deadline);
}

/// Up to this many bytes of key and value, an item's checksum is recomputed when its header
/// changes: that costs less than shifting the difference.
const SUMMED_ANEW: usize = 4 << 10;

/// Changes the deadline of an item and its checksum by one store, without reading a long value: CRC
/// is linear, so the difference of the headers' checksums, shifted over the payload, is the
/// difference of the items'.
///
/// # Panics
/// If `item` is shorter than a header.
pub fn touch(item: &mut [u8], deadline: Deadline) {
    let payload = item.len() - HEADER;
    let crc = if payload <= SUMMED_ANEW {
        checksum_until(item, deadline)
    } else {
        let front = &item[..HEADER];
        let difference = checksum(front) ^ checksum_until(front, deadline);
        header(item).crc() ^ crc32c_shift(difference, payload)
    };
    header_mut(item).check = check(crc, deadline);
}

/// Changes the header of an item, but not its lengths, and updates its checksum as [`touch`] does,
/// but by more than one store.
///
/// # Panics
/// If `item` is shorter than a header.
pub fn amend(item: &mut [u8], change: impl FnOnce(&mut Header)) {
    let (header, payload) = Header::mut_from_prefix(item).expect("an item has a header");
    let before = checksum(header.as_bytes());
    change(header);
    if payload.len() <= SUMMED_ANEW {
        return seal(item);
    }
    let difference = before ^ checksum(header.as_bytes());
    let crc = header.crc() ^ crc32c_shift(difference, payload.len());
    header.set_crc(crc);
}

/// The result of [`examine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A valid item, with the bytes that it takes.
    Item(usize),
    /// A dead item (deleted, replaced or reserved), with the bytes that it takes.
    Dead(usize),
    /// Neither; its length is unknown.
    Damaged,
}

/// Validates the item at the beginning of `bytes`, which may hold anything.
#[must_use]
pub fn examine(bytes: &[u8]) -> Found {
    let Ok((header, _)) = Header::ref_from_prefix(bytes) else {
        return Found::Damaged;
    };
    let len = header.footprint();
    if !(1..=KEY_BYTES_MAX).contains(&usize::from(header.key_len)) || len > bytes.len() {
        return Found::Damaged;
    }
    let sum = checksum(&bytes[..HEADER + header.payload()]);
    match header.crc() {
        crc if crc == sum && !header.has(bit::STAGED) => Found::Item(len),
        crc if crc == !sum || crc == !checksum_staged(bytes) => Found::Dead(len),
        _ => Found::Damaged,
    }
}

/// Writes a header in place, field by field. A header assembled on the stack and copied from there
/// would be read back by wider loads than the stores that wrote it, which defeats store
/// forwarding.
///
/// # Panics
/// If `item` is shorter than a header.
#[inline]
pub fn put_header(item: &mut [u8], header: Header) {
    let (to, _) = Header::mut_from_prefix(item).expect("an item has a header");
    *to = header;
}
