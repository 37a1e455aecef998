//! The two memory files of a protection domain, mapped.

use std::{io, sync::Arc};

use herdwick_mem::Mapping;

/// The two files of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum File {
    Up,
    Down,
}

/// Both files, mapped.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) up: Arc<Mapping>,
    pub(crate) down: Arc<Mapping>,
}

impl Files {
    pub(crate) fn mapping(&self, file: File) -> &Arc<Mapping> {
        match file {
            File::Up => &self.up,
            File::Down => &self.down,
        }
    }

    /// Gives the memory of both files back. Waits for the holder of a file's lock.
    pub(crate) fn discard(&self) -> io::Result<()> {
        let (up, down) = (self.up.discard(), self.down.discard());
        up.and(down)
    }
}
