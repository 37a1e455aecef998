//! Memory whose interleavings loom can explore: the same word operations as a span's, on loom's atomics.

use herdwick_mem::{
    Words,
    sync::{Arc, AtomicU64, Ordering},
};

/// Words of loom's atomics; clones share them.
#[derive(Clone)]
pub(crate) struct Memory(Arc<Vec<AtomicU64>>);

impl Memory {
    pub(crate) fn new(words: usize) -> Self {
        Self(Arc::new((0..words).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl Words for Memory {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn load(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }
    fn load_acquire(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Acquire)
    }
    fn store(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::Relaxed);
    }
    fn store_release(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::Release);
    }
}
