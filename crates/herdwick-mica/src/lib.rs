//! The store: MICA's cache mode (NSDI'14), one single-owner partition at a time.
//!
//! A [`Store`] is a lossy index of tags and offsets over a circular log of items. Identity is the
//! full key, compared in the log; the 64-bit hash only locates. A batch runs through a two-stage
//! prefetch, bucket then item, and is then executed in order. What the prefetch found is used while
//! the index has not been edited since, and looked for anew after that: whatever the batch repeats
//! or changes comes out as if its requests had come one by one.
//!
//! # Memory
//! A ninth of [`StoreConfig::memory_bytes`] is index, the rest is log, with a word of it for each 8
//! KiB that says where an item begins. Beside that there is only what of reserved values has to
//! wait outside the log while it laps, for as long as a request takes. An item takes 32 bytes of
//! header, its key and its value, rounded up to 8. With 16-byte keys and 32-byte values the index
//! is four fifths full when the log is; items of less than 64 bytes run out of slots before they
//! run out of log, larger ones leave slots unused.
//!
//! # Index
//! Partial-key cuckoo hashing on 64-byte buckets of 8 slots, any number of them. An entry's other
//! bucket follows from its bucket and its tag, so a neighbour is moved without touching the log. An
//! insertion tries both buckets, then one step aside by each of the 16 neighbours, then takes the
//! place of the oldest of them; its work is bounded whatever the keys.
//!
//! # Log
//! New items go in at one end, the oldest go out at the other, and the walk that lets them go takes
//! each out of the index. So no entry ever points at what has been overwritten, the counters are
//! exact, and entries may be plain offsets: MICA's virtual ones, its sweep against their return,
//! and a division for each lookup are not needed.
//!
//! Each item describes itself: length, version, checksum, and whether it has been deleted or
//! replaced. With a few words that say where the log begins and ends, a walk is all that
//! rebuilding the index takes. So a log that lives in a file ([`Store::in_file`]) outlives the
//! process, however that ends.
//!
//! - An update of unchanged size happens in place.
//! - What was read or written in place is copied to the young end when it gets to the old one, at
//!   the cost of one use; two are counted (CLOCK, of two bits). A read costs a store to a line that
//!   it has loaded, the log holds no second copies, and what is asked for once goes after one lap.
//! - While live items fill less than five eighths of the log, those at the old end are copied too:
//!   churn alone never evicts. Above that the log is a cache.
//!
//! A large value can be written to the log as it comes ([`Store::stage`]): a reservation is an item
//! that no entry leads to, carried along when the log laps, until a [`Put`] names it.
//!
//! A store that evicts nothing ([`Store::evict_nothing`]) copies all that is alive at the old end,
//! and refuses what would leave too little to gain by it.
//!
//! # Time
//! Deadlines and flushes are enforced by whoever meets the item: a request or the walk. A flush
//! ends a generation, and items carry theirs, so that it needs no clock finer than seconds to tell
//! what was stored before it from what came after. When their numbers come around, after 65,536
//! flushes, all that lies in the log before that point is flushed by where it lies: a flush takes
//! the same few stores however much there is.
//!
//! The request and reply types here are the one internal language of Herdwick: the superset of
//! memcached's meta commands. memcached text is one front end of them, the HERD line another.
#![forbid(unsafe_code)]

mod clock;
mod counters;
mod evict;
mod eviction_log;
mod hash;
mod index;
mod item;
mod log;
mod lossless;
mod number;
mod ops;
mod recover;
mod request;
mod room;
mod scan;
mod shape;
mod staged;
mod store;
mod superblock;

pub use clock::{Clock, Deadline, EXPTIME_PAST, Second};
pub use counters::Counters;
pub use eviction_log::Evicted;
pub use hash::{HashKey, KeyHash};
pub use item::footprint;
pub use recover::{LAYOUT, Recovered};
pub use request::{Arith, Delete, Execute, Get, Item, Mode, Op, Put, Reply, Request, Sink, Status};
pub use staged::Staged;
pub use store::{Store, StoreConfig, StoreError};

/// Most bytes of a key.
pub const KEY_BYTES_MAX: usize = 250;
/// Values from this size on are asked for before they are given to a [`Sink`].
pub const LARGE_BYTES: usize = 16 << 10;
/// Most bytes of a value, header and key included, unless the store is configured otherwise.
pub const ITEM_BYTES_MAX: usize = 1 << 20;
