//! Published memory: a file in memory that this process alone writes, and others map to read.

use std::{fs::File, io, os::fd::OwnedFd, sync::Arc};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use zerocopy::{FromBytes, IntoBytes};

use crate::{Access, Arena, Mapping, Span};

/// A file in memory that is being divided among what its maker writes; [`Self::seal`] makes it one
/// that no other process can write.
///
/// Its maker writes arenas of it as plain slices. That is sound: no one else writes there, and what
/// other processes load does not change what this one does. But a load elsewhere may see any mixture of
/// the bytes before and after a change, and stores in another order than the program has them, except
/// that a release ([`std::sync::atomic::fence`], or a store to [`Self::words`]) orders those before it.
/// So readers need a checksum of what they load.
#[derive(Debug)]
pub struct PublishedFile {
    file: File,
    bytes: usize,
}

/// What others map of a sealed file: its descriptor, and its words, for loads alone.
#[derive(Debug)]
pub struct Published {
    /// The file, whose length and seals are fixed.
    pub fd: OwnedFd,
    /// All of it, mapped again, read-only.
    pub words: Span,
}

impl PublishedFile {
    /// Makes a file of `bytes` zeroed bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// Those of `memfd_create`, `ftruncate` and `fcntl`.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let pages = bytes.max(1).checked_next_multiple_of(4096);
        let bytes = pages.ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("herdwick-store", flags)?;
        ftruncate(&fd, bytes as u64)?;
        // Before any mapping, which relies on the length.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        let file = File::from(fd);
        Ok(Self { file, bytes })
    }

    /// Maps the first `bytes` as words that release what was stored before them.
    ///
    /// # Errors
    /// Those of [`Mapping::shared`].
    pub fn words(&self, bytes: usize) -> io::Result<Span> {
        let mapping = Mapping::shared(&self.file, bytes, Access::ReadWrite)?;
        Ok(Span::new(Arc::new(mapping)))
    }

    /// Maps `len` items from byte `offset` on, a multiple of 4096.
    ///
    /// # Errors
    /// Those of [`Arena::in_file`].
    pub fn arena<T: FromBytes + IntoBytes>(
        &self,
        offset: usize,
        len: usize,
    ) -> io::Result<Arena<T>> {
        Arena::in_file(&self.file, offset as u64, len)
    }

    /// As [`Self::arena`], without memory for what is not used yet.
    ///
    /// # Errors
    /// Those of [`Arena::in_file_on_demand`].
    pub fn arena_on_demand<T: FromBytes + IntoBytes>(
        &self,
        offset: usize,
        len: usize,
    ) -> io::Result<Arena<T>> {
        Arena::in_file_on_demand(&self.file, offset as u64, len)
    }

    /// Seals the file: what is mapped stays writable, and nothing else can ever write it.
    ///
    /// # Errors
    /// Those of `fcntl` (Linux before 5.1 lacks the seal) and `mmap`.
    pub fn seal(self) -> io::Result<Published> {
        // After the arenas are mapped, whose mappings stay writable.
        fcntl_add_seals(&self.file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        // A mapping to write could not be made any more.
        let mapping = Mapping::shared(&self.file, self.bytes, Access::Read)?;
        Ok(Published {
            fd: self.file.into(),
            words: Span::new(Arc::new(mapping)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::Words;

    #[test]
    fn sealed_file_shows_what_its_maker_stores_and_is_written_by_no_other() {
        let file = PublishedFile::new(10_000).unwrap();
        let words = file.words(4096).unwrap();
        let mut arena = file.arena::<u64>(4096, 1000).unwrap();
        let published = file.seal().unwrap();
        arena[999] = 7;
        words.store_release(3, 9);
        assert_eq!(published.words.load(512 + 999), 7);
        assert_eq!(published.words.load(3), 9);
        assert_eq!(published.words.len(), 12_288);
        // The same user opens the file anew, which its mode permits.
        let path = format!("/proc/self/fd/{}", published.fd.as_raw_fd());
        let again = File::options().read(true).write(true).open(path).unwrap();
        for fd in [published.fd, again.into()] {
            let refused = Mapping::shared(&fd, 4096, Access::ReadWrite).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
            let written = rustix::io::pwrite(&fd, b"x", 0);
            assert_eq!(written, Err(rustix::io::Errno::PERM));
            assert!(ftruncate(&fd, 0).is_err());
        }
        assert_eq!(arena[999], 7);
    }
}
