//! Disk space of the memory file: free space, zeroing without deallocation, and the name `.old` for a
//! file of another owner that is in its place.

use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FallocateFlags, StatVfs, fallocate},
    io::Errno,
};

/// Bytes allocated at a time: a signal makes some file systems give back all that one call has
/// allocated.
pub(super) const PIECE: u64 = 64 << 20;

/// Returns the free bytes of a file system. One that does not report them, as a tmpfs without a limit,
/// has no bound; what it reserves for root counts for root alone.
pub(super) fn free_bytes(free: &StatVfs, is_root: bool) -> u64 {
    if free.f_blocks == 0 {
        return u64::MAX;
    }
    let blocks = if is_root { free.f_bfree } else { free.f_bavail };
    blocks.saturating_mul(free.f_frsize)
}

/// Zeroes allocated bytes, which stay allocated. Where the file system has no call for it, as
/// tmpfs, or the call finds no room for its own records, zeros are written over them.
pub(super) fn zero(file: &File, range: Range<u64>) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        let piece = PIECE.min(range.end - at);
        match fallocate(file, FallocateFlags::ZERO_RANGE, at, piece) {
            Ok(()) => at += piece,
            Err(Errno::INTR) => {}
            // Whatever the reason: if the file system cannot write either, that is the error that
            // is reported.
            Err(_) => return write_zeros(file, at..range.end),
        }
    }
    Ok(())
}

fn write_zeros(file: &File, range: Range<u64>) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut at = range.start;
    while at < range.end {
        let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        let piece = &zeros[..zeros.len().min(left)];
        file.write_all_at(piece, at)?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// Returns the path that a foreign file is renamed to.
pub(super) fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".old");
    name.into()
}
