//! The store: MICA's cache mode (NSDI'14), one single-owner partition at a time.
//!
//! A lossy bucketed index of tags and offsets points into a circular log. Identity is the full
//! key, compared in the log; the 64-bit hash only locates. Batches run through a two-stage
//! prefetch (bucket, then item).
//!
//! The request and reply types here are the one internal language of Herdwick: the superset of
//! memcached's meta commands. memcached text is one front end of them, the HERD line another.
#![forbid(unsafe_code)]

mod clock;
mod counters;
mod evict;
mod hash;
mod index;
mod item;
mod log;
mod number;
mod ops;
mod request;
mod room;
mod store;

pub use clock::{Clock, Deadline, Second};
pub use counters::Counters;
pub use hash::{HashKey, KeyHash};
pub use request::{Arith, Delete, Execute, Get, Item, Mode, Op, Put, Reply, Request, Sink, Status};
pub use store::{Store, StoreConfig, StoreError};

/// Most bytes of a key.
pub const KEY_BYTES_MAX: usize = 250;
/// Most bytes of a value, header and key included, unless the store is configured otherwise.
pub const ITEM_BYTES_MAX: usize = 1 << 20;
