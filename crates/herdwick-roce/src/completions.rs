use alloc::collections::VecDeque;

use herdwick_fabric::{Completion, QpId};

/// A completion queue; never fuller than its depth, since the depths of the queues that feed it
/// were summed at their creation.
pub(crate) struct Cq {
    pub(crate) depth: usize,
    /// Queue depths that feed it, summed.
    pub(crate) promised: usize,
    /// Queue pairs that use it, each counted once a queue.
    pub(crate) users: usize,
    entries: VecDeque<Entry>,
}

/// A completion, and what polling it gives back.
pub(crate) struct Entry {
    pub(crate) completion: Completion,
    pub(crate) slots: Slots,
}

/// Queue slots that a completion frees.
#[derive(Clone, Copy)]
pub(crate) enum Slots {
    /// Of the send queue: its own, and those of unsignaled requests before it.
    Send(usize),
    /// One of the receive queue.
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
        self.entries.push_back(Entry { completion, slots });
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        self.entries.pop_front()
    }

    /// Forgets the completions of a queue pair that goes.
    pub(crate) fn forget(&mut self, qp: QpId) {
        self.entries.retain(|entry| entry.completion.qp != qp);
    }
}
