//! The layout of an item in the log: a 32-byte header with a checksum, then key and value.

use herdwick_mem::{crc32c, crc32c_shift};
use herdwick_request::{Deadline, KEY_BYTES_MAX, Second};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

/// The first 32 bytes of an item in the log; key and value follow, then padding to 8 bytes.
///
/// Only items in a log that outlives the process have a checksum. It covers `version..` to the end
/// of the value, and its seed covers the other fields except the bookkeeping of reads
/// (`last_access` and most of `bits`). The checksum of a dead item is inverted: no single flipped
/// bit revives it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// 1 to 250; 0 marks the rest up to the physical end of the log as skipped.
    pub key_len: u8,
    /// A set of [`bit`]s.
    pub bits: u8,
    /// The flush generation in which it was stored.
    pub generation: U16,
    /// The checksum, or its inverse.
    pub crc: U32,
    /// The [`Deadline`].
    pub deadline: U32,
    /// The [`Second`] of the last access.
    pub last_access: U32,
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
const CRC_AT: usize = std::mem::offset_of!(Header, crc);
/// Items begin at multiples of this.
pub const ALIGN: usize = 8;

const _: () = assert!(HEADER == 32 && CRC_FROM == 16 && HEADER.is_multiple_of(ALIGN));
const _: () = assert!(std::mem::offset_of!(Header, key_len) == 0);
const _: () = assert!(std::mem::offset_of!(Header, shape) == 24);

/// Bits of [`Header::bits`].
pub mod bit {
    /// Read since it was stored.
    pub const FETCHED: u8 = 1;
    /// Marked stale by a delete or an older set.
    pub const STALE: u8 = 2;
    /// A reader has won the right to recache it (the reply flag `W`).
    pub const WIN_SENT: u8 = 4;
    /// The number of uses since it was last copied or stored, 0 to 2, in units of [`USE`].
    pub const USES: u8 = 3 * USE;
    /// One use.
    pub const USE: u8 = 8;
    const TWICE: u8 = 2 * USE;
    /// As [`USES`], in a store of segments: 0 to [`COUNT_MAX`], in units of [`USE`].
    pub const COUNT: u8 = COUNT_MAX * USE;
    /// The greatest count of uses in a store of segments.
    pub const COUNT_MAX: u8 = 15;
    /// What a use adds to the count in a store of segments. A new item has a count of 1.
    pub const COUNTED: u8 = 2;
    /// A reservation: its version names it, and the checksum covers header and key only.
    pub const STAGED: u8 = 128;

    /// Returns the count of uses, in a store of segments.
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

    /// Returns the bits after one more use, in a store of segments; the count saturates.
    #[inline]
    #[must_use]
    pub fn counted(bits: u8) -> u8 {
        with_count(bits, (count(bits) + COUNTED).min(COUNT_MAX))
    }

    /// Returns the bits after one more use; the count saturates at 2.
    #[inline]
    #[must_use]
    pub fn used(bits: u8) -> u8 {
        if bits & TWICE == 0 { bits + USE } else { bits }
    }
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

    /// Returns the deadline.
    #[inline]
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        Deadline(self.deadline.get())
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

    /// Returns the bytes in the log, header and padding included.
    #[inline]
    #[must_use]
    pub fn footprint(&self) -> usize {
        footprint(self.key_len as usize, self.value_len())
    }
}

/// Returns the bytes that an item takes in the log, header and padding included.
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
    item[CRC_AT..CRC_AT + size_of::<U32>()].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the checksum of an item; see [`Header`] for what it covers. `item` is all its bytes but
/// the padding, or less of a reservation.
///
/// # Panics
/// If `item` is shorter than a header.
#[inline]
#[must_use]
pub fn checksum(item: &[u8]) -> u32 {
    let (header, _) = Header::ref_from_prefix(item).expect("an item has a header");
    let kind = u32::from(header.key_len) | u32::from(header.bits & bit::STALE) << 8;
    let seed = kind | u32::from(header.generation.get()) << 16;
    crc32c(
        seed ^ header.deadline.get().rotate_left(12),
        &item[CRC_FROM..],
    )
}

/// Up to this many bytes of key and value, an item's checksum is recomputed when its header
/// changes: that costs less than shifting the difference.
const SUMMED_ANEW: usize = 4 << 10;

/// Changes the header of an item and updates its checksum, without reading a long value: CRC is
/// linear, so the difference of the headers' checksums, shifted over the payload, is the difference
/// of the items'.
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
    let crc = header.crc.get() ^ crc32c_shift(difference, payload.len());
    header.crc.set(crc);
}

/// The result of [`examine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A valid item, with its bytes in the log.
    Item(usize),
    /// A dead item (deleted, replaced or reserved), with its bytes in the log.
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
    if header.has(bit::STAGED) {
        let sum = checksum(&bytes[..HEADER + usize::from(header.key_len)]);
        return if header.crc.get() == !sum {
            Found::Dead(len)
        } else {
            Found::Damaged
        };
    }
    let sum = checksum(&bytes[..HEADER + header.payload()]);
    match header.crc.get() {
        crc if crc == sum => Found::Item(len),
        crc if crc == !sum => Found::Dead(len),
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
