//! Memory that logs every store: what a READ beside a change can find is what it held between two of them.

use std::{cell::RefCell, rc::Rc};

use herdwick_mem::Words;

/// Words whose stores are logged, all zero at first. Clones share them.
#[derive(Clone, Debug)]
pub struct StoreLog(Rc<RefCell<Logged>>);

#[derive(Debug)]
struct Logged {
    words: Vec<u64>,
    stores: Vec<(usize, u64)>,
}

impl StoreLog {
    /// Makes `count` words.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self(Rc::new(RefCell::new(Logged {
            words: vec![0; count],
            stores: Vec::new(),
        })))
    }

    /// Returns the number of stores.
    #[must_use]
    pub fn logged(&self) -> usize {
        self.0.borrow().stores.len()
    }

    /// Returns the stores in their order: the word, and what was stored there.
    #[must_use]
    pub fn stores(&self) -> Vec<(usize, u64)> {
        self.0.borrow().stores.clone()
    }
}

impl Words for StoreLog {
    fn count(&self) -> usize {
        self.0.borrow().words.len()
    }
    fn load(&self, index: usize) -> u64 {
        self.0.borrow().words[index]
    }
    fn load_acquire(&self, index: usize) -> u64 {
        // There is one thread only, so there is no order to keep.
        self.load(index)
    }
    fn store(&self, index: usize, value: u64) {
        let mut logged = self.0.borrow_mut();
        logged.words[index] = value;
        logged.stores.push((index, value));
    }
    fn store_release(&self, index: usize, value: u64) {
        self.store(index, value);
    }
}
