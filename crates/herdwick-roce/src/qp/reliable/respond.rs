//! RC responses to send, and those kept to answer duplicate requests.

use alloc::collections::VecDeque;

use herdwick_fabric::RegionId;

use super::super::Qp;
use crate::{
    Drop, Memory, RD_ATOMIC_MAX, Wire,
    packet::{
        Aeth, AtomicAckEth, Bth, BthFlags, Class, Head, ICRC_BYTES, Operation, PacketOp, Place,
        Psn24, Reth, Syndrome, pad_of,
    },
    shared::{Kind, Shared},
};

/// Responses to READs and atomics kept for repetition.
const KEPT_MAX: usize = RD_ATOMIC_MAX as usize;
/// Maximum queued responses: the kept ones, an ACK between any two, and an ACK or NAK at the end.
const WAITING_MAX: usize = 2 * KEPT_MAX + 2;

/// The responder. The next expected PSN is in the queue pair's `inbound`.
pub(crate) struct Responder {
    /// Messages completed (the MSN, modulo 2^24 on the wire).
    pub(super) completed: u32,
    /// A gap or refusal was reported; no other NAK is sent until the expected packet arrives.
    pub(super) quiet: bool,
    kept: VecDeque<Kept>,
    /// Queued responses to READs and atomics, without repeated ones.
    deep: usize,
    waiting: VecDeque<Response>,
}

/// A request that may be repeated.
#[derive(Clone, Copy)]
pub(super) enum Kept {
    Read {
        psn: Psn24,
        packets: u32,
        reth: Reth,
    },
    Atomic {
        psn: Psn24,
        original: u64,
    },
}

impl Kept {
    const fn psn(&self) -> Psn24 {
        match self {
            Self::Read { psn, .. } | Self::Atomic { psn, .. } => *psn,
        }
    }
}

/// A response to send, queued in PSN order.
#[derive(Clone, Copy)]
pub(super) enum Response {
    Acknowledge {
        psn: Psn24,
        completed: u32,
        syndrome: Syndrome,
    },
    Atomic {
        psn: Psn24,
        completed: u32,
        original: u64,
        again: bool,
    },
    /// The unsent part of a READ response.
    Read {
        again: bool,
        psn: Psn24,
        end: Psn24,
        completed: u32,
        region: RegionId,
        offset: usize,
        rest: usize,
        starts: bool,
    },
}

impl Responder {
    /// Makes a responder, with memory for responses if the queue pair `answers` requests at all.
    pub(crate) fn new(answers: bool) -> Self {
        let room = |most| if answers { most } else { 0 };
        Self {
            completed: 0,
            quiet: false,
            kept: VecDeque::with_capacity(room(KEPT_MAX)),
            deep: 0,
            waiting: VecDeque::with_capacity(room(WAITING_MAX)),
        }
    }

    /// Returns whether a response and an ACK after it can be queued.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() + 2 <= WAITING_MAX
    }

    /// Returns whether the peer has as many READs and atomics outstanding as it may.
    pub(super) fn is_deep(&self) -> bool {
        self.deep >= KEPT_MAX
    }

    pub(super) fn push(&mut self, response: Response) {
        debug_assert!(self.waiting.len() < WAITING_MAX, "room was asked for");
        self.deep += usize::from(response.is_first());
        self.waiting.push_back(response);
    }

    /// Removes the oldest response, which was sent.
    fn pop(&mut self) {
        if let Some(said) = self.waiting.pop_front() {
            self.deep -= usize::from(said.is_first());
        }
    }

    /// Keeps a response for repetition; drops the oldest kept one if full.
    pub(super) fn keep(&mut self, kept: Kept) {
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(kept);
    }

    /// Drops kept responses so far behind `now` that their PSN would compare as ahead of it.
    pub(super) fn forget_old(&mut self, now: Psn24) {
        while self
            .kept
            .front()
            .is_some_and(|kept| now.ahead_of(kept.psn()) < 0)
        {
            self.kept.pop_front();
        }
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Returns the original value of an atomic that was executed.
    pub(super) fn kept_original(&self, again: Psn24) -> Option<u64> {
        self.kept.iter().rev().find_map(|kept| match kept {
            Kept::Atomic { psn, original } if *psn == again => Some(*original),
            _ => None,
        })
    }

    /// Returns whether a duplicate READ requests a part of what it requested at first.
    pub(super) fn kept_read(&self, again: Psn24, asked: &Reth) -> bool {
        self.kept.iter().any(|kept| match kept {
            Kept::Read { psn, packets, reth } => {
                let index = again.ahead_of(*psn);
                let inside = (0..(*packets).cast_signed()).contains(&index);
                inside && reth.rkey.get() == asked.rkey.get() && reth.covers(asked)
            }
            Kept::Atomic { .. } => false,
        })
    }

    /// Returns whether a response for this PSN is queued already.
    pub(super) fn is_answering(&self, asked: Psn24) -> bool {
        self.waiting.iter().any(|waiting| match waiting {
            Response::Atomic { psn, .. } => *psn == asked,
            Response::Read { psn, end, .. } => asked.ahead_of(*psn) >= 0 && end.ahead_of(asked) > 0,
            Response::Acknowledge { .. } => false,
        })
    }
}

impl Reth {
    fn covers(&self, part: &Self) -> bool {
        let end = |reth: &Self| reth.addr.get().checked_add(reth.len.get().into());
        let (Some(whole), Some(asked)) = (end(self), end(part)) else {
            return false;
        };
        part.addr.get() >= self.addr.get() && asked <= whole
    }
}

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
                *last = said;
            }
        } else if waiting.len() < WAITING_MAX {
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
                    if rest > 0 && shared.regions.get(region).is_none() =>
                {
                    shared.counters.drop(Drop::Gone);
                    None
                }
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
            Response::Read { .. } => Kind::Data,
            Response::Acknowledge { .. } | Response::Atomic { .. } => Kind::Answer,
        };
        let Some(room) = shared.room(wire, &link.target, total, kind) else {
            return false;
        };
        let flags = BthFlags {
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
    /// Returns whether it answers a READ or atomic for the first time.
    fn is_first(&self) -> bool {
        matches!(
            self,
            Self::Atomic { again: false, .. } | Self::Read { again: false, .. }
        )
    }

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
