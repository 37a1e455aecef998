use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use crate::parking::WakeupFd;

/// The shutdown, as the workers see it.
pub(crate) struct Stopping {
    asked: AtomicBool,
    /// Workers that have connections left.
    left: AtomicUsize,
    wakeups: Vec<WakeupFd>,
}

impl Stopping {
    pub(crate) fn new(wakeups: Vec<WakeupFd>) -> Self {
        Self {
            asked: AtomicBool::new(false),
            left: AtomicUsize::new(wakeups.len()),
            wakeups,
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
        for wakeup in &self.wakeups {
            wakeup.ring();
        }
    }
}
