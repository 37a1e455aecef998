//! Queue pairs, completion queues, regions and address handles as a port stores them.

use std::collections::VecDeque;

use herdwick_fabric::{
    CqId, Local, Opcode, QpId, QpState, Qpn, RecvWr, RegionId, Remote, Rkey, SharedMemory, Slab,
    Status, Transport,
};
use herdwick_mem::{Span, Words};

use crate::{
    entry::AccessRight,
    layout::{QP_FAILED, QP_READY, RingPlace, qp_word},
    pd::{Pd, RegionPlace},
    region::{PeerRegion, WholeRegion},
    ring::{Control, RingConsumer},
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
    pub(crate) inbox: Option<RingConsumer<Span>>,
    /// The queue pair that it is connected with.
    pub(crate) peer: Option<Peer>,
    /// READs that were posted and have not been polled, oldest first; at most `send_pending`.
    pub(crate) reads: VecDeque<Read>,
    /// The peer's regions that it last accessed, by the low bits of their rkeys.
    pub(crate) opened: [PeerRegion; OPENED],
}

/// Regions of its peer that a queue pair remembers.
pub(crate) const OPENED: usize = 4;

/// The other end of a connected queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) line: usize,
    pub(crate) qpn: Qpn,
    /// The ring to it; `None`: it accepts no messages.
    pub(crate) outbound: Option<u32>,
}

impl Peer {
    /// Whether it exists and is ready.
    #[inline]
    pub(crate) fn listens(&self, pd: &Pd) -> bool {
        // Pairs with `Pd::show_qp`. Number and state are one word, so that a line that was reused
        // does not match.
        pd.theirs.load_acquire(qp_word(self.line)) == u64::from(self.qpn.0) | QP_READY
    }
}

impl Qp {
    /// Returns memory and offset of the `len` bytes at `addr` of the peer's region under `rkey`;
    /// `None` if rkey, range, right or scope is wrong.
    #[inline(always)]
    pub(crate) fn reach(
        &mut self,
        pd: &Pd,
        rkey: Rkey,
        (addr, len): (u64, usize),
        right: AccessRight,
    ) -> Option<(&Span, usize)> {
        let peer = self.peer?.qpn;
        self.opened[rkey.0 as usize % OPENED].reach(pd, rkey, (addr, len), right, peer)
    }

    /// Returns the peer's region under `rkey`, to be reached more than once; `None` if rkey, right or scope is
    /// wrong, or if it has windows, whose places change.
    #[inline(always)]
    pub(crate) fn reach_whole(
        &mut self,
        pd: &Pd,
        rkey: Rkey,
        right: AccessRight,
    ) -> Option<WholeRegion<'_>> {
        let peer = self.peer?.qpn;
        self.opened[rkey.0 as usize % OPENED].reach_whole(pd, rkey, right, peer)
    }

    /// Whether the region under `rkey`, just reached, has been open until now.
    #[inline]
    pub(crate) fn is_open(&self, pd: &Pd, rkey: Rkey) -> bool {
        self.opened[rkey.0 as usize % OPENED].is_current(pd, rkey)
    }

    /// Whether a poll would find something to receive.
    pub(crate) fn has_arrivals(&self) -> bool {
        match self.state {
            QpState::Init => false,
            QpState::Error => !self.recvs.is_empty(),
            QpState::ReadyToSend => {
                // RC keeps a message in the ring until a RECV comes, so it does not wake a sleeper
                // without one.
                let waits = self.transport == Transport::Rc && self.recvs.is_empty();
                let next = self.inbox.as_ref().and_then(RingConsumer::peek);
                !waits && next.is_some()
            }
        }
    }
}

/// Moves a queue pair to the error state, and shows that to its peer.
pub(crate) fn fail(qp: &mut Qp, pd: &Pd) {
    qp.state = QpState::Error;
    // The peer's next batch sees it; there is no message for it.
    pd.show_qp(qp.line, qp.qpn, QP_FAILED);
}

/// Fails an RC queue pair whose peer's process is gone, once what has arrived is received.
pub(crate) fn lose_peer(qp: &mut Qp, pd: &Pd) {
    // What the host had sent before it ended is still delivered.
    if qp.transport != Transport::Rc || qp.state != QpState::ReadyToSend || qp.has_arrivals() {
        return;
    }
    // The oldest READ completes with the cause; the others are flushed.
    if let Some(read) = qp.reads.front_mut() {
        read.status.get_or_insert(Status::RetryExceeded);
    }
    fail(qp, pd);
}

/// A READ that was posted and has not been polled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) into: Local,
    pub(crate) from: Remote,
    /// Bytes copied so far.
    pub(crate) done: usize,
    /// How it ended, if that was before its poll: at a fence, or at the failure of a later request.
    pub(crate) status: Option<Status>,
}

/// A region of this port.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) pd: u32,
    pub(crate) rkey: Rkey,
    pub(crate) span: Span,
    /// `None` for memory that no peer can access.
    pub(crate) place: Option<RegionPlace>,
    /// Set for memory that other domains share.
    pub(crate) shared: Option<SharedMemory>,
    /// Peers may only READ it.
    pub(crate) read_only: bool,
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

/// A send that a poll completes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) wr_id: u64,
    pub(crate) qp: QpId,
    pub(crate) opcode: Opcode,
    pub(crate) signaled: bool,
    /// `None`: a READ, the oldest one of its queue pair's.
    pub(crate) status: Option<Status>,
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
