//! One request of a batch, and how it is handled: executed, answered from the slot's memory, or refused.

use herdwick_fabric::AddressHandle;

use crate::wire::{BadRequest, Epoch, ReplyStatus};

/// Most requests of one pass: one batch through the store, one postlist of replies. Above 32 the
/// store's prefetches begin to evict each other; below 16 the cost of the doorbell is spread over
/// too few requests.
pub const BATCH: usize = 32;

/// One request of the batch.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) client: u32,
    pub(super) reply_qp: u8,
    pub(super) to: AddressHandle,
    pub(super) imm: u32,
    pub(super) reply_bytes_max: u32,
    pub(super) slot: u16,
    pub(super) epoch: Epoch,
    pub(super) work: Work,
}

/// How a job is handled.
#[derive(Clone, Copy)]
pub(super) enum Work {
    /// Execute it. `overflow_len` bytes of its body are in the overflow staging area.
    Run { overflow_len: u16 },
    /// Reply with this status and nothing else.
    Refuse(ReplyStatus),
    /// Read again the item that a GAT has touched already. `overflow_len` is as in `Run`.
    Reread { overflow_len: u16 },
    /// Reply with this many words of what the slot remembers.
    Repeat(u8),
}

/// What to reply without execution.
pub(super) enum Instead {
    Refuse(ReplyStatus),
    Repeat(u8),
    Bad(BadRequest),
    /// The stag of a key.
    Stag(u32),
}
