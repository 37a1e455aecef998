//! The configuration of a store, and why there can be none of it.

use std::io;

use herdwick_request::HashKey;

/// The configuration of a [`Store`](crate::Store).
#[derive(Clone, Copy, Debug)]
pub struct SlabConfig {
    /// Bytes of memory in all: index, slabs, what is kept of each chunk.
    pub memory_bytes: usize,
    /// Maximum size of an item in bytes, a header of 32 bytes and the key included (memcached's
    /// `-I`).
    pub item_bytes_max: usize,
    /// Key of the hash that requests carry.
    pub hash_key: HashKey,
    /// How the sizes of chunks grow.
    pub growth: Growth,
}

/// How the sizes of chunks grow from class to class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// Each class has chunks of so many times the size of the one before it (memcached's `-f`).
    pub factor: f64,
    /// Bytes for key and value in a chunk of the smallest class (memcached's `-n`).
    pub smallest: usize,
}

impl Default for Growth {
    /// memcached's.
    fn default() -> Self {
        Self {
            factor: 1.25,
            smallest: 48,
        }
    }
}

/// Why a store cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SlabError {
    /// The memory is too small for items of the maximum size.
    #[error(
        "{memory_bytes} bytes of memory are too few for slabs that hold items of up to \
         {item_bytes_max} bytes: give each partition at least {needed}, or allow smaller items only"
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
