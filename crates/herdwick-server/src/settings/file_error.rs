//! Why the memory file (`-e`) cannot be used.

use std::{io, path::PathBuf};

/// Why the file for items cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryFileError {
    /// Another server uses it.
    #[error("{0} is in use by another server; give another file (-e), or end that server")]
    InUse(PathBuf),
    /// It is a directory, a device, or otherwise not a regular file.
    #[error("{0} is no regular file; give one (-e)")]
    Irregular(PathBuf),
    /// The file system has no room for it.
    #[error(
        "there is no room for the {bytes} bytes of {path}; give less memory (-m), or a file elsewhere (-e)"
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// A file may not become that large.
    #[error(
        "{path} takes {bytes} bytes, more than a file may have; raise the limit (ulimit -f, or LimitFSIZE= in the unit file), give less memory (-m), or a file on another file system (-e)"
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// It is not this server's, and the path that it would be renamed to is taken.
    #[error(
        "{path} is not this server's, and cannot be kept as {aside}, which exists; move one of them away, or give another file (-e)"
    )]
    AsideTaken {
        /// The file.
        path: PathBuf,
        /// The path that is taken.
        aside: PathBuf,
    },
    /// After another error, the room that was already allocated could not be given back.
    #[error("{error}; and what {path} took meanwhile could not be given back: {source}")]
    RoomKept {
        /// The other error.
        error: Box<Self>,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// After another error, the items of a server with other options are no longer there.
    #[error("{error}; and the items that {path} held are gone")]
    ItemsGone {
        /// The other error.
        error: Box<Self>,
        /// The file.
        path: PathBuf,
    },
    /// After another error, a file that is not this server's could not be renamed back.
    #[error(
        "{error}; and what was {path} is now {aside}, because renaming it back failed: {source}"
    )]
    KeptAside {
        /// The other error.
        error: Box<Self>,
        /// The file.
        path: PathBuf,
        /// Where it is.
        aside: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The operating system refused something.
    #[error(
        "cannot keep items in {path}: {source}; give a file that this user may write to, on tmpfs, ext4, xfs or btrfs (-e)"
    )]
    Refused {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}
