//! The data verbs of a port: posting, polling, and sleeping, for one thread. Verbs complete within
//! the post.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::Ordering,
    time::Duration,
};

use herdwick_fabric::{
    Armed, Completion, CqId, Local, Port, PostError, Progress, QpId, QpState, RecvWr, RegionId,
    SendWr,
};
use herdwick_mem::Span;

use crate::{drops::DropReason, park::settle, port::ShmPort, qp::local, recv, send};

impl Port for ShmPort {
    fn post_send(&mut self, qp: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError> {
        // A new number, so that each ring counts as untouched.
        self.doorbell.begin();
        send::post(self, qp, batch)?;
        // After all stores of the batch: a peer that wakes finds everything.
        self.doorbell.ring(&mut self.pds);
        Ok(())
    }

    fn post_recv(&mut self, qp: QpId, batch: &[RecvWr]) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qp.0).ok_or(PostError::UnknownQp)?;
        if qp.state == QpState::Error {
            return Err(PostError::State(qp.state));
        }
        // No overflow: `recvs` never exceeds `recv_depth`.
        if batch.len() > qp.recv_depth - qp.recvs.len() {
            return Err(PostError::Full);
        }
        let (mut known, mut bytes) = (None, 0);
        for wr in batch {
            let Local {
                region,
                offset,
                len,
            } = wr.into;
            // Looked up once for a run of buffers in one region.
            if known != Some(region) {
                let span = local(&self.regions, qp.pd, (region, 0, 0));
                bytes = span.ok_or(PostError::Bounds)?.len();
                known = Some(region);
            }
            let inside = offset.checked_add(len).is_some_and(|end| end <= bytes);
            inside.then_some(()).ok_or(PostError::Bounds)?;
        }
        // Within the capacity that was reserved when the queue pair was made.
        qp.recvs.extend(batch);
        Ok(())
    }

    fn poll(&mut self, cq: CqId, out: &mut [Completion]) -> usize {
        recv::poll(self, cq, out)
    }

    fn progress(&mut self, _now: Duration) -> Progress {
        // Every call of `check_peers` sets it again, so it is never 0 here.
        self.passes_left -= 1;
        if self.passes_left == 0 {
            self.check_peers();
        }
        Progress::default()
    }

    fn arm(&mut self, cq: CqId) -> Armed {
        let Some(queue) = self.cqs.get(cq.0) else {
            return Armed::Never;
        };
        self.arming.arm();
        self.show();
        settle();
        // The last check of the sleeper's half of the protocol: what a peer stored before its fence
        // is seen here.
        if !self.has_completions(queue) {
            return Armed::Yes;
        }
        self.arming.disarm();
        self.show();
        Armed::Pending
    }

    fn disarm(&mut self, _cq: CqId) {
        // A port that did not sleep has nothing to show: peers read this word, and a store would
        // cost them a miss.
        if self.arming.is_armed() {
            self.arming.disarm();
            self.show();
        }
        let pds = &self.pds;
        let any_closed = self
            .wakeup_set
            .silence(|id| pds.get(id).map(|pd| &pd.wakeup));
        if any_closed {
            self.check_peers();
        }
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
        drops.add(DropReason::Unreleased, self.kept.load(Ordering::Relaxed));
        drops.iter().collect()
    }
}
