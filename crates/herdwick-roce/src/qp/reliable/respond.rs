//! RC responses: queued, and sent in the order of their requests. One ACK covers a batch; a NAK stays queued.

use super::{
    super::Qp,
    responder::{Response, WAITING_MAX},
};
use crate::{
    Drop, Memory, Wire,
    packet::{
        Aeth, AtomicAckEth, Bth, BthFlags, Class, Head, ICRC_BYTES, Operation, PacketOp, Place,
        Psn24, Syndrome, pad_of,
    },
    shared::{Kind, Shared},
};

impl Qp {
    /// Returns whether responses are queued.
    pub(super) fn has_answers(&self) -> bool {
        !self.responder.waiting.is_empty()
    }

    /// Queues an ACK or NAK. It replaces the last queued response if that is an ACK or NAK too: one
    /// ACK serves a whole batch. A NAK implies the ACK of all earlier packets and is not repeated,
    /// so an ACK of an earlier packet does not replace it.
    pub(super) fn acknowledge(&mut self, psn: Psn24, syndrome: Syndrome) {
        let completed = self.responder.completed;
        let said = Response::Acknowledge {
            psn,
            completed,
            syndrome,
        };
        let waiting = &mut self.responder.waiting;
        if let Some(last @ Response::Acknowledge { .. }) = waiting.back_mut() {
            if !last.refuses_after(psn) || syndrome != Syndrome::ACK {
                // A NAK with ACK behind it: `refuses_after` keeps the NAK, since the ACK says
                // nothing more.
                *last = said;
            }
        } else if waiting.len() < WAITING_MAX {
            // If there is no room, nothing is queued: the requester's timeout asks again.
            waiting.push_back(said);
        }
    }

    /// Sends queued responses in order. Returns `false` if the wire is full, or the pass has sent
    /// as many READ responses as it may.
    pub(super) fn respond<M: Memory, W: Wire>(
        &mut self,
        shared: &mut Shared,
        memory: &M,
        wire: &mut W,
    ) -> bool {
        while let Some(response) = self.responder.waiting.front().copied() {
            let rest = match response {
                Response::Read { region, rest, .. }
                    // A READ of no bytes has no region.
                    if rest > 0 && shared.regions.get(region).is_none() =>
                {
                    shared.counters.drop(Drop::Gone);
                    // The rest of the response is dropped. The requester's timeout asks again, and
                    // is refused then.
                    None
                }
                // The response stays at the front: later ones must not overtake it.
                Response::Read { .. } if !shared.may_answer_reads() => return false,
                _ if !self.emit_response(shared, &response, memory, wire) => return false,
                _ => response.rest(self.mtu(shared)),
            };
            match (rest, self.responder.waiting.front_mut()) {
                (Some(rest), Some(front)) => *front = rest,
                _ => self.responder.pop(),
            }
        }
        true
    }

    fn emit_response<M: Memory, W: Wire>(
        &self,
        shared: &mut Shared,
        response: &Response,
        memory: &M,
        wire: &mut W,
    ) -> bool {
        let Some(link) = self.link else {
            // Without a link no request arrives.
            return true;
        };
        let (operation, psn, len) = response.packet(link.mtu);
        let op = PacketOp {
            class: Class::Rc,
            operation,
        };
        let pad = pad_of(len);
        let total = op.head_bytes() + len + usize::from(pad) + ICRC_BYTES;
        let kind = match response {
            // READ responses are data of the connection and paced; an ACK that waits would stall
            // the peer.
            Response::Read { .. } => Kind::Data,
            Response::Acknowledge { .. } | Response::Atomic { .. } => Kind::Answer,
        };
        let Some(room) = shared.room(wire, &link.target, total, kind) else {
            return false;
        };
        let flags = BthFlags {
            // The other flags are 0: a response is not solicited, and asks for no ACK.
            migration: shared.config.migration,
            pad,
            ..BthFlags::default()
        };
        let bth = Bth::new(op.encode(), link.target.qpn, psn, flags);
        let body = response
            .extend(op, Head::new(&mut *room, &bth))
            .payload(len);
        if let Response::Read { region, offset, .. } = response
            && len > 0
        {
            memory.read(*region, *offset, body);
        }
        shared.seal(&link.target, self.qpn, room);
        true
    }
}

impl Response {
    /// Returns whether it is a NAK of a packet after `psn`.
    fn refuses_after(&self, psn: Psn24) -> bool {
        match self {
            Self::Acknowledge {
                psn: named,
                syndrome,
                ..
            } => *syndrome != Syndrome::ACK && named.ahead_of(psn) > 0,
            Self::Atomic { .. } | Self::Read { .. } => false,
        }
    }

    /// Returns the opcode, PSN and payload length of its next packet.
    fn packet(&self, mtu: usize) -> (Operation, Psn24, usize) {
        match *self {
            Self::Acknowledge { psn, .. } => (Operation::Acknowledge, psn, 0),
            Self::Atomic { psn, .. } => (Operation::AtomicAcknowledge, psn, 0),
            Self::Read {
                psn, rest, starts, ..
            } => {
                let place = match (starts, rest <= mtu) {
                    (true, true) => Place::Only,
                    (true, false) => Place::First,
                    (false, true) => Place::Last,
                    (false, false) => Place::Middle,
                };
                (Operation::ReadResponse(place), psn, rest.min(mtu))
            }
        }
    }

    fn extend<'r>(&self, op: PacketOp, head: Head<'r>) -> Head<'r> {
        match *self {
            Self::Acknowledge {
                completed,
                syndrome,
                ..
            } => head.and(&Aeth::new(syndrome, completed)),
            Self::Atomic {
                completed,
                original,
                ..
            } => head
                .and(&Aeth::new(Syndrome::ACK, completed))
                .and(&AtomicAckEth {
                    original: original.into(),
                }),
            // IBTA: the middle packets of a READ response have no AETH.
            Self::Read { .. } if op.operation == Operation::ReadResponse(Place::Middle) => head,
            Self::Read { completed, .. } => head.and(&Aeth::new(Syndrome::ACK, completed)),
        }
    }

    /// Returns what remains of it after its next packet.
    fn rest(self, mtu: usize) -> Option<Self> {
        match self {
            Self::Read {
                again,
                psn,
                end,
                completed,
                region,
                offset,
                rest,
                ..
            } if rest > mtu => Some(Self::Read {
                again,
                psn: psn.plus(1),
                end,
                completed,
                region,
                offset: offset + mtu,
                rest: rest - mtu,
                starts: false,
            }),
            _ => None,
        }
    }
}
