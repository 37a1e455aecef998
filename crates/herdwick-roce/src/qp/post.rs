//! Posting: work requests are checked, and written to the wire at once or queued.

use herdwick_fabric::{AddressHandle, Payload, PostError, RecvWr, SendOp, SendWr, Transport};

use super::{
    Qp, Target,
    fragment::class,
    sends::{MESSAGE_BYTES_MAX, Parts, READ_BYTES_MAX, Verb, WORD, Wqe},
};
use crate::{Memory, Wire, packet::Class, shared::Shared};

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
                // The result of an atomic is one word.
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
        // Only then: a request must not overtake one that waits.
        if self.sends.ring.is_empty() && self.post_alone(shared, wr, memory, wire) {
            return;
        }
        let (payload, verb, imm, to) = parts(wr.op);
        let Ok(target) = self.target(shared, to) else {
            // `check` has found the target before.
            return;
        };
        let entry = Wqe {
            wr_id: wr.wr_id,
            verb,
            // Inline payloads are copied: the caller may reuse the memory once the post returns.
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
            // RC is queued until it is acknowledged, for it may be sent again.
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
        // As in `post_send`: a slot is free when its completion was polled.
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
            // UD has no peer with which an MTU was agreed.
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
        // A message of no bytes is a packet, too. The branch saves the division for short ones.
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
                // An address handle of another domain is refused, as the verbs demand.
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
