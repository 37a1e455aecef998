//! Memory mappings, anonymous, of sealed memfds and of regular files, unmapped on drop.

use std::{
    hint::black_box,
    io,
    ops::Range,
    os::fd::AsFd,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::{SealFlags, fcntl_get_seals, fstat},
    io::Errno,
    mm::{
        Advice, MapFlags, MlockFlags, ProtFlags, madvise, mlock_with, mmap, mmap_anonymous,
        munlock, munmap,
    },
};

/// What this process may do with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store fails an assertion, and would fault in the MMU without it.
    Read,
    /// Loads and stores.
    ReadWrite,
}

/// Page size on the supported machines.
const PAGE: usize = 4096;
/// Huge-page size on the supported machines; mappings at least as large are aligned to it.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// A run of mapped pages, unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    access: Access,
    reserved: (NonNull<u8>, usize),
}

// SAFETY: a Mapping is an address range and gives no access by itself; the types built on it
// (Span: atomic words; Arena: exclusive ownership) carry their own argument.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` exposes only its address, length and access.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed private memory of at least `len` bytes, aligned to a huge page when it is as
    /// large as one.
    ///
    /// # Errors
    /// The error of `mmap`, above all `ENOMEM`.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        // At least a page: mmap refuses a length of 0.
        let len = round_up(len.max(1), 4096);
        // The kernel aligns to pages only: a huge page more gives room to move the start up to a
        // boundary.
        let slack = if len >= HUGE_PAGE { HUGE_PAGE } else { 0 };
        let total = len.checked_add(slack).ok_or(io::ErrorKind::OutOfMemory)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // The size of a store is not charged before it is used (`vm.overcommit_memory` 0).
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice replaces nothing.
        let raw = unsafe { mmap_anonymous(std::ptr::null_mut(), total, prot, flags) }?;
        let reserved = NonNull::new(raw.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let skip = if slack == 0 {
            0
        } else {
            // The distance to the next multiple: the negated address modulo the size.
            raw.addr().wrapping_neg() % HUGE_PAGE
        };
        // SAFETY: `skip` < HUGE_PAGE = slack, so `skip + len` stays inside the mapping.
        let base = unsafe { reserved.add(skip) };
        Ok(Self {
            base,
            len,
            access: Access::ReadWrite,
            // All of it is unmapped at the end, the slack included.
            reserved: (reserved, total),
        })
    }

    /// Maps the first `len` bytes of a memfd, shared with its other holders.
    ///
    /// The file must carry `F_SEAL_SHRINK` and be long enough, so that no other holder can truncate
    /// it under a reader (which would be SIGBUS).
    ///
    /// # Errors
    /// `InvalidInput` for a file that is unsealed, too short, or not a memfd; else the error of
    /// `mmap`.
    pub fn shared(fd: impl AsFd, len: usize, access: Access) -> io::Result<Self> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        let fd = fd.as_fd();
        let seals = fcntl_get_seals(fd).map_err(|_| invalid("not a memfd"))?;
        // Else a holder could truncate the file, and a load behind its new end raises SIGBUS.
        if !seals.contains(SealFlags::SHRINK) {
            return Err(invalid("memfd is not sealed against shrinking"));
        }
        let size = u64::try_from(fstat(fd)?.st_size).unwrap_or(0);
        // The length comes from a description that may be a peer's.
        if len == 0 || (len as u64) > size {
            return Err(invalid("memfd is shorter than its description"));
        }
        let prot = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing; the seal
        // checked above keeps every page of it backed for its whole life.
        let raw = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0) }?;
        let base = NonNull::new(raw.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            base,
            len,
            access,
            reserved: (base, len),
        })
    }

    /// Maps `len` bytes of a regular file from `offset` on, a multiple of 4096. Stores reach the
    /// file even if this process is killed.
    ///
    /// The blocks of the file must be allocated (`fallocate`), its length must not change, and no
    /// other process may use it: a lock on it excludes other processes of this program, its mode
    /// all other users.
    ///
    /// # Errors
    /// `InvalidInput` for a file that is too short; else the error of `mmap`.
    pub fn file(fd: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        let fd = fd.as_fd();
        let size = u64::try_from(fstat(fd)?.st_size).unwrap_or(0);
        if len == 0 || offset.checked_add(len as u64).is_none_or(|end| end > size) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the file is too short",
            ));
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let raw = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                prot,
                MapFlags::SHARED,
                fd,
                offset,
            )
        }?;
        let base = NonNull::new(raw.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            base,
            len,
            access: Access::ReadWrite,
            reserved: (base, len),
        })
    }

    /// Requests transparent huge pages. Advice only: `/proc/self/smaps` (`AnonHugePages`) shows
    /// whether the kernel follows it; no return value does.
    pub fn advise_huge(&self) {
        // A kernel without huge pages refuses; the memory works as well.
        // SAFETY: the range is this mapping's, and MADV_HUGEPAGE changes no contents.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
    }

    /// Requests pages of the ordinary size from now on, also where [`Self::advise_huge`] was called.
    pub fn advise_small(&self) {
        // SAFETY: the range is this mapping's, and MADV_NOHUGEPAGE changes no contents.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxNoHugepage) };
    }

    /// As [`Self::advise_small`], of the pages of `bytes` and those before that share a huge page with
    /// them.
    pub fn advise_small_in(&self, bytes: Range<usize>) {
        // Rounded down: the kernel looks at the advice of the whole huge page.
        let (start, end) = (bytes.start / HUGE_PAGE * HUGE_PAGE, bytes.end.min(self.len));
        if bytes.start < end {
            // SAFETY: `start` lies within the mapping by the check above.
            let from = unsafe { self.base.add(start) }.as_ptr().cast();
            // SAFETY: the range is this mapping's, and MADV_NOHUGEPAGE changes no contents.
            let _ = unsafe { madvise(from, end - start, Advice::LinuxNoHugepage) };
        }
    }

    /// Makes the kernel zero this memory in every child forked from now on.
    ///
    /// # Errors
    /// The error of `madvise`: `EINVAL` for shared memory, or on a kernel without this feature.
    pub(crate) fn wipe_on_fork(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping's, and nothing changes in this process.
        unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxWipeOnFork) }?;
        Ok(())
    }

    /// Populates the pages of `bytes` now, so that a shortage of memory is an error here and not a
    /// signal later. Linux before 5.14 lacks the call: there the pages are touched one by one, and
    /// a shortage is a signal after all.
    ///
    /// # Errors
    /// `InvalidInput` for a range outside the mapping; else the error of `madvise`.
    pub fn populate(&self, bytes: Range<usize>) -> io::Result<()> {
        self.populate_by(bytes, |from, len, advice| {
            // SAFETY: `populate_by` passes pages of this mapping only, and populating changes no
            // contents.
            unsafe { madvise(from.as_ptr().cast(), len, advice) }
        })
    }

    /// Implements [`Mapping::populate`], with the system call as an argument.
    fn populate_by(
        &self,
        bytes: Range<usize>,
        advise: impl FnOnce(NonNull<u8>, usize, Advice) -> Result<(), Errno>,
    ) -> io::Result<()> {
        if bytes.start > bytes.end || bytes.end > self.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // madvise wants a page's address; the page that holds the first byte is populated too.
        let start = bytes.start / PAGE * PAGE;
        // By writes where that is allowed, or the zero page would be mapped, and replaced at the
        // first store.
        let advice = match self.access {
            Access::Read => Advice::LinuxPopulateRead,
            Access::ReadWrite => Advice::LinuxPopulateWrite,
        };
        // SAFETY: `start` lies within the mapping by the check above, or is its end.
        let from = unsafe { self.base.add(start) };
        match advise(from, bytes.end - start, advice) {
            // The range and the mapping are valid, so the kernel does not know the advice.
            Err(Errno::INVAL) => self.touch(start..bytes.end),
            answer => answer?,
        }
        Ok(())
    }

    /// Faults in each page of `bytes` without changing its contents.
    fn touch(&self, bytes: Range<usize>) {
        // One access for each page is enough.
        for at in bytes.step_by(PAGE) {
            // SAFETY: within the mapping, aligned because it starts at a page, and accessed
            // atomically, as is every word of shared memory. The reference does not leave this
            // line.
            let word = unsafe { self.base.add(at).cast::<AtomicU64>().as_ref() };
            let _ = match self.access {
                // A load whose result is unused would be removed.
                Access::Read => black_box(word.load(Ordering::Relaxed)),
                // A zero that the optimizer cannot see; it would remove the store otherwise.
                Access::ReadWrite => word.fetch_or(black_box(0), Ordering::Relaxed),
            };
        }
    }

    /// Returns every page of a shared mapping to the system, also for all other processes that map
    /// it: the whole mapping reads as zeros from now on.
    ///
    /// The error of `madvise`: `EINVAL` for private memory, which this never touches, `EPERM` for a
    /// file that is sealed against writing.
    pub fn discard(&self) -> io::Result<()> {
        let base = self.base.as_ptr().cast();
        // SAFETY: the range is this mapping's. MADV_REMOVE works on shared mappings only, whose
        // contents any holder of the file may change at any instant anyway.
        let remove = || unsafe { madvise(base, self.len, Advice::LinuxRemove) };
        match remove() {
            // Locked pages, as after `mlockall`, cannot be removed until they are unlocked.
            Err(Errno::INVAL) => {
                // SAFETY: the range is this mapping's, and unlocking changes no contents.
                unsafe { munlock(base, self.len) }?;
                remove()?;
            }
            answer => answer?,
        }
        Ok(())
    }

    /// Returns the whole pages of `bytes`, a range of an anonymous mapping, to the system; they read
    /// as zeros from now on. Pages that `mlockall` has locked are locked again when they are next
    /// touched.
    ///
    /// # Errors
    /// `InvalidInput` for a range outside the mapping; else the error of `munlock`, `madvise` or
    /// `mlock2`.
    pub(crate) fn give_back(&mut self, bytes: Range<usize>) -> io::Result<()> {
        if bytes.start > bytes.end || bytes.end > self.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // Inwards: pages that are only partly meant stay.
        let (start, end) = (round_up(bytes.start, PAGE), bytes.end / PAGE * PAGE);
        if start >= end {
            return Ok(());
        }
        // SAFETY: `start` lies within the mapping by the checks above.
        let from = unsafe { self.base.add(start) }.as_ptr().cast();
        // SAFETY: the pages are this mapping's, private, and borrowed mutably; zeros are what they
        // held at first.
        let discard = || unsafe { madvise(from, end - start, Advice::LinuxDontNeed) };
        // As in `discard`: locked pages first have to be unlocked.
        match discard() {
            Err(Errno::INVAL) => {
                // SAFETY: the range is this mapping's, and unlocking changes no contents.
                unsafe { munlock(from, end - start) }?;
                discard()?;
                // By ONFAULT, so that the pages are not populated again at once.
                // SAFETY: the range is this mapping's, and locking changes no contents.
                unsafe { mlock_with(from, end - start, MlockFlags::ONFAULT) }?;
            }
            answer => answer?,
        }
        Ok(())
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: a mapping has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns what this process may do with it.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (base, len) = self.reserved;
        // SAFETY: `reserved` is what mmap returned, and every object that accesses it keeps this
        // Mapping alive (Span by Arc, Arena by value).
        let result = unsafe { munmap(base.as_ptr().cast(), len) };
        // Only a range that is not mapped could be refused.
        debug_assert!(result.is_ok(), "munmap of our own mapping: {result:?}");
    }
}

