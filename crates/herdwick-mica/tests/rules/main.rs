//! memcached's rules for each operation, on a store of each kind.

#![allow(clippy::duplicate_mod, reason = "the same tests for each kind")]

#[path = "../common/mod.rs"]
mod common;

#[path = "."]
mod log {
    use herdwick_mica::StoreKind;
    const KIND: StoreKind = StoreKind::Log;
    mod suite;
}

#[path = "."]
mod segments {
    use herdwick_mica::StoreKind;
    const KIND: StoreKind = StoreKind::Segments;
    mod suite;
}
