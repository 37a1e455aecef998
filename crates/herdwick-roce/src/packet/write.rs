//! Writing of packets: headers in wire order, then payload and pad.

use zerocopy::{Immutable, IntoBytes};

use super::{BTH_BYTES, Bth};

/// Writes the headers of a packet in wire order into a buffer of exactly the packet's length.
pub struct Head<'a> {
    rest: &'a mut [u8],
}

impl<'a> Head<'a> {
    /// Starts the packet in `room`.
    ///
    /// # Panics
    /// When `room` is shorter than a BTH.
    #[inline]
    #[must_use]
    pub fn new(room: &'a mut [u8], bth: &Bth) -> Self {
        let (here, rest) = room.split_at_mut(BTH_BYTES);
        here.copy_from_slice(bth.as_bytes());
        Self { rest }
    }

    /// Appends an extended header.
    ///
    /// # Panics
    /// When the room has no space for it.
    #[inline]
    pub fn and<T: IntoBytes + Immutable>(self, header: &T) -> Self {
        let (here, rest) = self.rest.split_at_mut(size_of::<T>());
        here.copy_from_slice(header.as_bytes());
        Self { rest }
    }

    /// Returns the buffer for `len` bytes of payload and zeroes the pad after it. What follows (a
    /// trailer, the ICRC) is left unchanged.
    ///
    /// # Panics
    /// When the room has no space for it.
    #[inline]
    #[must_use]
    pub fn payload(self, len: usize) -> &'a mut [u8] {
        let (payload, rest) = self.rest.split_at_mut(len);
        let pad = usize::from(pad_of(len));
        if pad > 0 {
            rest[..pad].fill(0);
        }
        payload
    }
}

/// Returns the number of bytes that round `len` up to a multiple of four.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "at most 3")]
#[must_use]
pub const fn pad_of(len: usize) -> u8 {
    (len.wrapping_neg() & 3) as u8
}
