//! The configuration of a store, and why there can be none of it.

use std::io;

use herdwick_request::HashKey;

/// The configuration of a [`Store`](crate::Store).
#[derive(Clone, Copy, Debug)]
pub struct StoreConfig {
    /// Bytes of memory in all: index, segments, table of segments.
    pub memory_bytes: usize,
    /// Maximum size of an item in bytes, a header of 32 bytes and the key included (memcached's
    /// `-I`).
    pub item_bytes_max: usize,
    /// Key of the hash that requests carry.
    pub hash_key: HashKey,
}

/// Why a store cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The memory is too small for items of the maximum size.
    #[error(
        "{memory_bytes} bytes of memory are too few for items of up to {item_bytes_max} bytes: \
         give each partition at least {needed}, or allow smaller items only"
    )]
    TooSmall {
        /// The configured memory.
        memory_bytes: usize,
        /// The maximum size of an item.
        item_bytes_max: usize,
        /// The memory that is sufficient.
        needed: usize,
    },
    /// The kernel refused the memory.
    #[error("the kernel refused {memory_bytes} bytes of memory: {source}")]
    Refused {
        /// The configured memory.
        memory_bytes: usize,
        /// The kernel's error.
        source: io::Error,
    },
}
