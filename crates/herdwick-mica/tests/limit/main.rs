//! A limit on the memory, with a store of each kind.

#![allow(clippy::duplicate_mod, reason = "the same tests for each kind")]

#[path = "../common/mod.rs"]
mod common;

const ITEM_BYTES_MAX: usize = 64 << 10;

#[path = "."]
mod log {
    use herdwick_mica::StoreKind;
    const KIND: StoreKind = StoreKind::Log;
    /// Uploads that the lowest limit admits at a time.
    const STAGED_LEAST: usize = 1;

    /// Returns the bytes that the limit for so many of the largest items leaves.
    fn left(largest: usize) -> usize {
        largest * (super::ITEM_BYTES_MAX + 32)
    }

    mod suite;
}

#[path = "."]
mod segments {
    use herdwick_mica::StoreKind;
    const KIND: StoreKind = StoreKind::Segments;
    const STAGED_LEAST: usize = 4;

    /// As for the log: three segments for each item, and twelve beside them.
    fn left(largest: usize) -> usize {
        (largest * 3 + 12) * (32 << 10)
    }

    mod suite;
}
