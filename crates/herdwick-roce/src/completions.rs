//! A completion queue that cannot overflow, and the queue slots that its entries free.

use alloc::collections::VecDeque;

use herdwick_fabric::{Completion, QpId};

/// A completion queue. It never exceeds its depth, because the depths of the queues that complete
/// into it were checked against it when they were made.
pub(crate) struct Cq {
    pub(crate) depth: usize,
    /// The sum of the depths of the queues that complete into it.
    pub(crate) promised: usize,
    /// References from queue pairs: one for each send or receive queue.
    pub(crate) users: usize,
    entries: VecDeque<Cqe>,
}

/// A completion, and the queue slots that polling it frees.
pub(crate) struct Cqe {
    pub(crate) completion: Completion,
    pub(crate) slots: Slots,
}

/// Queue slots that a completion frees.
#[derive(Clone, Copy)]
pub(crate) enum Slots {
    /// Slots of the send queue: its own, and those of the unsignaled requests before it.
    Send(usize),
    /// One slot of the receive queue.
    Receive,
}

impl Cq {
    pub(crate) fn new(depth: usize) -> Self {
        Self {
            depth,
            promised: 0,
            users: 0,
            entries: VecDeque::with_capacity(depth),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline]
    pub(crate) fn push(&mut self, completion: Completion, slots: Slots) {
        debug_assert!(
            self.entries.len() < self.depth,
            "depths were summed at creation"
        );
        self.entries.push_back(Cqe { completion, slots });
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Cqe> {
        self.entries.pop_front()
    }

    /// Removes the completions of a queue pair that is destroyed.
    pub(crate) fn forget(&mut self, qp: QpId) {
        self.entries.retain(|entry| entry.completion.qp != qp);
    }
}
