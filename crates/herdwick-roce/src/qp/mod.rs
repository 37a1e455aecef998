//! Queue pairs, split by task: posting and transmission, reception, congestion, failure.

mod blame;
mod congestion;
mod datagram;
mod fragment;
mod inbound;
mod message;
mod post;
mod reliable;
mod sends;
mod target;
mod unreliable;

use alloc::collections::VecDeque;
use core::net::IpAddr;

use herdwick_fabric::{
    Completion, CqId, PdId, QpId, QpSpec, QpState, Received, RecvWr, Status, Transport,
};

use crate::{
    Config, Memory, Secret, Wire,
    completions::{Cq, Slots},
    packet::Psn24,
    regions::Accessor,
    shared::Shared,
    slab::Slab,
    watch::Watch,
};

pub use datagram::DATAGRAM_HEADER_BYTES;
pub use sends::{MESSAGE_BYTES_MAX, READ_BYTES_MAX};

pub(crate) use blame::Blame;
pub(crate) use fragment::class;
pub(crate) use message::InboundMessage;
pub(crate) use reliable::{Requester, Responder};
pub(crate) use sends::{Ended, Sends};
pub(crate) use target::Target;

/// One queue pair.
pub(crate) struct Qp {
    pub(crate) id: QpId,
    pub(crate) qpn: u32,
    pub(crate) pd: PdId,
    pub(crate) transport: Transport,
    pub(crate) state: QpState,
    /// UD: the Q_Key that datagrams to it must carry.
    pub(crate) qkey: u32,
    /// Its contribution to a key.
    pub(crate) secret: Secret,
    /// UD: whether it accepts datagrams from keyed peers only.
    pub(crate) keyed: bool,
    /// The PSN of its first packet.
    pub(crate) first_psn: Psn24,
    /// The other end of a connection.
    pub(crate) link: Option<Link>,
    pub(crate) sends: Sends,
    pub(crate) recvs: Recvs,
    pub(crate) inbound: InboundMessage,
    /// RC: outstanding requests, and responses to send.
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// The wrong packets that arrived for it in this pass.
    pub(crate) blame: Blame,
    /// Whether a CNP is to be sent to its peer: a packet arrived marked as congested.
    pub(crate) congested: bool,
    /// Whether it is in the engine's list of queue pairs with packets to transmit.
    pub(crate) listed: bool,
    /// Set if its WRITEs are to be reported.
    pub(crate) watch: Option<Watch>,
}

/// The parameters of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub(crate) target: Target,
    /// The only source address that packets are accepted from.
    pub(crate) ip: IpAddr,
    pub(crate) mtu: usize,
    /// RC: READs and atomics that the peer serves at a time.
    pub(crate) rd_atomic: usize,
    /// RC: whether a refused request fails the queue pair.
    pub(crate) refusals_are_fatal: bool,
}

/// The receive queue.
pub(crate) struct Recvs {
    pub(crate) cq: CqId,
    pub(crate) depth: usize,
    /// Slots in use; the completion that frees one has to be polled first.
    pub(crate) held: usize,
    pub(crate) ring: VecDeque<RecvWr>,
}

/// The random numbers assigned to a new queue pair.
pub(crate) struct Names {
    pub(crate) qpn: u32,
    pub(crate) psn: Psn24,
    pub(crate) qkey: u32,
    pub(crate) secret: Secret,
}

impl Qp {
    pub(crate) fn new(spec: &QpSpec, names: &Names, config: &Config) -> Self {
        // UD needs no peer, so it is ready at once.
        let state = match spec.transport {
            Transport::Ud => QpState::ReadyToSend,
            Transport::Rc | Transport::Uc => QpState::Init,
        };
        Self {
            id: QpId(0),
            qpn: names.qpn,
            pd: spec.pd,
            transport: spec.transport,
            state,
            qkey: names.qkey,
            secret: names.secret,
            keyed: false,
            first_psn: names.psn,
            link: None,
            sends: Sends::new(spec, names.psn, config.inline_bytes_max),
            recvs: Recvs {
                cq: spec.recv_cq,
                depth: spec.recv_depth,
                held: 0,
                ring: VecDeque::with_capacity(spec.recv_depth),
            },
            inbound: InboundMessage::default(),
            requester: Requester::new(names.psn, &config.retry),
            responder: Responder::new(spec.transport == Transport::Rc),
            blame: Blame::NONE,
            congested: false,
            listed: false,
            watch: None,
        }
    }

    /// Returns the identity with which it accesses remote memory on behalf of its peer.
    pub(crate) fn asker(&self) -> Accessor {
        Accessor {
            pd: self.pd,
            qp: self.id,
        }
    }

    /// Ends one work request of the send queue, with a completion if it is signaled or failed.
    #[inline]
    pub(crate) fn finish_send(&mut self, cqs: &mut Slab<Cq>, ended: &Ended) {
        // An unsignaled request keeps its slot until a later one completes: the slot is what bounds
        // the completion queue.
        if ended.status == Status::Success && !ended.signaled {
            self.sends.quiet += 1;
            return;
        }
        let slots = 1 + core::mem::take(&mut self.sends.quiet);
        let completion = Completion {
            wr_id: ended.wr_id,
            status: ended.status,
            opcode: ended.opcode,
            qp: self.id,
            ..Completion::BLANK
        };
        // A completion queue in use cannot be destroyed, so it is there.
        if let Some(cq) = cqs.get_mut(self.sends.cq.0) {
            cq.push(completion, Slots::Send(slots));
        }
    }

    /// Completes one RECV.
    #[inline]
    pub(crate) fn finish_recv(&self, cqs: &mut Slab<Cq>, recv: &RecvWr, received: Received) {
        let completion = received.completion(recv.wr_id, self.id);
        if let Some(cq) = cqs.get_mut(self.recvs.cq.0) {
            cq.push(completion, Slots::Receive);
        }
    }

    /// Writes packets to the wire as far as it has room; returns whether none are left.
    pub(crate) fn transmit<M: Memory, W: Wire>(
        &mut self,
        shared: &mut Shared,
        memory: &M,
        wire: &mut W,
    ) -> bool {
        // First, and unpaced: the peer slows down the sooner.
        if self.congested && !self.emit_congestion(shared, wire) {
            return false;
        }
        match self.transport {
            Transport::Rc => self.transmit_reliable(shared, memory, wire),
            Transport::Uc | Transport::Ud => self.transmit_unreliable(shared, memory, wire),
        }
    }

    /// Frees the queue slots of a polled completion.
    #[inline]
    pub(crate) fn give_back(&mut self, slots: Slots) {
        match slots {
            Slots::Send(count) => self.sends.held = self.sends.held.saturating_sub(count),
            Slots::Receive => self.recvs.held = self.recvs.held.saturating_sub(1),
        }
    }

    /// Moves to the error state: the oldest send completes with `status`; the other sends and all
    /// RECVs are flushed.
    pub(crate) fn fail(&mut self, shared: &mut Shared, status: Status) {
        self.state = QpState::Error;
        self.inbound.abandon();
        // Queued responses stay: the NAK that explains the failure to the peer is among them.
        self.stop_requesting(shared);
        let cqs = &mut shared.cqs;
        let mut status = status;
        while let Some(entry) = self.sends.ring.pop_front() {
            self.finish_send(cqs, &entry.ended(status));
            // Only the oldest request failed; the verbs report the others as flushed.
            status = Status::Flushed;
        }
        while let Some(recv) = self.recvs.ring.pop_front() {
            self.finish_recv(cqs, &recv, Received::failed(Status::Flushed));
        }
    }
}
