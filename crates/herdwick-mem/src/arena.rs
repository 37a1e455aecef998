//! Large fixed arrays in mappings of their own, anonymous or backed by a file.

use std::{
    fmt,
    fs::File,
    io,
    marker::PhantomData,
    ops::{Deref, DerefMut, Range},
};

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::Mapping;

/// A fixed slice of zeroed `T` in a mapping of its own, on huge pages where the kernel allows.
///
/// The kernel allocates each page at its first touch. One owner, plain `&[T]` and `&mut [T]`: no
/// peer writes this memory. A file may back it, so that it outlives the process, or that other
/// processes read it ([`crate::PublishedFile`]).
pub struct Arena<T> {
    mapping: Mapping,
    len: usize,
    in_file: bool,
    owns: PhantomData<[T]>,
}

impl<T: FromZeros + IntoBytes> Arena<T> {
    /// Allocates `len` zeroed items.
    ///
    /// # Errors
    /// The error of `mmap`; `OutOfMemory` also when `len` items overflow the address space.
    pub fn zeroed(len: usize) -> io::Result<Self> {
        // Mappings are aligned to pages. A type of no size has no bytes that could be mapped.
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096) };
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping::anonymous(bytes)?;
        // Before the first touch: pages that are there are not replaced at once.
        mapping.advise_huge();
        Ok(Self {
            mapping,
            len,
            in_file: false,
            owns: PhantomData,
        })
    }

    /// Lets the kernel use huge pages, as at first, or not: what [`Self::give_back`] returns comes back
    /// with the huge page that it is a part of.
    pub fn allow_huge_pages(&self, allow: bool) {
        if allow {
            self.mapping.advise_huge();
        } else {
            self.mapping.advise_small();
        }
    }

    /// Keeps the kernel from using huge pages for `items`, and for what shares a huge page with them.
    pub fn forbid_huge_pages(&self, items: Range<usize>) {
        let size = size_of::<T>();
        self.mapping
            .advise_small_in(items.start * size..items.end * size);
    }

    /// Returns the memory of `items` to the system, as far as it is whole pages; those items are
    /// zeroed from now on. Only of an arena in anonymous memory.
    ///
    /// # Errors
    /// `InvalidInput` for a range outside the arena, or an arena in a file; else the error of the
    /// system calls.
    pub fn give_back(&mut self, items: Range<usize>) -> io::Result<()> {
        // `MADV_DONTNEED` on a file drops this mapping's pages alone: the file would keep the
        // memory and the bytes.
        if self.in_file || items.start > items.end || items.end > self.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let size = size_of::<T>();
        // No overflow: `len` items fit the address space, as `zeroed` has checked.
        self.mapping.give_back(items.start * size..items.end * size)
    }
}

impl<T: FromBytes + IntoBytes> Arena<T> {
    /// Maps `len` items in a file from byte `offset` on, with the contents of the file; see
    /// [`Mapping::file`].
    ///
    /// # Errors
    /// The errors of [`Mapping::file`] and [`Mapping::populate`].
    pub fn in_file(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let arena = Self::in_file_on_demand(file, offset, len)?;
        // Populated at once: one page fault per page would take longer than all work on the pages.
        arena.mapping.populate(0..len * size_of::<T>())?;
        Ok(arena)
    }

    /// As [`Self::in_file`], without memory for what is not used yet. Only of a file that can have all of it, as one
    /// in memory: a page that a file system has no room for ends the process.
    ///
    /// # Errors
    /// The errors of [`Mapping::file`].
    pub fn in_file_on_demand(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096) };
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping::file(file, offset, bytes)?;
        mapping.advise_huge();
        Ok(Self {
            mapping,
            len,
            // Kept, because `give_back` must not be used on shared pages.
            in_file: true,
            owns: PhantomData,
        })
    }
}

impl<T> Deref for Arena<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping is page-aligned (align_of::<T>() <= 4096), holds len * size_of::<T>()
        // bytes, was zeroed (a valid T, by FromZeros) or holds a file's bytes (by FromBytes), and
        // is written only through this owner: a lock on the file, or its seal, excludes other writers.
        unsafe { std::slice::from_raw_parts(self.mapping.base().as_ptr().cast(), self.len) }
    }
}

impl<T> DerefMut for Arena<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base().as_ptr().cast(), self.len) }
    }
}

impl<T> fmt::Debug for Arena<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} x {} bytes)", self.len, size_of::<T>())
    }
}
