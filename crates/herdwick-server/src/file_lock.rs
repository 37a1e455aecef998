//! Locks on files that are opened by their path: what the path names when the lock is taken, not
//! what it named when the file was opened.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt,
    path::Path,
};

use rustix::fs::{FlockOperation, flock};

/// Attempts to lock a file that another process renames or removes meanwhile.
const TRIES: usize = 8;

/// Opens the file at `path` with `options` and locks it exclusively.
///
/// # Errors
/// `WouldBlock` if another process holds the lock, or has replaced the file at each attempt; the
/// errors of the system calls.
pub(crate) fn open_locked(path: &Path, options: &OpenOptions) -> io::Result<File> {
    for _ in 0..TRIES {
        let file = options.open(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        if is_at(&file, path)? {
            return Ok(file);
        }
    }
    Err(ErrorKind::WouldBlock.into())
}

/// Returns whether `path` still names `file`.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((own.dev(), own.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
