//! Memory that many domains and ports register: one table for all clients and all cores.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use herdwick_mem::{Mapping, Span};

use crate::{Access, ControlError};

mod windows;

pub use windows::Windows;

/// Who may change shared memory, besides its maker's CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// No peer. Over shared memory the file is sealed: a client cannot map it to write.
    #[default]
    ReadOnly,
    /// Trust mode: peers may be granted WRITE and atomics. Over shared memory a peer checks its own
    /// accesses, so rights and rkeys stop its mistakes only: any peer that maps the memory can
    /// change all of it.
    TrustedPeers,
}

/// Memory that is registered in any number of domains, on any number of ports, each with an rkey of
/// its own. Clones share it; it is unmapped with the last one and the last region of it.
#[derive(Clone)]
pub struct SharedMemory {
    span: Span,
    file: Option<Arc<OwnedFd>>,
    sharing: Sharing,
    windows: Option<Windows>,
}

impl SharedMemory {
    /// Wraps memory that a provider allocated, with the file that peers map, if they do.
    #[must_use]
    pub fn new(span: Span, file: Option<OwnedFd>, sharing: Sharing) -> Self {
        let file = file.map(Arc::new);
        Self {
            span,
            file,
            sharing,
            windows: None,
        }
    }

    /// Gives the memory windows, the places of which are at its beginning: a region of it has their
    /// addresses, instead of its own.
    ///
    /// # Errors
    /// [`ControlError::Unsupported`]: the memory is too short for their places, or peers may write it.
    pub fn with_windows(self, windows: Windows) -> Result<Self, ControlError> {
        // A peer that can write the table could move other clients' windows.
        if self.sharing != Sharing::ReadOnly || windows.table_bytes() > self.span.len() {
            let refused =
                "windows onto memory that peers write, or that is shorter than their places";
            return Err(ControlError::Unsupported(refused));
        }
        let windows = Some(windows);
        Ok(Self { windows, ..self })
    }

    /// Returns its windows.
    #[must_use]
    pub fn windows(&self) -> Option<Windows> {
        self.windows
    }

    /// Returns the length of a region of it.
    #[must_use]
    pub fn region_len(&self) -> usize {
        let windows = self.windows.as_ref();
        windows.map_or(self.span.len(), Windows::region_len)
    }

    /// Allocates zeroed memory of this process alone: enough where peers reach it by rkeys.
    ///
    /// # Errors
    /// Memory is short.
    pub fn anonymous(len: usize, sharing: Sharing) -> Result<Self, ControlError> {
        let span = allocate(len).map_err(|source| ControlError::System {
            what: "allocating shared memory",
            source,
        })?;
        Ok(Self::new(span, None, sharing))
    }

    /// Returns the memory.
    #[must_use]
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Returns the file that peers map; `None` where they do not.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_deref().map(AsFd::as_fd)
    }

    /// Returns who may change it.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Checks that a region of it may grant `access`.
    ///
    /// # Errors
    /// [`ControlError::Unsupported`]: remote writes to [`Sharing::ReadOnly`] memory.
    pub fn may_grant(&self, access: Access) -> Result<(), ControlError> {
        let writes = access.remote_write || access.remote_atomic;
        if writes && self.sharing == Sharing::ReadOnly {
            let refused =
                "remote WRITE to memory that is shared read-only; share it with trusted peers";
            return Err(ControlError::Unsupported(refused));
        }
        Ok(())
    }
}

fn allocate(len: usize) -> io::Result<Span> {
    let words = len.checked_next_multiple_of(8);
    let words = words.ok_or(io::ErrorKind::OutOfMemory)?;
    // A mapping has at least a page; the span below is cut to the words.
    let mapping = Mapping::anonymous(words.max(8))?;
    // Before the pages are populated.
    mapping.advise_huge();
    // A shortage is an error here, and not a signal at the first access.
    mapping.populate(0..words)?;
    let span = Span::new(Arc::new(mapping)).slice(0..words);
    span.map_err(|_| io::ErrorKind::OutOfMemory.into())
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            span,
            sharing,
            windows,
            ..
        } = self;
        write!(f, "SharedMemory({span:?}, {sharing:?}, {windows:?})")
    }
}
