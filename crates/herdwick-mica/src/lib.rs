//! The key-value store: one single-owner partition in MICA's cache mode (NSDI'14).
//!
//! Start with [`Store`], which executes [`Request`](herdwick_request::Request)s; `ops` has the effect
//! of each request on an item, `segments` and `index` the memory.
//!
//! ```
//! use herdwick_mica::{Store, StoreConfig};
//! use herdwick_request::{Clock, Execute, Get, HashKey, Op, Put, Reply, Request, Second};
//!
//! let hash_key = HashKey([1, 2]);
//! let config = StoreConfig { memory_bytes: 1 << 20, item_bytes_max: 64 << 10, hash_key };
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
//! # Ok::<(), herdwick_mica::StoreError>(())
//! ```
//!
//! A [`Store`] is a lossy index of tags and offsets over items in segments. The full key, compared in
//! the item, identifies it; the 64-bit hash only locates it. A batch runs through a two-stage
//! prefetch, bucket then item, and is then executed in order. A prefetched location is valid if the
//! index still has the entry there; if not, the key is searched again. So a batch that
//! repeats or changes a key has the same result as its requests one by one.
//!
//! # Memory
//! [`StoreConfig::memory_bytes`] is index, segments, and their table, an entry for each. The index begins
//! with a 256th of it, below 16 MiB with more, and takes the memory of the last segments as it grows, up to
//! an eighth. In a file, in published memory, and where nothing is evicted, it has an eighth
//! from the beginning. An item takes 16, 24 or 32 bytes of header, its key and its value (docs/store.md): 24 if it
//! has client flags or a deadline, 32 if it is of 4 KiB or more, or if the store evicts nothing. One that
//! fits a cache line lies within one. With 16-byte keys and 32-byte values, a line each, the index is
//! five sixths full when memory is. Smaller items run out of slots before they run out of memory; larger
//! ones leave slots unused, where the index does not grow.
//!
//! # Index
//! Partial-key cuckoo hashing on 64-byte buckets of 8 slots, in blocks of 128. An entry's other
//! bucket is in the same block, and follows from its bucket and its tag, so a neighbour is moved without
//! touching the items. The index grows by linear hashing: while more than six tenths of the slots are used,
//! each mutation divides one block in two, by a bit of the hash that the entries hold. An
//! insertion tries both buckets, then tries to move each of the 16 neighbours to its other bucket,
//! then searches for a chain of entries to move, within the block, and last replaces the oldest neighbour.
//! An index that is nearly full is not searched for a chain, but where nothing is evicted, and in recovery.
//! Its work is bounded whatever the keys are.
//!
//! # Segments
//! Memory is cut into segments of 4 KiB to 1 MiB, 128 to 256 of them, more where they would be
//! larger than 1 MiB, and fewer (24 at least) where smaller than 4 KiB. New items are appended to
//! the open segment of their kind: those that will expire at about the same time share one, and so
//! do copies; so do items within cache lines, which would leave gaps among others. A segment is free when its last item is dead. While few are free, requests *clean*
//! one ahead of need, a part each, in proportion to what they store: its items are copied, or
//! evicted, and their index entries follow.
//!
//! - While live items fill less than 17 twentieths of the segments, none is evicted, unless
//!   cleaning gains no room: the segment with the fewest live bytes is cleaned, and all its items
//!   are copied.
//! - Above that the segment is cleaned of which most is dead, or has few uses, for each byte and for
//!   each byte stored since. Of its items those with more uses than is usual are copied: three fifths of
//!   the bytes, at most three bytes for each byte stored. So a large value has to be used as often as the
//!   small ones whose room it takes.
//! - An item records its uses as a power of two, and whether there was one since it was stored or copied.
//!   A copy has half of them, or none if it was not used since the last one. An item that replaces another
//!   keeps its uses, as a copy does. One that was never used counts as much as items of its kind (of the
//!   same time to live) are read at all, and less once it was copied. For a lower limit none of those is
//!   copied.
//! - A segment whose items have all expired or were flushed comes first.
//! - An item of many segments lies in adjacent ones. Where enough are free but apart, the runs between
//!   them are moved, or a window of segments is cleared.
//! - A reservation ([`Store::stage`]) is an item without an index entry; its segment is cleaned
//!   only for a run. A store that evicts nothing copies all live items, and refuses a put with
//!   which they would take more than 17 twentieths, or that leaves no free segments to copy the
//!   largest item.
//! - The walk that frees a segment removes the index entries of its items. So no entry ever points at
//!   overwritten bytes, the counters are exact, and entries are plain offsets: MICA's virtual offsets,
//!   its sweep against their wrap-around, and a division for each lookup are not needed.
//!
//! # Files
//! Each item in a file describes itself: length, version, checksum, and whether it has been deleted or
//! replaced. The file holds three words of each segment, its first item, its end and its age, and one
//! for each 4 KiB of it with the offset of an item's beginning, by which one walk over the segments
//! rebuilds the index. So items in a file ([`Store::in_file`]) outlive the process, however the process
//! ends.
//!
//! # Time
//! Deadlines and flushes are enforced lazily, by the request or the walk that reaches the item. A
//! flush seals all segments: the items in those opened before it are flushed. So items stored before and
//! after a flush are distinguished without a clock finer than seconds, and without a mark in each. A
//! flush takes a walk over the table of segments, however many items there are.
#![forbid(unsafe_code)]

mod config;
mod counters;
mod evicted;
mod eviction_log;
mod grow;
mod index;
mod items;
mod lossless;
mod ops;
mod prefetch;
mod published;
mod recover;
mod reservations;
mod room;
mod scan;
mod segments;
mod shape;
mod staged;
mod store;
mod superblock;
mod uses;
mod walks;

#[cfg(test)]
#[path = "../tests/common/file.rs"]
mod test_file;

pub use config::{StoreConfig, StoreError};
pub use counters::{CounterDescription, CounterDescriptions, Counters};
pub use evicted::Evicted;
pub use recover::{LAYOUT, Recovered};
pub use store::{Hashes, Store};
