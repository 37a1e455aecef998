//! Damaged files, with a store of each kind.

#![allow(clippy::duplicate_mod, reason = "the same tests for each kind")]

#[path = "../common/mod.rs"]
mod common;

#[path = "."]
mod log {
    use herdwick_mica::StoreKind;
    const KIND: StoreKind = StoreKind::Log;
    const MEMORY_BYTES: usize = 96 << 10;
    /// Where the items begin in the file: the superblock takes less than a page.
    const ITEMS: u64 = 4096;
    mod suite;
}

#[path = "."]
mod segments {
    use herdwick_mica::StoreKind;
    const KIND: StoreKind = StoreKind::Segments;
    const MEMORY_BYTES: usize = 128 << 10;
    /// Where the items begin in the file, behind two pages for the superblock and the segments' words.
    const ITEMS: u64 = 8192;
    mod suite;
}
