use std::{
    fmt,
    fs::File,
    io,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::Mapping;

/// A fixed slice of zeroed `T` in memory of its own, on huge pages where the kernel agrees.
///
/// Pages are taken as they are first touched. One owner, plain `&[T]` and `&mut [T]`: no peer ever
/// sees this memory. It may be a file's, to outlive the process.
pub struct Arena<T> {
    mapping: Mapping,
    len: usize,
    owns: PhantomData<[T]>,
}

impl<T: FromZeros + IntoBytes> Arena<T> {
    /// `len` zeroed items.
    ///
    /// # Errors
    /// What `mmap` says; `OutOfMemory` also when `len` items overflow the address space.
    pub fn zeroed(len: usize) -> io::Result<Self> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096) };
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping::anonymous(bytes)?;
        mapping.advise_huge();
        Ok(Self {
            mapping,
            len,
            owns: PhantomData,
        })
    }
}

impl<T: FromBytes + IntoBytes> Arena<T> {
    /// `len` items in a file from `offset` on, as they stand there; see [`Mapping::file`].
    ///
    /// # Errors
    /// What [`Mapping::file`] says.
    pub fn in_file(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096) };
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping::file(file, offset, bytes)?;
        mapping.advise_huge();
        // One fault a page would take longer than all that is done with them.
        mapping.populate(0..bytes)?;
        Ok(Self {
            mapping,
            len,
            owns: PhantomData,
        })
    }
}

impl<T> Deref for Arena<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping is page-aligned (align_of::<T>() <= 4096), holds len * size_of::<T>()
        // bytes, was zeroed (a valid T, by FromZeros) or holds a file's bytes (by FromBytes), and is
        // reachable only through this owner: a file's other users are kept out by its lock.
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
