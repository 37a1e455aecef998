//! How requests end, why they do not begin, and how long a client waits for what.

use std::time::Duration;

use crate::{Failure, layout::KEY_BYTES_MAX};

/// The answer to a request.
pub type Answer<'a> = herdwick_read::Answer<&'a [u8], Failure>;

/// Why a request cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// As many are in flight as there may be: poll first.
    #[error("too many requests are in flight")]
    Full,
    /// A key of no bytes, or of more than [`KEY_BYTES_MAX`].
    #[error("a key has 1 to {max} bytes, not {0}", max = KEY_BYTES_MAX)]
    Key(usize),
    /// A value longer than the data nodes have entries for, or than the client's option.
    #[error("key and value have up to {max} bytes together, not {len}")]
    Value {
        /// Bytes of key and value.
        len: usize,
        /// Most.
        max: usize,
    },
    /// The data nodes have given the right to read alone.
    #[error("this client may only read: the data nodes were not shown their secret")]
    ReadOnly,
    /// The connection has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// How long a client waits for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    pub(crate) publish: Duration,
    pub(crate) entry_wait: Duration,
    pub(crate) timeout: Duration,
}
