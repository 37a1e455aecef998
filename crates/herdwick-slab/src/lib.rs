//! A store in slabs, as in memcached: memory is cut into slabs of 1 MB, and a slab into chunks of its
//! class's size, one for each item. One owner a partition.
//!
//! Start with [`Store`], which executes [`Request`](herdwick_request::Request)s; `ops` has the effect
//! of each request on an item, `room` and `empty` say where an item goes.
//!
//! ```
//! use herdwick_request::{Clock, Execute, Get, HashKey, Op, Put, Reply, Request, Second};
//! use herdwick_slab::{Growth, SlabConfig, Store};
//!
//! let hash_key = HashKey([1, 2]);
//! let growth = Growth::default();
//! let config = SlabConfig { memory_bytes: 8 << 20, item_bytes_max: 64 << 10, hash_key, growth };
//! let mut store = Store::new(&config)?;
//! let put = Op::Put(Put { value: b"hello", ..Put::default() });
//! let batch = [put, Op::Get(Get::default())]
//!     .map(|op| Request { hash: hash_key.hash(b"greeting"), key: b"greeting", op });
//! let clock = Clock { epoch_unix: 1_700_000_000, second: Second(100) };
//! let mut values = Vec::new();
//! store.execute(clock, &batch, &mut |_, reply: &Reply<'_>| {
//!     values.extend(reply.item.as_ref().map(|item| item.value.to_vec()));
//! });
//! assert_eq!(values.last().map(Vec::as_slice), Some(&b"hello"[..]));
//! # Ok::<(), herdwick_slab::SlabError>(())
//! ```
//!
//! # Memory
//! A 32nd of [`SlabConfig::memory_bytes`] is index: lists of items with a common part of their hash. The
//! rest is slabs, and 28 bytes for each chunk of those that are cut. Slabs are smaller than 1 MB where
//! there would be fewer than 16, as far as they hold the largest item, and larger where the largest item
//! is. An item of more than half a slab takes a whole one.
//!
//! # Eviction
//! Each class has a list of its items, and evicts by CLOCK: the item at the end goes, unless it was used
//! since it was last there (up to three uses are counted); then it comes to the head. Of 33 items one
//! goes, used or not. Expired and flushed ones go first where they are met.
//!
//! # Slabs between classes
//! A class without a chunk takes a slab that is not cut, then evicts, and if it has nothing to evict has a
//! slab of another class emptied at once. When a class has evicted as many items as a slab has, it compares
//! ages: if what another class would evict next has been unused for a quarter longer than what this one
//! would, a slab of that one is emptied, a few chunks with each put, and is there for the next class that
//! lacks one. An item in such a slab moves to a free chunk of its class, or to that of an item nearer to the end of
//! the list, which goes instead.
//!
//! # Published memory
//! The memory may be a file that other processes map to read ([`Store::published`]). Each chunk has a stag then, the
//! number of a window onto it. When an item is replaced, its chunk and the new one swap their stags, and
//! when an item moves to another slab it takes its stag along: so a key has one stag while it is stored. Who READs
//! a chunk checks it (`herdwick_layout::chunk::judge`): a checksum covers key, value, stag and the count of flushes.
//! That costs the store a checksum for each item stored, 8 bytes more for each chunk, and memory that is
//! populated from the start and not given back.
//!
//! # Time
//! Deadlines and flushes are enforced lazily, by the request that reaches the item. A flush is one number
//! in the store, and each item has the one at which it was stored.
#![forbid(unsafe_code)]

mod config;
mod counters;
mod empty;
mod emptying;
mod evicted;
mod eviction_log;
mod fresh;
mod index;
mod metas;
mod ops;
mod publish;
mod reservations;
mod room;
mod scan;
mod shape;
mod slabs;
mod staged;
mod stags;
mod store;

pub use config::{Growth, SlabConfig, SlabError};
pub use counters::Counters;
pub use evicted::Evicted;
pub use stags::{Publication, Tagged};
pub use store::{Hashes, Store};
