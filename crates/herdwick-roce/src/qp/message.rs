//! The message that a queue pair is receiving, and why a packet of it is refused.

use herdwick_fabric::RegionId;

use crate::{Drop, packet::Psn24};

/// The message being received.
pub(crate) struct InboundMessage {
    /// The expected PSN of the next packet.
    pub(crate) expected: Psn24,
    pub(super) message: Message,
}

pub(super) enum Message {
    /// Between messages: the next packet has to start one.
    Idle,
    /// A SEND, with `taken` bytes stored in the buffer of the first RECV.
    Send { taken: usize },
    /// A WRITE, with `rest` of `total` bytes still to arrive.
    Write {
        region: RegionId,
        offset: usize,
        rest: usize,
        total: usize,
    },
}

/// The reason why a packet with the expected PSN is not executed.
pub(crate) enum Refusal {
    /// No RECV is posted.
    NoRecv,
    /// The message is longer than the buffer of its RECV.
    TooLong,
    /// Too many responses are queued; the requester has to retry.
    Busy,
    /// The region of the RECV's buffer was deregistered; the RECV has completed with an error.
    Local,
    /// A wrong length or order of packets.
    Invalid(Drop),
    /// A wrong rkey, range or right.
    Access(Drop),
}

impl Default for InboundMessage {
    fn default() -> Self {
        Self {
            expected: Psn24::new(0),
            message: Message::Idle,
        }
    }
}

impl InboundMessage {
    /// Returns whether no message is partly received.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.message, Message::Idle)
    }

    /// Drops a partly received message; its RECV takes the next one.
    pub(crate) fn abandon(&mut self) {
        self.message = Message::Idle;
    }
}
