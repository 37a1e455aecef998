//! Queue pairs, completion queues, regions and address handles as a port stores them.

use std::collections::VecDeque;

use herdwick_fabric::{
    Completion, CqId, Opcode, QpId, QpState, Qpn, RecvWr, RegionId, Slab, Status, Transport,
};
use herdwick_mem::Span;

use crate::{
    layout::RingPlace,
    pd::{Opened, Place},
    ring::{Consumer, Control},
};

/// A queue pair of this port.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) id: QpId,
    pub(crate) qpn: Qpn,
    pub(crate) pd: u32,
    pub(crate) transport: Transport,
    pub(crate) state: QpState,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) send_depth: usize,
    /// Send completions that were not polled yet.
    pub(crate) send_pending: usize,
    pub(crate) recv_depth: usize,
    /// Posted RECVs, oldest first; never more than `recv_depth`.
    pub(crate) recvs: VecDeque<RecvWr>,
    /// Its line in this side's control area.
    pub(crate) line: usize,
    pub(crate) place: Option<RingPlace>,
    pub(crate) inbox: Option<Consumer<Span>>,
    /// The queue pair that it is connected with.
    pub(crate) peer: Option<Peer>,
    /// The peer's region that it last accessed.
    pub(crate) opened: Opened,
}

/// The other end of a connected queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) line: usize,
    pub(crate) qpn: Qpn,
    /// The ring to it; `None`: it accepts no messages.
    pub(crate) outbound: Option<u32>,
}

impl Qp {
    /// Whether a poll would find something to receive.
    pub(crate) fn has_arrivals(&self) -> bool {
        match self.state {
            QpState::Init => false,
            QpState::Error => !self.recvs.is_empty(),
            QpState::ReadyToSend => {
                let waits = self.transport == Transport::Rc && self.recvs.is_empty();
                let next = self.inbox.as_ref().and_then(Consumer::peek);
                !waits && next.is_some()
            }
        }
    }
}

/// A region of this port.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) pd: u32,
    pub(crate) rkey: herdwick_fabric::Rkey,
    pub(crate) span: Span,
    /// `None` for memory that no peer can access.
    pub(crate) place: Option<Place>,
}

/// A destination of datagrams.
#[derive(Debug)]
pub(crate) struct Address {
    pub(crate) qp: QpId,
    /// The domain of the receiver.
    pub(crate) pd: u32,
    /// The ring to it; `None`: it accepts no messages.
    pub(crate) outbound: Option<u32>,
    /// The sender index under which the receiver's side finds this side's qpn.
    pub(crate) stamp: Control,
}

/// A completed send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) wr_id: u64,
    pub(crate) qp: QpId,
    pub(crate) opcode: Opcode,
    pub(crate) status: Status,
}

/// A completion queue: completed sends, and the queue pairs whose receives complete here.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) depth: usize,
    /// Sum of the queue depths that feed it; at most `depth`.
    pub(crate) reserved: usize,
    /// At most the send depths that feed it.
    pub(crate) sent: VecDeque<Sent>,
    /// Queue pairs whose receives complete here.
    pub(crate) receivers: Vec<QpId>,
    /// Index of the queue pair that the next poll checks first.
    pub(crate) next: usize,
    /// Number of queue pairs that use it.
    pub(crate) users: usize,
}

impl Cq {
    /// Moves finished sends to the front of `out`.
    #[inline]
    pub(crate) fn take_sent(&mut self, qps: &mut Slab<Qp>, out: &mut [Completion]) -> usize {
        if self.sent.is_empty() {
            return 0;
        }
        let count = self.sent.len().min(out.len());
        for (to, sent) in out.iter_mut().zip(self.sent.drain(..count)) {
            *to = Completion {
                wr_id: sent.wr_id,
                status: sent.status,
                opcode: sent.opcode,
                qp: sent.qp,
                byte_len: 0,
                imm: None,
                source: None,
                inline: None,
            };
            if let Some(qp) = qps.get_mut(sent.qp.0) {
                qp.send_pending -= 1;
            }
        }
        count
    }
}

/// Returns the span of a region of domain `pd`, if it contains the `len` bytes at `offset`.
#[inline]
pub(crate) fn local(
    regions: &Slab<Region>,
    pd: u32,
    (region, offset, len): (RegionId, usize, usize),
) -> Option<&Span> {
    let region = regions.get(region.0)?;
    let inside = offset
        .checked_add(len)
        .is_some_and(|end| end <= region.span.len());
    (region.pd == pd && inside).then_some(&region.span)
}
