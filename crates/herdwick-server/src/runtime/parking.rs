//! Sleep and wakeup without lost wakeups.
//!
//! The sleeper raises its flag, fences, checks for work once more, and only then sleeps. A producer
//! publishes work, fences, and then reads the flag. One of two sequentially consistent fences is
//! first in their total order, so either the sleeper sees the work or the producer sees the flag.

use std::sync::Arc;

use herdwick_mem::sync::{AtomicBool, CachePadded, Ordering, fence};

/// Set while a worker is about to sleep or asleep; read by the producers of its work.
#[derive(Debug)]
pub(crate) struct Flag {
    raised: CachePadded<AtomicBool>,
}

impl Flag {
    pub(crate) fn new() -> Self {
        Self {
            raised: CachePadded(AtomicBool::new(false)),
        }
    }

    /// Announces the sleep. Called before the last check for work.
    pub(crate) fn raise(&self) {
        self.raised.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Withdraws the announcement, after the sleep.
    pub(crate) fn lower(&self) {
        self.raised.store(false, Ordering::Relaxed);
    }

    /// Returns whether the producer must wake the sleeper. Called after publishing work; only one
    /// producer wakes each sleep.
    pub(crate) fn take_wakeup(&self) -> bool {
        fence(Ordering::SeqCst);
        self.raised.load(Ordering::Relaxed) && self.raised.swap(false, Ordering::Relaxed)
    }
}

/// Wakes one worker.
#[derive(Clone)]
pub(crate) struct WakeupFd {
    flag: Arc<Flag>,
    waker: Arc<mio::Waker>,
}

impl WakeupFd {
    pub(crate) fn new(waker: mio::Waker) -> Self {
        Self {
            flag: Arc::new(Flag::new()),
            waker: Arc::new(waker),
        }
    }

    pub(crate) fn flag(&self) -> &Flag {
        &self.flag
    }

    /// Wakes the worker if it sleeps or is about to.
    pub(crate) fn ring(&self) {
        if self.flag.take_wakeup() {
            // An eventfd write fails only when 2^64 - 2 wakeups are pending, and then one is.
            let _ = self.waker.wake();
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::Flag;
    use herdwick_mem::sync::{AtomicBool, Ordering};
    use loom::sync::{Arc, atomic::AtomicUsize};

    /// Work published while the worker goes to sleep is found by its last check, or the worker is
    /// woken.
    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let flag = Arc::new(Flag::new());
            let work = Arc::new(AtomicUsize::new(0));
            let rung = Arc::new(AtomicBool::new(false));
            let bringer = {
                let (flag, work, rung) = (flag.clone(), work.clone(), rung.clone());
                loom::thread::spawn(move || {
                    work.store(1, Ordering::Release);
                    if flag.take_wakeup() {
                        rung.store(true, Ordering::Relaxed);
                    }
                })
            };
            flag.raise();
            let found = work.load(Ordering::Acquire) == 1;
            bringer.join().unwrap();
            assert!(found || rung.load(Ordering::Relaxed));
        });
    }
}
