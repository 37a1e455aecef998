//! What the server keeps of one client: buffers, the request under way, replies on the way.

use std::collections::VecDeque;

use herdwick_fabric::{Payload, QpId, RegionId, SendOp, SendWr};
use herdwick_mem::Span;
use herdwick_read::{ClientId, RecvBuffers};

use crate::message::{PARTS_MAX, Reply, Request};

/// Depth of the send queue to a client.
pub(crate) const REPLY_DEPTH: usize = 64;
/// One of so many replies is signaled.
pub(super) const SIGNALED_EVERY: u32 = 8;
const _: () = assert!(PARTS_MAX + 2 * SIGNALED_EVERY as usize <= REPLY_DEPTH);

/// What the machine uses of a client's objects.
#[derive(Debug)]
pub(crate) struct PeerObjects {
    pub(crate) qp: QpId,
    /// [`CREDITS`](crate::message::CREDITS) buffers for messages.
    pub(crate) requests: RecvBuffers,
    /// [`PARTS_MAX`] buffers for the reply to a GET.
    pub(crate) replies: (RegionId, Span),
}

#[derive(Debug)]
pub(super) struct ScratchBuffers {
    pub(super) message: Vec<u8>,
    pub(super) value: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) objects: PeerObjects,
    /// Buffers with requests to be executed, and the lengths of these.
    pub(super) due: VecDeque<(u32, usize)>,
    pub(super) upload: Option<Request>,
    pub(super) body: Vec<u8>,
    /// A reply that is still to be sent.
    pub(super) unsent: Option<Reply>,
    /// Sends posted, and those known to have completed; both wrap.
    pub(super) posted: u32,
    pub(super) completed: u32,
    /// The send with which the buffers of `replies` are free again.
    pub(super) reply_until: Option<u32>,
    pub(super) generation: u32,
    pub(super) connected: bool,
    /// Whether a message that the table has moved is due to it.
    pub(super) announce: bool,
    pub(super) failed: bool,
}

impl Peer {
    /// Notes the generation of the table that the client READs; it does not go back to an older one.
    pub(super) fn reads(&mut self, generation: u32, current: u32) {
        let left = current.wrapping_sub(generation);
        if left < current.wrapping_sub(self.generation) {
            self.generation = generation;
        }
    }
}

pub(super) fn send(id: ClientId, number: u32, payload: Payload<'_>, signaled: bool) -> SendWr<'_> {
    SendWr {
        wr_id: id.wr_id(number),
        op: SendOp::Send {
            payload,
            imm: None,
            to: None,
        },
        signaled,
        solicited: false,
        fence: false,
    }
}
