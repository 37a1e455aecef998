use herdwick_mem::{crc32c, crc32c_shift};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{Deadline, KEY_BYTES_MAX, Second};

/// The first 32 bytes of an item in the log; key and value follow, then padding to 8 bytes.
///
/// The checksum, which only items in a log that outlives the process have, covers `version..` to the
/// end of the value, seeded with what of the rest matters, so that it changes with everything that is
/// not bookkeeping of reads. That of an item that no read may find any more is inverted: no one
/// flipped bit brings it back.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    /// 1 to 250; 0 says that nothing follows up to the physical end of the log.
    pub(crate) key_len: u8,
    pub(crate) bits: u8,
    /// The flush generation in which it was stored.
    pub(crate) generation: U16,
    pub(crate) crc: U32,
    pub(crate) deadline: U32,
    pub(crate) last_access: U32,
    pub(crate) version: U64,
    /// Value length and flags: one word, because it is read back as one by the checksum, which
    /// would have to wait for the stores of two halves.
    pub(crate) shape: U64,
}

/// Bytes of a [`Header`].
pub(crate) const HEADER: usize = size_of::<Header>();
/// Where the checksum's coverage begins.
const CRC_FROM: usize = std::mem::offset_of!(Header, version);
const CRC_AT: usize = std::mem::offset_of!(Header, crc);
/// Items begin at multiples of this.
pub(crate) const ALIGN: usize = 8;

const _: () = assert!(HEADER == 32 && CRC_FROM == 16 && HEADER.is_multiple_of(ALIGN));
const _: () = assert!(std::mem::offset_of!(Header, key_len) == 0);
const _: () = assert!(std::mem::offset_of!(Header, shape) == 24);

/// Bits of [`Header::bits`].
pub(crate) mod bit {
    /// Read since it was stored.
    pub(crate) const FETCHED: u8 = 1;
    /// Marked stale by a delete or an older set.
    pub(crate) const STALE: u8 = 2;
    /// A reader has been told to recache it.
    pub(crate) const WIN_SENT: u8 = 4;
    /// How often it was used since it came to where it is, 0 to 2, in units of [`USE`].
    pub(crate) const USES: u8 = 3 * USE;
    /// One use.
    pub(crate) const USE: u8 = 8;
    const TWICE: u8 = 2 * USE;
    /// A reservation: its version names it, and the checksum covers header and key only.
    pub(crate) const STAGED: u8 = 128;

    /// The bits after one more use.
    #[inline]
    pub(crate) fn used(bits: u8) -> u8 {
        if bits & TWICE == 0 { bits + USE } else { bits }
    }
}

/// [`Header::shape`]: the value's length below 32 bits of flags.
#[inline]
pub(crate) fn shape(value_len: usize, flags: u32) -> U64 {
    (u64::from(value_len as u32) | u64::from(flags) << 32).into()
}

impl Header {
    #[inline]
    pub(crate) fn value_len(&self) -> usize {
        self.shape.get() as u32 as usize
    }

    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        (self.shape.get() >> 32) as u32
    }

    pub(crate) fn deadline(&self) -> Deadline {
        Deadline(self.deadline.get())
    }

    pub(crate) fn last_access(&self) -> Second {
        Second(self.last_access.get())
    }

    #[inline]
    pub(crate) fn has(&self, bit: u8) -> bool {
        self.bits & bit != 0
    }

    /// Bytes of key and value.
    #[inline]
    pub(crate) fn payload(&self) -> usize {
        self.key_len as usize + self.value_len()
    }

    /// Bytes in the log, padding included.
    #[inline]
    pub(crate) fn footprint(&self) -> usize {
        footprint(self.key_len as usize, self.value_len())
    }
}

/// Bytes that an item takes in the log.
#[must_use]
#[inline]
pub fn footprint(key_len: usize, value_len: usize) -> usize {
    (HEADER + key_len + value_len).next_multiple_of(ALIGN)
}

/// Gives an item, all its bytes but the padding, the checksum of what it now is.
#[inline]
pub(crate) fn seal(item: &mut [u8]) {
    let crc = checksum(item);
    item[CRC_AT..CRC_AT + size_of::<U32>()].copy_from_slice(&crc.to_le_bytes());
}

#[inline]
pub(crate) fn checksum(item: &[u8]) -> u32 {
    let (header, _) = Header::ref_from_prefix(item).expect("an item has a header");
    let kind = u32::from(header.key_len) | u32::from(header.bits & bit::STALE) << 8;
    let seed = kind | u32::from(header.generation.get()) << 16;
    crc32c(
        seed ^ header.deadline.get().rotate_left(12),
        &item[CRC_FROM..],
    )
}

/// Items with no more bytes of key and value are summed anew when their header changes: that costs
/// less than the way around it.
const SUMMED_ANEW: usize = 4 << 10;

/// Changes the header of an item, and its checksum by as much, without reading a long value.
pub(crate) fn amend(item: &mut [u8], change: impl FnOnce(&mut Header)) {
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

/// What the bytes where an item should begin are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A whole item, of so many bytes.
    Item(usize),
    /// One that no read may find any more.
    Dead(usize),
    /// Neither: how long it was cannot be told.
    Damaged,
}

/// Looks at the item that `bytes` begin with, believing nothing that they say.
pub(crate) fn examine(bytes: &[u8]) -> Found {
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
