//! The port: posting, polling, and sleeping, for one thread. Verbs complete within the post.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use herdwick_fabric::{
    Armed, Completion, CqId, Port, PostError, Progress, QpId, QpState, RecvWr, RegionId, SendWr,
    Slab,
};
use herdwick_mem::Span;

use crate::{
    drops::{Drop, Drops},
    file::Board,
    outbound::Outbound,
    park::{Arming, settle},
    pd::Pd,
    qp::{Address, Cq, Qp, Region, local},
    recv, send,
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
}

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
            touched: Vec::with_capacity(rings + 1),
        }
    }

    /// Records that the receiver of `outbound` may have to be woken.
    #[inline]
    pub(crate) fn touch(&mut self, outbound: &mut Outbound) {
        if outbound.touched != self.batch {
            outbound.touched = self.batch;
            self.touched.push(outbound.pd);
        }
    }

    /// Records that the peer of `pd` may have to be woken; at most once in a batch.
    pub(crate) fn touch_pd(&mut self, pd: u32) {
        self.touched.push(pd);
    }

    fn begin(&mut self) {
        self.batch += 1;
        self.touched.clear();
    }

    /// Wakes those of the recorded peers that sleep, once each.
    fn ring(&self, pds: &mut Slab<Pd>) {
        if self.touched.is_empty() {
            return;
        }
        settle();
        for id in &self.touched {
            if let Some(pd) = pds.get_mut(*id)
                && pd.sleeper.wants_ring()
            {
                pd.wakeup.ring();
            }
        }
    }
}

impl ShmPort {
    fn show(&self) {
        if let Some(board) = &self.board {
            self.arming.show(&board.span, 0);
        }
        for (_, pd) in self.pds.iter() {
            pd.show(self.arming);
        }
    }

    fn has_completions(&self, cq: &Cq) -> bool {
        let arrived = |id: &QpId| self.qps.get(id.0).is_some_and(Qp::has_arrivals);
        !cq.sent.is_empty() || cq.receivers.iter().any(arrived)
    }
}

impl Port for ShmPort {
    fn post_send(&mut self, qp: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError> {
        self.doorbell.begin();
        send::post(self, qp, batch)?;
        self.doorbell.ring(&mut self.pds);
        Ok(())
    }

    fn post_recv(&mut self, qp: QpId, batch: &[RecvWr]) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qp.0).ok_or(PostError::UnknownQp)?;
        if qp.state == QpState::Error {
            return Err(PostError::State(qp.state));
        }
        if batch.len() > qp.recv_depth - qp.recvs.len() {
            return Err(PostError::Full);
        }
        for wr in batch {
            let into = (wr.into.region, wr.into.offset, wr.into.len);
            local(&self.regions, qp.pd, into).ok_or(PostError::Bounds)?;
        }
        qp.recvs.extend(batch);
        Ok(())
    }

    fn poll(&mut self, cq: CqId, out: &mut [Completion]) -> usize {
        recv::poll(self, cq, out)
    }

    fn progress(&mut self, _now: Duration) -> Progress {
        Progress::default()
    }

    fn arm(&mut self, cq: CqId) -> Armed {
        let Some(queue) = self.cqs.get(cq.0) else {
            return Armed::Never;
        };
        self.arming.arm();
        self.show();
        settle();
        if !self.has_completions(queue) {
            return Armed::Yes;
        }
        self.arming.disarm();
        self.show();
        Armed::Pending
    }

    fn disarm(&mut self, _cq: CqId) {
        if self.arming.is_armed() {
            self.arming.disarm();
            self.show();
        }
        let pds = &self.pds;
        self.wakeup_set
            .silence(|id| pds.get(id).map(|pd| &pd.wakeup));
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wakeup_set.as_fd())
    }

    fn region(&self, region: RegionId) -> Option<&Span> {
        self.regions.get(region.0).map(|region| &region.span)
    }

    fn drops(&self) -> Vec<(&'static str, u64)> {
        let mut drops = self.drops.clone();
        // The rest was counted on other threads.
        drops.add(Drop::NotGivenBack, self.kept.load(Ordering::Relaxed));
        drops.iter().collect()
    }
}
