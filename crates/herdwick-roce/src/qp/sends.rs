//! The send queue: work requests until they complete, and the inline payloads of those that wait.

use alloc::{boxed::Box, collections::VecDeque, vec};

use herdwick_fabric::{AddressHandle, CqId, Local, Opcode, Payload, QpSpec, Remote, Status};

use super::{Target, fragment::put_words};
use crate::packet::Psn24;

/// Maximum bytes of one RC or UC message. Its packets number far less than half the PSN space, so
/// that PSN comparisons are unambiguous.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;
// Packets of at least 256 bytes.
const _: () = assert!(MESSAGE_BYTES_MAX / 256 < 1 << 22);

/// Maximum bytes of one READ: no message may be longer (IBTA). It is requested in pieces, so only
/// its own packets are compared with each other.
pub const READ_BYTES_MAX: usize = 1 << 31;
const _: () = assert!(READ_BYTES_MAX / 256 <= 1 << 23);

/// Bytes of the word of an atomic.
pub(super) const WORD: usize = 8;

/// The send queue.
pub(crate) struct Sends {
    pub(crate) cq: CqId,
    pub(crate) depth: usize,
    /// Slots in use; the completion that frees one has to be polled first.
    pub(crate) held: usize,
    /// Slots of finished unsignaled requests, which the next completion frees.
    pub(crate) quiet: usize,
    /// Unfinished requests. On UC and UD only those that the wire had no room for.
    pub(crate) ring: VecDeque<Wqe>,
    /// The PSN of the next packet to post.
    pub(crate) assign: Psn24,
    /// The PSN of the next packet to transmit.
    pub(crate) next: Psn24,
    /// Inline payloads of the requests in `ring`, one slot each.
    slots: Box<[u8]>,
    slot_bytes: usize,
    posted: usize,
}

/// An unfinished send work request.
#[derive(Clone, Copy)]
pub(crate) struct Wqe {
    pub(crate) wr_id: u64,
    pub(crate) verb: Verb,
    pub(crate) body: Body,
    pub(crate) len: usize,
    pub(crate) imm: Option<u32>,
    pub(crate) target: Target,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    /// RC: it waits for all earlier READs and atomics.
    pub(crate) fence: bool,
    /// The PSN of its first packet, and its number of packets.
    pub(crate) psn: Psn24,
    pub(crate) packets: u32,
}

/// Payload or destination of the response, verb, immediate, and a datagram's destination.
pub(super) type Parts<'a> = (Payload<'a>, Verb, Option<u32>, Option<AddressHandle>);

#[derive(Clone, Copy)]
pub(crate) enum Verb {
    Send,
    Write(Remote),
    Read(Remote),
    FetchAdd { at: Remote, add: u64 },
    CompareSwap { at: Remote, expected: u64, new: u64 },
}

/// The location of a payload, or the destination of a response.
#[derive(Clone, Copy)]
pub(crate) enum Body {
    /// A slot of the send queue.
    Slot(usize),
    /// A region.
    Region(Local),
}

impl Verb {
    #[inline]
    pub(super) fn opcode(&self) -> Opcode {
        match self {
            Self::Send => Opcode::Send,
            Self::Write(_) => Opcode::Write,
            Self::Read(_) => Opcode::Read,
            Self::FetchAdd { .. } => Opcode::FetchAdd,
            Self::CompareSwap { .. } => Opcode::CompareSwap,
        }
    }
}

impl Sends {
    pub(crate) fn new(spec: &QpSpec, psn: Psn24, slot_bytes: usize) -> Self {
        Self {
            cq: spec.send_cq,
            depth: spec.send_depth,
            held: 0,
            quiet: 0,
            ring: VecDeque::with_capacity(spec.send_depth),
            assign: psn,
            next: psn,
            // One allocation when the queue pair is made: posts do not allocate.
            slots: vec![0; spec.send_depth * slot_bytes].into_boxed_slice(),
            slot_bytes,
            posted: 0,
        }
    }

    /// Copies an inline payload to a slot until its packets are sent (RC: until they are
    /// acknowledged).
    pub(super) fn keep(&mut self, payload: Payload<'_>) -> Body {
        // The slot is free: at most `depth` requests are unfinished, and they end in order.
        let slot = self.posted % self.depth;
        self.posted = self.posted.wrapping_add(1);
        let at = slot * self.slot_bytes;
        match payload {
            Payload::Inline(bytes) => self.slots[at..at + bytes.len()].copy_from_slice(bytes),
            Payload::Words(words) => put_words(&mut self.slots[at..at + words.len() * 8], words),
            Payload::Region(local) => return Body::Region(local),
        }
        Body::Slot(slot)
    }

    /// Returns a byte range of an entry's payload.
    pub(super) fn payload(&self, entry: &Wqe, offset: usize, len: usize) -> Payload<'_> {
        match entry.body {
            Body::Slot(slot) => {
                let at = slot * self.slot_bytes + offset;
                Payload::Inline(&self.slots[at..at + len])
            }
            Body::Region(local) => Payload::Region(Local {
                offset: local.offset + offset,
                len,
                ..local
            }),
        }
    }
}

impl Wqe {
    pub(crate) fn ended(&self, status: Status) -> Ended {
        Ended {
            wr_id: self.wr_id,
            opcode: self.verb.opcode(),
            signaled: self.signaled,
            status,
        }
    }

    /// Returns whether it completes with a response of its own rather than an ACK.
    pub(super) fn is_answered(&self) -> bool {
        !matches!(self.verb, Verb::Send | Verb::Write(_))
    }
}

/// The result of a work request of the send queue.
pub(crate) struct Ended {
    pub(crate) wr_id: u64,
    pub(crate) opcode: Opcode,
    pub(crate) signaled: bool,
    pub(crate) status: Status,
}
