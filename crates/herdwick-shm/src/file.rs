//! Sealed memory files, which have no name that anybody else could open.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use herdwick_mem::{Access, Mapping, Span};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
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
    /// Nobody: mappings made from now on are read-only, and so are `write` and hole punching.
    MakerAlone,
}

/// Makes a file of `len` zeroed bytes and maps it. The seals are complete at return.
pub(crate) fn make(len: usize, writers: Writers) -> io::Result<(OwnedFd, Arc<Mapping>)> {
    let fd = memfd_create("herdwick", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, len as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    // The one writable mapping of a file that its holders only read comes before its seal.
    let mapping = Mapping::shared(&fd, len, Access::ReadWrite)?;
    fcntl_add_seals(&fd, seals(writers))?;
    Ok((fd, Arc::new(mapping)))
}

fn seals(writers: Writers) -> SealFlags {
    match writers {
        Writers::Everyone => FIXED,
        Writers::MakerAlone => FIXED | SealFlags::FUTURE_WRITE,
    }
}

/// Maps a file that [`make`] made in another process, if it is one: `None` when its length or
/// seals are not exactly what they should be.
pub(crate) fn open(
    fd: impl AsFd,
    len: usize,
    writers: Writers,
) -> io::Result<Option<Arc<Mapping>>> {
    let is_memfd = fcntl_get_seals(&fd);
    let size = u64::try_from(fstat(&fd)?.st_size);
    if is_memfd != Ok(seals(writers)) || size != Ok(len as u64) {
        return Ok(None);
    }
    let access = match writers {
        Writers::Everyone => Access::ReadWrite,
        Writers::MakerAlone => Access::Read,
    };
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
