//! One thread's objects of the fabric, and the peers that its posts have to wake.

use std::sync::{Arc, atomic::AtomicU64};

use herdwick_fabric::{QpId, Slab};

use crate::{
    drops::Drops,
    file::Board,
    outbound::Outbound,
    park::{Arming, settle},
    pd::Pd,
    qp::{Address, Cq, Qp, Region, lose_peer},
    wakeup::WakeupSet,
};

/// One thread's end of the shared-memory fabric.
#[derive(Debug)]
pub struct ShmPort {
    pub(crate) pds: Slab<Pd>,
    pub(crate) qps: Slab<Qp>,
    pub(crate) cqs: Slab<Cq>,
    pub(crate) regions: Slab<Region>,
    pub(crate) addresses: Slab<Address>,
    pub(crate) outbounds: Slab<Outbound>,
    pub(crate) drops: Drops,
    /// Domains whose memory another thread could not give back entirely.
    pub(crate) kept: Arc<AtomicU64>,
    pub(crate) arming: Arming,
    /// The page on which a host shows its clients whether it sleeps.
    pub(crate) board: Option<Board>,
    pub(crate) wakeup_set: WakeupSet,
    pub(crate) doorbell: Doorbell,
    /// Passes until the next check of the peers.
    pub(crate) passes_left: u32,
}

/// Passes between two checks of a client whether its hosts are still there: a system call for each of
/// its domains, which are few.
pub(crate) const CHECK_PASSES: u32 = 1024;

/// The domains that the current batch has put something into.
#[derive(Debug)]
pub(crate) struct Doorbell {
    batch: u64,
    /// A domain may be listed twice, but only once for each ring.
    touched: Vec<u32>,
}

impl Doorbell {
    /// Makes a doorbell for a port with `rings` rings to its peers.
    pub(crate) fn new(rings: usize) -> Self {
        Self {
            batch: 0,
            // One more for the domain of a connected queue pair, so that a post never allocates.
            touched: Vec::with_capacity(rings + 1),
        }
    }

    /// Records that the receiver of `outbound` may have to be woken.
    #[inline]
    pub(crate) fn touch(&mut self, outbound: &mut Outbound) {
        // One entry for each ring and batch keeps the list within its capacity.
        if outbound.touched != self.batch {
            outbound.touched = self.batch;
            self.touched.push(outbound.pd);
        }
    }

    /// Records that the peer of `pd` may have to be woken; at most once in a batch.
    pub(crate) fn touch_pd(&mut self, pd: u32) {
        self.touched.push(pd);
    }

    pub(crate) fn begin(&mut self) {
        self.batch += 1;
        self.touched.clear();
    }

    /// Wakes those of the recorded peers that sleep, once each.
    pub(crate) fn ring(&self, pds: &mut Slab<Pd>) {
        if self.touched.is_empty() {
            return;
        }
        // Once for the batch, however many peers it reached.
        // The full fence that pairs with the one in `arm`: the stores of the batch come before the
        // loads of the parked words.
        settle();
        for id in &self.touched {
            if let Some(pd) = pds.get_mut(*id)
                && pd.sleeper.wants_ring()
            {
                // A system call, so only for a peer that sleeps.
                pd.wakeup.ring();
            }
        }
    }
}

impl ShmPort {
    pub(crate) fn show(&self) {
        if let Some(board) = &self.board {
            self.arming.show(&board.span, 0);
        }
        for (_, pd) in self.pds.iter() {
            pd.show(self.arming);
        }
    }

    /// Fails the RC queue pairs of a client whose host is gone. Its memory is still mapped, and would
    /// still be READ; on a wire, the retries would be exceeded.
    #[cold]
    pub(crate) fn check_peers(&mut self) {
        self.passes_left = CHECK_PASSES;
        let Self { pds, qps, .. } = self;
        // A host is never listed here: the owner of its port notices that a client goes.
        for (id, pd) in pds.iter().filter(|(_, pd)| pd.wakeup.is_closed()) {
            for (_, qp) in qps.iter_mut().filter(|(_, qp)| qp.pd == id) {
                lose_peer(qp, pd);
            }
        }
    }

    pub(crate) fn has_completions(&self, cq: &Cq) -> bool {
        let arrived = |id: &QpId| self.qps.get(id.0).is_some_and(Qp::has_arrivals);
        !cq.sent.is_empty() || cq.receivers.iter().any(arrived)
    }
}
