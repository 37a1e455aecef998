//! [`AuthError`]: why the users' file cannot be used.

use std::{io, path::PathBuf};

/// Longest line of the file in bytes (memcached's `MAX_ENTRY_LEN`).
pub(crate) const LINE_BYTES_MAX: usize = 256;

/// The users' file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// It cannot be read.
    #[error("cannot read the users in {path}: {source}; give another file ({option})")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What names the file.
        option: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// A line is not `user:password`.
    #[error("line {line} of {path}: write user:password, at most {LINE_BYTES_MAX} bytes")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// It has no users, or too many.
    #[error("{path} has {count} users: give 1 to {max}")]
    Count {
        /// The file.
        path: PathBuf,
        /// How many.
        count: usize,
        /// Largest number.
        max: usize,
    },
    /// The system has no random bytes, which SASL needs.
    #[error("getrandom failed, and -S needs random bytes: {0}")]
    Random(io::Error),
}
