//! Detection of `fork`: which process made a value. A child has a copy of everything, including
//! handles of queues and sockets that it shares with its parent.

use std::{
    io,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

use rustix::process::{Pid, getpid};

use crate::{Access, Mapping};

/// Remembers the process that made it. A check costs one load: the mark is on a page that the
/// kernel zeroes in every child (`MADV_WIPEONFORK`, Linux 4.14). Where the kernel does not support
/// that, each check is a system call, `getpid`.
#[derive(Clone, Copy, Debug)]
pub struct ForkMark(Kind);

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The word in that page, and its value in the process that made the mark.
    Page(&'static AtomicU64, u64),
    Pid(Pid),
}

impl ForkMark {
    /// Makes a mark of this process.
    #[must_use]
    pub fn here() -> Self {
        match page() {
            Ok(word) => Self(Kind::Page(word, number(word))),
            // An old kernel, or no memory: slower, and as right.
            Err(_) => Self::by_pid(),
        }
    }

    fn by_pid() -> Self {
        Self(Kind::Pid(getpid()))
    }

    /// Returns whether the caller is still the process that made the mark, not a child of it.
    #[inline]
    #[must_use]
    pub fn is_here(&self) -> bool {
        match self.0 {
            // Relaxed: the word is set once in a process, and cleared in a child before the child
            // runs.
            Kind::Page(word, number) => word.load(Ordering::Relaxed) == number,
            Kind::Pid(pid) => getpid() == pid,
        }
    }
}

/// Returns the number of this process, held in `word`; assigns one when `word` is 0.
fn number(word: &AtomicU64) -> u64 {
    /// The last number assigned. A child continues from its parent's count, so its numbers differ
    /// from those of all its ancestors.
    static LAST: AtomicU64 = AtomicU64::new(0);
    let found = word.load(Ordering::Relaxed);
    // Zeroed in a child, so each process assigns its own number at its first mark.
    if found != 0 {
        return found;
    }
    // Relaxed throughout: the number is an identity and publishes no other memory.
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => next,
        Err(found) => found,
    }
}

/// Returns the first word of the page, which the first call maps. It takes no lock: a child forked
/// while another thread holds the lock would wait for ever.
fn page() -> io::Result<&'static AtomicU64> {
    static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
    // Acquire: a thread that reads the pointer sees the mapping. Release below: it is published mapped.
    let mut word = PAGE.load(Ordering::Acquire);
    if word.is_null() {
        let mapping = Mapping::anonymous(size_of::<AtomicU64>())?;
        // Before the pointer is published: a page that survived a fork would pass for the child's
        // own.
        mapping.wipe_on_fork()?;
        debug_assert_eq!(mapping.access(), Access::ReadWrite);
        let made = mapping.base().cast().as_ptr();
        word =
            match PAGE.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => {
                    // The page stays mapped for the lifetime of the process.
                    std::mem::forget(mapping);
                    made
                }
                // Another thread was first; dropping the mapping unmaps it.
                Err(theirs) => theirs,
            };
    }
    // SAFETY: `word` is the start of a private mapping of at least a page, readable, writable, page
    // aligned and never unmapped, because the Mapping was forgotten. It is only ever used as this
    // atomic. The kernel zeroes it in a child before the child runs.
    Ok(unsafe { &*word })
}

/// A value that is dropped only by the process that made it. A forked child does not drop it: the
/// destructor would close connections that the parent still uses.
#[derive(Debug)]
pub struct OwnProcess<T> {
    process: ForkMark,
    value: ManuallyDrop<T>,
}

impl<T> OwnProcess<T> {
    /// Wraps `value`, which belongs to this process.
    pub fn new(value: T) -> Self {
        Self {
            process: ForkMark::here(),
            value: ManuallyDrop::new(value),
        }
    }

    /// Returns whether the caller is still the process that made it.
    #[inline]
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.process.is_here()
    }
}

impl<T> Deref for OwnProcess<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for OwnProcess<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for OwnProcess<T> {
    fn drop(&mut self) {
        // In a child the value is leaked on purpose.
        if self.process.is_here() {
            // SAFETY: the only place that drops it, once, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    /// Runs `child` in a forked process; returns what `child` returned.
    fn forked(child: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child allocates nothing, takes no lock, and ends by _exit.
        match unsafe { libc::fork() } {
            0 => {
                let code = i32::from(!child());
                // SAFETY: ends the process, whatever state it is in.
                unsafe { libc::_exit(code) }
            }
            pid => {
                let mut status = 0;
                // SAFETY: `status` is valid for the write of an int.
                assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
                status == 0
            }
        }
    }

    #[test]
    fn fork_mark_distinguishes_a_process_from_its_children() {
        for mark in [ForkMark::here(), ForkMark::by_pid()] {
            assert!(mark.is_here());
            assert!(forked(|| !mark.is_here()));
            assert!(mark.is_here());
        }
        assert!(matches!(ForkMark::here().0, Kind::Page(..)));
        let parents = ForkMark::here();
        let grandchild = |childs: ForkMark| {
            let own = ForkMark::here();
            own.is_here() && !childs.is_here() && !parents.is_here()
        };
        let child = || {
            let own = ForkMark::here();
            own.is_here() && !parents.is_here() && forked(|| grandchild(own)) && own.is_here()
        };
        assert!(forked(child));
    }

    #[test]
    fn forked_child_does_not_drop_its_parents_objects() {
        let shared = Rc::new(());
        let ours = OwnProcess::new(Rc::clone(&shared));
        assert!(forked(|| {
            drop(ours);
            Rc::strong_count(&shared) == 2
        }));
        // The closure took `ours` along: this process has dropped it after the fork.
        assert_eq!(Rc::strong_count(&shared), 1);
        drop(OwnProcess::new(Rc::clone(&shared)));
        assert_eq!(Rc::strong_count(&shared), 1);
    }
}
