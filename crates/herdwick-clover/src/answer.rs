//! How requests end, why they do not begin, and how long a client waits for what.

use std::time::Duration;

use crate::{Failure, layout::KEY_BYTES_MAX};

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The value of a GET.
    Value(&'a [u8]),
    /// The key of a GET or DELETE is not stored.
    Missing,
    /// The PUT or DELETE is done.
    Done,
    /// The PUT is refused: there is no entry for it, or no room for another key.
    Full,
    /// Others change the key so often that the request was given up. It has no effect.
    Contended,
    /// The server refuses the request as malformed: it and the client do not fit together.
    Refused,
    /// The connection failed. Whether a PUT or DELETE is done is not known.
    Failed(Failure),
}

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
