//! The number of a slot.

use herdwick_layout::bucket::WAYS;

/// The number of a slot, counted over all buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place(usize);

impl Place {
    #[inline]
    pub(super) fn new(bucket: usize, way: usize) -> Self {
        Self(bucket * WAYS + way)
    }

    #[inline]
    pub(super) fn bucket(self) -> usize {
        self.0 / WAYS
    }

    #[inline]
    pub(super) fn way(self) -> usize {
        self.0 % WAYS
    }
}
