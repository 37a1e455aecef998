//! Coordinates the shutdown: workers run until every worker has finished its connections, because
//! connections of one worker use the partitions of the others.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use crate::runtime::parking::WakeupFd;

/// The state of the shutdown, shared by all threads. Sequentially consistent throughout: it changes
/// a few times in a process, so nothing weaker need be argued for.
pub(crate) struct Shutdown {
    asked: AtomicBool,
    /// Workers that have not finished their connections.
    left: AtomicUsize,
    wakeups: Vec<WakeupFd>,
}

impl Shutdown {
    pub(crate) fn new(wakeups: Vec<WakeupFd>) -> Self {
        Self {
            asked: AtomicBool::new(false),
            left: AtomicUsize::new(wakeups.len()),
            wakeups,
        }
    }

    /// Starts the shutdown and wakes the workers.
    pub(crate) fn ask(&self) {
        self.asked.store(true, SeqCst);
        self.ring();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.asked.load(SeqCst)
    }

    /// Reports that a worker has finished its connections; the last one wakes all.
    pub(crate) fn one_drained(&self) {
        if self.left.fetch_sub(1, SeqCst) == 1 {
            self.ring();
        }
    }

    pub(crate) fn all_drained(&self) -> bool {
        self.left.load(SeqCst) == 0
    }

    /// Wakes the workers.
    pub(crate) fn ring(&self) {
        for wakeup in &self.wakeups {
            wakeup.ring();
        }
    }
}
