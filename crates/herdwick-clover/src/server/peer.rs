//! What the metadata server keeps of one client, and its messages: calls that wait, replies that are to
//! be sent.

use std::{collections::VecDeque, time::Duration};

use herdwick_fabric::{Completion, Payload, Port, PostError, QpId, SendOp, SendWr};
use herdwick_read::{ClientId, RecvBuffers};

use crate::{
    Right,
    message::{CALLS_MAX, Reply},
};

/// Depth of the send queue to a client.
pub(crate) const REPLY_DEPTH: usize = 2 * CALLS_MAX;

/// What the server uses of a client's objects.
#[derive(Debug)]
pub(crate) struct PeerObjects {
    pub(crate) qp: QpId,
    /// [`CALLS_MAX`] buffers for calls.
    pub(crate) calls: RecvBuffers,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) objects: PeerObjects,
    pub(super) right: Right,
    /// Buffers with calls to be executed, and the lengths of these.
    pub(super) due: VecDeque<(u32, usize)>,
    pub(super) replies: VecDeque<Reply>,
    /// Calls whose replies come later.
    pub(super) later: usize,
    /// The epoch that it has left last; `u64::MAX` until it is connected.
    pub(super) published: u64,
    /// When a call arrived last.
    pub(super) heard: Duration,
    pub(super) failed: bool,
}

impl Peer {
    /// A client that is not connected. It can have read nothing, so no reuse waits for it.
    pub(super) fn new((objects, right): (PeerObjects, Right), now: Duration) -> Self {
        Self {
            objects,
            right,
            due: VecDeque::with_capacity(CALLS_MAX),
            replies: VecDeque::with_capacity(CALLS_MAX),
            later: 0,
            published: u64::MAX,
            heard: now,
            failed: false,
        }
    }

    /// Notes that it is connected, in the server's epoch.
    pub(super) fn connected(&mut self, epoch: u64, now: Duration) {
        // It was `u64::MAX` until now, so that no reuse waited for a client that could have read
        // nothing.
        self.published = self.published.min(epoch);
        self.heard = now;
    }

    /// Returns whether the reply to another call has a place.
    pub(super) fn has_room(&self) -> bool {
        // A reply that comes later keeps its place.
        self.replies.len() + self.later < CALLS_MAX
    }

    /// Notes an arrived call.
    pub(super) fn arrived(&mut self, completion: &Completion, buffer: u32, now: Duration) {
        self.heard = now;
        let len = self.objects.calls.arrived(completion, buffer);
        self.due.push_back((buffer, len));
    }

    /// Notes what it has published; more than the server's epoch counts as that.
    pub(super) fn publish(&mut self, published: u64, epoch: u64) {
        self.published = self.published.max(published.min(epoch));
    }

    /// Posts the replies that are due. Returns whether one has to wait.
    pub(super) fn send<P: Port>(&mut self, port: &mut P, id: ClientId) -> bool {
        while let Some(reply) = self.replies.front() {
            let message = reply.message();
            let wr = SendWr {
                // Sends use no buffer: the number names the client alone.
                wr_id: id.wr_id(0),
                op: SendOp::Send {
                    payload: Payload::Words(&message),
                    imm: None,
                    to: None,
                },
                signaled: true,
                solicited: false,
                fence: false,
            };
            match port.post_send(self.objects.qp, &[wr]) {
                Ok(()) => {}
                Err(PostError::Full) => return true,
                Err(_) => {
                    self.failed = true;
                    return false;
                }
            }
            self.replies.pop_front();
        }
        false
    }
}
