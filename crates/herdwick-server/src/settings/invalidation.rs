//! Orders of the server's owner to invalidate all items, which every worker carries out in its partition.

use std::sync::{
    Condvar, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::SeqCst},
};
use std::time::Duration;

/// The orders, and how many workers have carried out the last.
#[derive(Debug, Default)]
pub(crate) struct Invalidation {
    /// The number of orders, as the workers read it; written under the lock.
    orders: AtomicU64,
    done: Mutex<usize>,
    changed: Condvar,
}

impl Invalidation {
    /// Gives an order, which takes the place of those that are not carried out yet.
    pub(crate) fn order(&self) {
        let mut done = self.lock();
        // Under the lock: a worker that is late with an order before this one does not count.
        *done = 0;
        self.orders.fetch_add(1, SeqCst);
    }

    /// The number of orders.
    pub(crate) fn orders(&self) -> u64 {
        self.orders.load(SeqCst)
    }

    /// Notes that a worker has carried out this order: it counts if it is the last.
    pub(crate) fn done(&self, order: u64) {
        let mut done = self.lock();
        if order == self.orders() {
            *done += 1;
            self.changed.notify_all();
        }
    }

    /// Waits until `workers` have carried out the last order, but no longer than `span`. Returns whether all have:
    /// one that has, has carried out those before it, too.
    pub(crate) fn wait(&self, workers: usize, span: Duration) -> bool {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), span, |done| *done < workers);
        *waited.unwrap_or_else(PoisonError::into_inner).0 >= workers
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, usize> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_late_with_an_order_does_not_count_for_the_next() {
        let orders = Invalidation::default();
        orders.order();
        let first = orders.orders();
        orders.order();
        let second = orders.orders();
        orders.done(first);
        assert!(!orders.wait(1, Duration::ZERO));
        orders.done(second);
        assert!(orders.wait(1, Duration::ZERO) && !orders.wait(2, Duration::ZERO));
        orders.done(second);
        assert!(orders.wait(2, Duration::ZERO));
    }
}
