//! The list of queue pairs that have packets to transmit.

use alloc::collections::VecDeque;

use herdwick_fabric::QpId;

use crate::qp::Qp;

/// Queue pairs that have packets to transmit, each listed once, served round robin.
pub(super) struct Ready {
    queue: VecDeque<QpId>,
    /// Whether one was added since the last round.
    fresh: bool,
}

impl Ready {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(limit),
            fresh: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns whether a queue pair was added since the last round began.
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Adds a queue pair, to be served in the next round.
    pub(super) fn add(&mut self, qp: &mut Qp) {
        // Once at most: so the list never exceeds `limit`, and adding does not allocate.
        if !qp.listed {
            qp.listed = true;
            self.fresh = true;
            self.queue.push_back(qp.id);
        }
    }

    /// Begins a round; returns the number of queue pairs in it.
    pub(super) fn begin(&mut self) -> usize {
        self.fresh = false;
        self.queue.len()
    }

    pub(super) fn take(&mut self) -> Option<QpId> {
        self.queue.pop_front()
    }

    /// Requeues a queue pair that this round could not finish.
    pub(super) fn put_back(&mut self, qp: &mut Qp) {
        // Without `fresh`: a queue pair that waits for its pace must not make the driver poll again
        // at once.
        qp.listed = true;
        self.queue.push_back(qp.id);
    }

    pub(super) fn forget(&mut self, qp: QpId) {
        self.queue.retain(|other| *other != qp);
    }
}
