//! The handle of a put whose value is arriving: the store gives it out, and the put names it.

use std::num::NonZeroU64;

/// A handle to a put with an arriving value, from the store's reservation to the
/// [`Put`](crate::Put) that names it, or to its end without one. A handle used after that is
/// recognized as unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staged {
    id: NonZeroU64,
    value_len: u32,
}

impl Staged {
    /// Returns the handle of reservation `id`, a number that is the store's own, for a value of
    /// `value_len` bytes.
    #[must_use]
    pub fn new(id: NonZeroU64, value_len: usize) -> Self {
        Self {
            id,
            // A longer value exceeds every limit of an item, so its reservation was refused.
            value_len: value_len as u32,
        }
    }

    /// Returns a handle that no store knows. A [`Put`](crate::Put) that names it is refused and
    /// stores nothing.
    #[must_use]
    pub fn unknown(value_len: usize) -> Self {
        // Stores count from 1.
        Self::new(NonZeroU64::MAX, value_len)
    }

    /// Returns the number that the store gave to the reservation.
    #[must_use]
    pub fn id(self) -> NonZeroU64 {
        self.id
    }

    /// Returns the bytes of the value.
    #[must_use]
    pub fn value_len(self) -> usize {
        self.value_len as usize
    }
}
