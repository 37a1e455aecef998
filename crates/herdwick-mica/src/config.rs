//! The configuration of a store, and why there can be none of it.

use std::io;

use herdwick_request::HashKey;

/// The configuration of a [`Store`](crate::Store).
#[derive(Clone, Copy, Debug)]
pub struct StoreConfig {
    /// Bytes of memory in all: index, superblock, log.
    pub memory_bytes: usize,
    /// Maximum size of an item in bytes, 32 bytes of header and the key included (memcached's
    /// `-I`).
    pub item_bytes_max: usize,
    /// Key of the hash that requests carry.
    pub hash_key: HashKey,
    /// What places the items.
    pub kind: StoreKind,
}

/// What decides where items lie and which are evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreKind {
    /// A circular log: the oldest items are evicted, unless they were used.
    Log,
    /// Segments: those with the fewest uses a byte are evicted.
    #[default]
    Segments,
}

impl StoreKind {
    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Segments => "segments",
        }
    }
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
