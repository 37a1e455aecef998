//! The only import of atomics, locks and threads, so that a `--cfg loom` build replaces them by loom's.

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread,
};

#[cfg(not(loom))]
pub use std::{
    hint::spin_loop,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread,
};

/// A value alone on its pair of cache lines: adjacent-line prefetch makes 128 bytes the unit of
/// false sharing.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct CachePadded<T>(pub T);

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> std::ops::DerefMut for CachePadded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
