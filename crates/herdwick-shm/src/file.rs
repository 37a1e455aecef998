//! Sealed memory files, which have no name that anybody else could open.

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

/// What every shared file is sealed with: its length is fixed, and so are its seals.
const FIXED: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Who may write a file besides its maker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writers {
    /// Whoever holds it.
    Everyone,
    /// Nobody who holds only the descriptor: it is open for reading, and the file's mode lets no
    /// other user open it again. The maker can punch holes, which it cannot where the next is sealed.
    Owner,
    /// Nobody at all: mappings made from now on are read-only, and so are `write` and hole
    /// punching. For a file that many guests share and believe.
    MakerAlone,
}

/// Makes a file of `len` zeroed bytes and maps it; what is returned is for others to hold. The seals
/// are complete at return.
pub(crate) fn make(len: usize, writers: Writers) -> io::Result<(OwnedFd, Arc<Mapping>)> {
    let fd = memfd_create("herdwick", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, len as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    // The one writable mapping of a file that its holders only read comes before its seal.
    let mapping = Mapping::shared(&fd, len, Access::ReadWrite)?;
    fcntl_add_seals(&fd, seals(writers))?;
    let fd = match writers {
        Writers::Owner => for_readers(&fd)?,
        Writers::Everyone | Writers::MakerAlone => fd,
    };
    Ok((fd, Arc::new(mapping)))
}

/// The same file, opened for reading.
fn for_readers(fd: &OwnedFd) -> io::Result<OwnedFd> {
    fchmod(fd, Mode::RUSR)?;
    // The thread's own table: that of a process is its first thread's, which may have ended.
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

/// Maps a file that [`make`] made in another process, if it is one: `None` when its length, its
/// seals or the rights of the descriptor are not exactly what they should be.
pub(crate) fn open(
    fd: impl AsFd,
    len: usize,
    writers: Writers,
) -> io::Result<Option<Arc<Mapping>>> {
    let is_memfd = fcntl_get_seals(&fd);
    let size = u64::try_from(fstat(&fd)?.st_size);
    let opened = fcntl_getfl(&fd)? & OFlags::RWMODE;
    let access = match writers {
        Writers::Everyone => Access::ReadWrite,
        Writers::Owner | Writers::MakerAlone => Access::Read,
    };
    let due = match writers {
        Writers::Owner => OFlags::RDONLY,
        Writers::Everyone | Writers::MakerAlone => OFlags::RDWR,
    };
    if is_memfd != Ok(seals(writers)) || size != Ok(len as u64) || opened != due {
        return Ok(None);
    }
    Mapping::shared(fd, len, access).map(|mapping| Some(Arc::new(mapping)))
}

/// A page on which a host says to all its guests whether it sleeps.
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
        mapping.populate(0..BOARD_BYTES)?;
        let span = Span::new(mapping);
        Ok(Self { fd, span })
    }
}
