//! Completions of the seeded fabric: queued, and on their way to the queue.

use herdwick_fabric::{Completion, CqId, Qpn};

/// A completion, and the number of queue slots that polling it frees.
pub(super) struct Entry {
    pub(super) completion: Completion,
    pub(super) qpn: Qpn,
    pub(super) slots: usize,
    pub(super) receive: bool,
}

/// A completion on its way to memory.
pub(super) struct Completing {
    pub(super) party: usize,
    pub(super) cq: CqId,
    pub(super) entry: Entry,
}
