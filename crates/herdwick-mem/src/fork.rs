//! Which process something belongs to: a child that `fork` made has a copy of everything, also of
//! what stands for queues and sockets that it shares with its parent.

use std::{
    io,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

use rustix::process::{Pid, getpid};

use crate::{Access, Mapping};

/// Remembers the process that made it. To ask costs one load: the mark lies on a page that the
/// kernel wipes in every child (`MADV_WIPEONFORK`, Linux 4.14). Where it does not do that, each
/// question is a system call, `getpid`.
#[derive(Clone, Copy, Debug)]
pub struct ForkMark(Kind);

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// What stood in the page.
    Page(&'static AtomicU64, u64),
    Pid(Pid),
}

impl ForkMark {
    /// A mark of this process.
    #[must_use]
    pub fn here() -> Self {
        match page() {
            Ok(word) => Self(Kind::Page(word, number(word))),
            Err(_) => Self::by_pid(),
        }
    }

    fn by_pid() -> Self {
        Self(Kind::Pid(getpid()))
    }

    /// Whether this is still that process, not a child of it.
    #[inline]
    #[must_use]
    pub fn is_here(&self) -> bool {
        match self.0 {
            Kind::Page(word, number) => word.load(Ordering::Relaxed) == number,
            Kind::Pid(pid) => getpid() == pid,
        }
    }
}

/// The number of this process in `word`, which is 0 as long as it has none.
fn number(word: &AtomicU64) -> u64 {
    /// The last one given. A child goes on from its parent's count, so that no number of hers is one
    /// that an ancestor had before.
    static LAST: AtomicU64 = AtomicU64::new(0);
    let found = word.load(Ordering::Relaxed);
    if found != 0 {
        return found;
    }
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => next,
        Err(found) => found,
    }
}

/// The first word of the page, made at the first call. No lock: a child that was forked while
/// another thread held it would wait for ever.
fn page() -> io::Result<&'static AtomicU64> {
    static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
    let mut word = PAGE.load(Ordering::Acquire);
    if word.is_null() {
        let mapping = Mapping::anonymous(size_of::<AtomicU64>())?;
        mapping.wipe_on_fork()?;
        debug_assert_eq!(mapping.access(), Access::ReadWrite);
        let made = mapping.base().cast().as_ptr();
        word =
            match PAGE.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => {
                    // It stays for as long as the process.
                    std::mem::forget(mapping);
                    made
                }
                Err(theirs) => theirs,
            };
    }
    // SAFETY: `word` is the start of a private mapping of at least a page, readable, writable, page
    // aligned and never unmapped, for the Mapping was forgotten. It is only ever used as this
    // atomic. The kernel's wiping happens in a child, before it runs.
    Ok(unsafe { &*word })
}

/// A value that is dropped only by the process that made it. In a child that was forked it is left
/// alone, for to drop it would say farewell to peers that the parent goes on talking to.
#[derive(Debug)]
pub struct OwnProcess<T> {
    process: ForkMark,
    value: ManuallyDrop<T>,
}

impl<T> OwnProcess<T> {
    /// `value`, of this process.
    pub fn new(value: T) -> Self {
        Self {
            process: ForkMark::here(),
            value: ManuallyDrop::new(value),
        }
    }

    /// Whether this is still the process that made it.
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
        if self.process.is_here() {
            // SAFETY: here alone is it dropped, once, and nobody uses it behind this.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    /// Runs `child` in a forked process; whether it said yes.
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
                // SAFETY: `status` is a place for an int.
                assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
                status == 0
            }
        }
    }

    #[test]
    fn a_mark_tells_a_process_from_its_children() {
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
    fn a_child_leaves_alone_what_its_parent_drops() {
        let shared = Rc::new(());
        let ours = OwnProcess::new(Rc::clone(&shared));
        assert!(forked(|| {
            drop(ours);
            Rc::strong_count(&shared) == 2
        }));
        // The closure took it along: this process has dropped it behind the fork.
        assert_eq!(Rc::strong_count(&shared), 1);
        drop(OwnProcess::new(Rc::clone(&shared)));
        assert_eq!(Rc::strong_count(&shared), 1);
    }
}
