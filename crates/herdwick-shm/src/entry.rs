//! The words of a region entry: what an owner shows of a region.

use herdwick_fabric::{Access, Rkey};

/// The bits of `rights` in docs/wire.md: above the rkey, below the serial number.
const RIGHT_READ: u64 = 1 << 32;
const RIGHT_WRITE: u64 = 1 << 33;
const RIGHT_ATOMIC: u64 = 1 << 34;

/// A region entry's place, if the region is memory with a file of its own.
pub(crate) const SHARED: u64 = 1 << 62;

/// The first word of a region entry; the serial number makes it differ from earlier ones.
pub(crate) fn entry_word(rkey: Rkey, access: Access, serial: u64) -> u64 {
    let right = |granted: bool, bit: u64| if granted { bit } else { 0 };
    u64::from(rkey.0)
        | right(access.remote_read, RIGHT_READ)
        | right(access.remote_write, RIGHT_WRITE)
        | right(access.remote_atomic, RIGHT_ATOMIC)
        // The upper 24 bits. A READ that compares the word before and after its copy sees a region
        // that was closed and opened again.
        | serial << 40
}

/// The right that a one-sided verb needs: its bit in an entry's first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessRight(pub(crate) u64);

impl AccessRight {
    pub(crate) const READ: Self = Self(RIGHT_READ);
    pub(crate) const WRITE: Self = Self(RIGHT_WRITE);
    pub(crate) const ATOMIC: Self = Self(RIGHT_ATOMIC);
}
