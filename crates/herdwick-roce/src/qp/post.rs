//! The send queue: checks and posts work requests, and keeps them until they complete.

use alloc::{boxed::Box, collections::VecDeque, vec};

use herdwick_fabric::{
    AddressHandle, CqId, Local, Opcode, Payload, PostError, QpSpec, RecvWr, Remote, SendOp, SendWr,
    Status, Transport,
};

use super::{
    Ended, Qp, Target,
    fragment::{class, put_words},
};
use crate::{
    Memory, Wire,
    packet::{Class, Psn24},
    shared::Shared,
};

/// Maximum bytes of one RC or UC message. Its packets number far less than half the PSN space, so
/// that PSN comparisons are unambiguous.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;
const _: () = assert!(MESSAGE_BYTES_MAX / 256 < 1 << 22);

/// Maximum bytes of one READ, the most that a RETH can name in whole words. It is requested in pieces,
/// so only its own packets are compared with each other.
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
            slots: vec![0; spec.send_depth * slot_bytes].into_boxed_slice(),
            slot_bytes,
            posted: 0,
        }
    }

    /// Copies an inline payload to a slot until its packets are sent (RC: until they are
    /// acknowledged).
    fn keep(&mut self, payload: Payload<'_>) -> Body {
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

impl Qp {
    /// Checks a work request for all errors that the local side can detect.
    #[inline]
    pub(crate) fn check(&self, shared: &Shared, wr: &SendWr<'_>) -> Result<(), PostError> {
        match wr.op {
            SendOp::Send { payload, to, .. } => {
                self.target(shared, to)?;
                self.carries(shared, payload)
            }
            SendOp::Write { payload, .. } => {
                self.only(self.transport != Transport::Ud)?;
                self.carries(shared, payload)
            }
            SendOp::Read { into, .. } => {
                self.only(self.may_ask())?;
                let fits = into.len <= READ_BYTES_MAX && shared.regions.holds(self.pd, into);
                fits.then_some(()).ok_or(PostError::Bounds)
            }
            SendOp::FetchAdd { into, .. } | SendOp::CompareSwap { into, .. } => {
                self.only(self.may_ask())?;
                if into.len != WORD || !into.offset.is_multiple_of(WORD) {
                    return Err(PostError::Bounds);
                }
                self.carries(shared, Payload::Region(into))
            }
        }
    }

    /// Posts a work request that was checked: writes it to the wire at once if possible, otherwise
    /// queues it.
    #[inline]
    pub(crate) fn post<M: Memory, W: Wire>(
        &mut self,
        shared: &mut Shared,
        wr: &SendWr<'_>,
        memory: &M,
        wire: &mut W,
    ) {
        self.sends.held += 1;
        if self.sends.ring.is_empty() && self.post_alone(shared, wr, memory, wire) {
            return;
        }
        let (payload, verb, imm, to) = parts(wr.op);
        let Ok(target) = self.target(shared, to) else {
            return;
        };
        let entry = Wqe {
            wr_id: wr.wr_id,
            verb,
            body: self.sends.keep(payload),
            len: payload.len(),
            imm,
            target,
            signaled: wr.signaled,
            solicited: wr.solicited,
            fence: wr.fence,
            psn: self.sends.assign,
            packets: self.packets(shared, payload.len()),
        };
        self.sends.assign = entry.psn.plus(entry.packets);
        self.sends.ring.push_back(entry);
    }

    /// Writes a UC or UD request of one packet to the wire at once; returns `false` if there is no
    /// room, or it is not such a request. A WRITE, and a datagram with an immediate, of words in
    /// memory have arms of their own, in which the compiler knows the opcode.
    #[inline(always)]
    fn post_alone<M: Memory, W: Wire>(
        &mut self,
        shared: &mut Shared,
        wr: &SendWr<'_>,
        memory: &M,
        wire: &mut W,
    ) -> bool {
        let (class, parts) = match (self.transport, wr.op) {
            (
                Transport::Ud,
                SendOp::Send {
                    payload: Payload::Words(words),
                    imm: Some(imm),
                    to,
                },
            ) => {
                let parts = (Payload::Words(words), Verb::Send, Some(imm), to);
                return self.send_now(shared, (Class::Ud, wr, parts), memory, wire);
            }
            (
                Transport::Uc,
                SendOp::Write {
                    payload: Payload::Words(words),
                    to,
                    imm: None,
                },
            ) => {
                let parts = (Payload::Words(words), Verb::Write(to), None, None);
                return self.send_now(shared, (Class::Uc, wr, parts), memory, wire);
            }
            (Transport::Rc, _) => return false,
            _ => (class(self.transport), parts(wr.op)),
        };
        self.send_now(shared, (class, wr, parts), memory, wire)
    }

    /// Posts RECVs.
    pub(crate) fn post_recv(&mut self, shared: &Shared, batch: &[RecvWr]) -> Result<(), PostError> {
        for recv in batch {
            if !shared.regions.holds(self.pd, recv.into) {
                return Err(PostError::Bounds);
            }
        }
        if self.recvs.held + batch.len() > self.recvs.depth {
            return Err(PostError::Full);
        }
        self.recvs.held += batch.len();
        self.recvs.ring.extend(batch);
        Ok(())
    }

    /// Returns the maximum payload bytes of one packet.
    #[inline]
    pub(super) fn mtu(&self, shared: &Shared) -> usize {
        match self.link {
            Some(link) => link.mtu,
            None => shared.config.mtu.bytes(),
        }
    }

    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "see the assertion at MESSAGE_BYTES_MAX"
    )]
    fn packets(&self, shared: &Shared, len: usize) -> u32 {
        let mtu = self.mtu(shared);
        if len <= mtu {
            1
        } else {
            len.div_ceil(mtu) as u32
        }
    }

    /// Returns whether READs and atomics are possible: on RC only, and if the peer serves any.
    fn may_ask(&self) -> bool {
        self.transport == Transport::Rc && self.link.is_some_and(|link| link.rd_atomic > 0)
    }

    /// Refuses a verb that the transport does not carry (HERD paper, Table 1).
    fn only(&self, allowed: bool) -> Result<(), PostError> {
        let refused = PostError::Transport(self.transport);
        allowed.then_some(()).ok_or(refused)
    }

    #[inline]
    pub(super) fn target(
        &self,
        shared: &Shared,
        to: Option<AddressHandle>,
    ) -> Result<Target, PostError> {
        let refused = PostError::Transport(self.transport);
        match (self.link, to) {
            (Some(link), None) => Ok(link.target),
            (None, Some(handle)) if self.transport == Transport::Ud => {
                let address = shared.addresses.get(handle.0);
                let address = address.filter(|address| address.pd == self.pd);
                address.map(|address| address.target).ok_or(refused)
            }
            _ => Err(refused),
        }
    }

    #[inline]
    fn carries(&self, shared: &Shared, payload: Payload<'_>) -> Result<(), PostError> {
        let most = match self.transport {
            Transport::Ud => shared.config.datagram.bytes(),
            Transport::Rc | Transport::Uc => MESSAGE_BYTES_MAX,
        };
        let fits = match payload {
            Payload::Inline(_) | Payload::Words(_) => {
                payload.len() <= most.min(shared.config.inline_bytes_max)
            }
            Payload::Region(local) => local.len <= most && shared.regions.holds(self.pd, local),
        };
        fits.then_some(()).ok_or(PostError::Bounds)
    }
}

/// Splits a work request into payload, verb, immediate and destination.
#[inline]
fn parts(op: SendOp<'_>) -> Parts<'_> {
    match op {
        SendOp::Send { payload, imm, to } => (payload, Verb::Send, imm, to),
        SendOp::Write { payload, to, imm } => (payload, Verb::Write(to), imm, None),
        SendOp::Read { into, from } => (Payload::Region(into), Verb::Read(from), None, None),
        SendOp::FetchAdd { into, at, add } => (
            Payload::Region(into),
            Verb::FetchAdd { at, add },
            None,
            None,
        ),
        SendOp::CompareSwap {
            into,
            at,
            expected,
            new,
        } => {
            let verb = Verb::CompareSwap { at, expected, new };
            (Payload::Region(into), verb, None, None)
        }
    }
}
