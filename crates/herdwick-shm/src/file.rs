//! Sealed memory files without a name, so that only a holder of the descriptor can open them.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::Arc,
};

use herdwick_mem::{Access, Mapping, Span};
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, fcntl_getfl,
    fstat, ftruncate, memfd_create, open as open_path,
};

/// Seals of every shared file: its length and its seals are fixed.
const FIXED: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Who may write a file besides its maker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writers {
    /// Every holder of the descriptor.
    Everyone,
    /// No holder of the descriptor: it is open for reading, and the file's mode keeps other users
    /// from opening it again. The maker can punch holes, which the seal of `MakerAlone` forbids.
    Owner,
    /// No process: later mappings are read-only, and `write` and hole punching fail. For a file
    /// that many clients share and trust.
    MakerAlone,
}

/// Makes a file of `len` zeroed bytes and maps it. Returns the descriptor for others to hold, and
/// the mapping. The seals are complete at return.
pub(crate) fn make(len: usize, writers: Writers) -> io::Result<(OwnedFd, Arc<Mapping>)> {
    let fd = memfd_create("herdwick", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, len as u64)?;
    // The length is sealed before the file is mapped: a shorter file would raise SIGBUS.
    // GROW too: `open` compares the length, which must not change behind the comparison.
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    // FUTURE_WRITE forbids later writable mappings, so this one is made before it is sealed.
    let mapping = Mapping::shared(&fd, len, Access::ReadWrite)?;
    // With SEAL, so that no holder adds WRITE, which would make the maker's own stores fail.
    fcntl_add_seals(&fd, seals(writers))?;
    let fd = match writers {
        Writers::Owner => for_readers(&fd)?,
        Writers::Everyone | Writers::MakerAlone => fd,
    };
    Ok((fd, Arc::new(mapping)))
}

/// Opens the same file for reading.
pub(crate) fn for_readers(fd: impl AsFd) -> io::Result<OwnedFd> {
    let fd = fd.as_fd();
    // Before it is opened again: other users could open it for writing through /proc.
    fchmod(fd, Mode::RUSR)?;
    // Of this thread: the process's own entry is its first thread's, which may have ended.
    let path = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
    Ok(open_path(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

fn seals(writers: Writers) -> SealFlags {
    match writers {
        Writers::Everyone | Writers::Owner => FIXED,
        Writers::MakerAlone => FIXED | SealFlags::FUTURE_WRITE,
    }
}

/// Maps a file that [`make`] made in another process. Returns `None` if its length, its seals or
/// the access mode of the descriptor are not exactly as made.
pub(crate) fn open(
    fd: impl AsFd,
    len: usize,
    writers: Writers,
) -> io::Result<Option<Arc<Mapping>>> {
    let is_memfd = fcntl_get_seals(&fd);
    let size = u64::try_from(fstat(&fd)?.st_size);
    // A file for readers that was opened for writing is not what `make` returns.
    let opened = fcntl_getfl(&fd)? & OFlags::RWMODE;
    let access = match writers {
        Writers::Everyone => Access::ReadWrite,
        Writers::Owner | Writers::MakerAlone => Access::Read,
    };
    let due = match writers {
        Writers::Owner => OFlags::RDONLY,
        Writers::Everyone | Writers::MakerAlone => OFlags::RDWR,
    };
    // Before the file is mapped: one that could shrink would raise SIGBUS in this process.
    if is_memfd != Ok(seals(writers)) || size != Ok(len as u64) || opened != due {
        return Ok(None);
    }
    Mapping::shared(fd, len, access).map(|mapping| Some(Arc::new(mapping)))
}

/// A page on which a host shows all its clients whether it sleeps.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) fd: OwnedFd,
    pub(crate) span: Span,
}

/// Bytes of a [`Board`].
pub(crate) const BOARD_BYTES: usize = 4096;

impl Board {
    pub(crate) fn new() -> io::Result<Self> {
        let (fd, mapping) = make(BOARD_BYTES, Writers::MakerAlone)?;
        // Now, so that a host without memory fails here and not at a later store.
        mapping.populate(0..BOARD_BYTES)?;
        let span = Span::new(mapping);
        Ok(Self { fd, span })
    }
}