pub(crate) fn round_up(n: usize, unit: usize) -> usize {
    n.div_ceil(unit) * unit
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::FileExt};

    use super::*;
    use crate::Span;

    fn shared(len: usize) -> Mapping {
        let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("herdwick-test", flags).unwrap();
        rustix::fs::ftruncate(&fd, len as u64).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        Mapping::shared(&fd, len, Access::ReadWrite).unwrap()
    }

    /// Returns the KiB of `mapping` that are resident.
    fn resident(mapping: &Mapping) -> usize {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", mapping.base.as_ptr().addr());
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        rss.trim_end_matches("kB").trim().parse().unwrap()
    }

    /// Returns the bytes of `mapping` that are resident, by the page table (proc(5), pagemap): smaps
    /// shows adjacent anonymous mappings as one.
    fn resident_bytes(mapping: &Mapping) -> usize {
        let table = fs::File::open("/proc/self/pagemap").unwrap();
        let first = mapping.base.as_ptr().addr() / PAGE;
        let is_resident = |page: &usize| {
            let mut entry = [0; 8];
            table
                .read_exact_at(&mut entry, ((first + page) * 8) as u64)
                .unwrap();
            u64::from_le_bytes(entry) >> 63 == 1
        };
        (0..mapping.len / PAGE).filter(is_resident).count() * PAGE
    }

    #[test]
    fn pages_are_touched_if_the_kernel_cannot_populate() {
        let mapping = shared(8 * PAGE);
        let too_old = |_, _, _| Err(Errno::INVAL);
        mapping
            .populate_by(PAGE + 8..3 * PAGE + 8, too_old)
            .unwrap();
        assert_eq!(resident(&mapping), 3 * PAGE / 1024);
        let span = Span::new(std::sync::Arc::new(mapping));
        span.write_words(512, &[u64::MAX; 512]);
        let mapping = Span::mapping(&span);
        mapping.populate_by(0..8 * PAGE, too_old).unwrap();
        assert_eq!(resident(mapping), 8 * PAGE / 1024);
        assert_eq!(span.read_words::<512>(512), [u64::MAX; 512], "untouched");
        let refused = mapping.populate_by(0..PAGE, |_, _, _| Err(Errno::NOMEM));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    }

    #[test]
    fn whole_pages_of_a_range_are_given_back() {
        for locked in [false, true] {
            let mut mapping = Mapping::anonymous(8 * PAGE).unwrap();
            mapping.populate(0..8 * PAGE).unwrap();
            if locked {
                // SAFETY: the range is the mapping's, and locking changes no contents.
                unsafe { rustix::mm::mlock(mapping.base.as_ptr().cast(), mapping.len) }.unwrap();
            }
            mapping.give_back(PAGE - 8..4 * PAGE + 8).unwrap();
            assert_eq!(resident_bytes(&mapping), 5 * PAGE, "locked: {locked}");
            mapping.give_back(4 * PAGE + 8..4 * PAGE + 16).unwrap();
            assert_eq!(resident_bytes(&mapping), 5 * PAGE, "no whole page");
            let backwards = Range {
                start: 2 * PAGE,
                end: PAGE,
            };
            for range in [PAGE..9 * PAGE, backwards] {
                let refused = mapping.give_back(range).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
            }
        }
    }

    #[test]
    fn mlocked_memory_is_released() {
        let mapping = shared(4 * PAGE);
        // SAFETY: the range is the mapping's, and locking changes no contents.
        unsafe { rustix::mm::mlock(mapping.base.as_ptr().cast(), mapping.len) }.unwrap();
        assert_eq!(resident(&mapping), 4 * PAGE / 1024);
        mapping.discard().unwrap();
        assert_eq!(resident(&mapping), 0);
    }
}
