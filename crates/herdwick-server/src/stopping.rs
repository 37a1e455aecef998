use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use crate::parking::Bell;

/// The shutdown, as the workers see it.
pub(crate) struct Stopping {
    asked: AtomicBool,
    /// Workers that have connections left.
    left: AtomicUsize,
    bells: Vec<Bell>,
}

impl Stopping {
    pub(crate) fn new(bells: Vec<Bell>) -> Self {
        Self {
            asked: AtomicBool::new(false),
            left: AtomicUsize::new(bells.len()),
            bells,
        }
    }

    /// Begins the shutdown.
    pub(crate) fn ask(&self) {
        self.asked.store(true, SeqCst);
        self.ring();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.asked.load(SeqCst)
    }

    /// A worker has finished its connections.
    pub(crate) fn one_drained(&self) {
        if self.left.fetch_sub(1, SeqCst) == 1 {
            self.ring();
        }
    }

    pub(crate) fn all_drained(&self) -> bool {
        self.left.load(SeqCst) == 0
    }

    fn ring(&self) {
        for bell in &self.bells {
            bell.ring();
        }
    }
}
