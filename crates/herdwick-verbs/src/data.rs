//! The data verbs of a port: posting, polling and wakeups.

use std::{
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use herdwick_fabric::{
    Armed, Completion, CqId, Opcode, Port, PostError, Progress, QpId, QpState, RecvWr, RegionId,
    SendWr, Status,
};
use herdwick_mem::Span;

use crate::{
    complete::{self, Check},
    events,
    faults::Fault,
    port::{CHECK_EVERY, Health, VerbsPort},
    send::{self, Post},
    sys,
};

impl VerbsPort {
    /// Processes the device's asynchronous events now; otherwise that is done every so often.
    pub fn check(&mut self) {
        events::take(self);
    }

    /// Handles a post of which the driver refused a part: fails the queue pair, and completes the
    /// refused requests as flushed.
    #[cold]
    fn refused(&mut self, id: QpId, rest: impl Iterator<Item = (u64, Opcode)>, cq: CqId) {
        self.faults.count(Fault::Post);
        if let Some(qp) = self.qps.get_mut(id.0) {
            // Before anything else, so that no later post overtakes the refused ones.
            qp.state = QpState::Error;
            let error = sys::QpAttr {
                qp_state: sys::IBV_QPS_ERR,
                ..sys::QpAttr::default()
            };
            // Ignored: a lost device refuses this too.
            let _ = qp.raw.modify(error, sys::IBV_QP_STATE);
        }
        if let Some(cq) = self.cqs.get_mut(cq.0) {
            cq.stash.extend(rest.map(|(wr_id, opcode)| Completion {
                wr_id,
                opcode,
                qp: id,
                status: Status::Flushed,
                ..Completion::BLANK
            }));
        }
    }

    fn settle(&mut self) {
        // The events of earlier armings: one that is left would wake the port at once.
        self.channel.drain();
        events::take(self);
    }
}

impl Port for VerbsPort {
    #[inline]
    fn post_send(&mut self, id: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError> {
        let qp = self.qps.get_mut(id.0).ok_or(PostError::UnknownQp)?;
        if self.health != Health::Well {
            // Requests posted to a port that is down would be lost.
            return Err(PostError::State(QpState::Error));
        }
        let post = Post {
            regions: &self.regions,
            addresses: &self.addresses,
            bounds: self.state.bounds,
        };
        let taken = send::post(qp, &mut self.sends, &post, batch)?;
        // The driver took a part: those are on their way, and only the rest is refused.
        if taken < batch.len() {
            let (cq, rest) = (qp.send_cq, batch[taken..].iter());
            self.refused(id, rest.map(|wr| (wr.wr_id, wr.op.opcode())), cq);
        }
        Ok(())
    }

    #[inline]
    fn post_recv(&mut self, id: QpId, batch: &[RecvWr]) -> Result<(), PostError> {
        let qp = self.qps.get_mut(id.0).ok_or(PostError::UnknownQp)?;
        let taken = send::post_recv(qp, &mut self.recvs, &self.regions, batch)?;
        if taken < batch.len() {
            let (cq, rest) = (qp.recv_cq, batch[taken..].iter());
            self.refused(id, rest.map(|wr| (wr.wr_id, Opcode::Recv)), cq);
        }
        Ok(())
    }

    #[inline]
    fn poll(&mut self, id: CqId, out: &mut [Completion]) -> usize {
        let Some(cq) = self.cqs.get_mut(id.0) else {
            return 0;
        };
        match complete::poll(cq, &mut self.qps, &mut self.faults, &mut self.scratch, out) {
            Check::Found(count) => count,
            Check::Failed => {
                events::fail_queue(self, id.0);
                0
            }
        }
    }

    #[inline]
    fn progress(&mut self, _now: Duration) -> Progress {
        // Counts down from a constant, so it is never 0 here.
        self.until_check -= 1;
        if self.until_check == 0 {
            self.until_check = CHECK_EVERY;
            events::take(self);
        }
        Progress::default()
    }

    fn arm(&mut self, id: CqId) -> Armed {
        self.settle();
        let Some(cq) = self.cqs.get_mut(id.0) else {
            return Armed::Never;
        };
        // Before the poll below: a completion that arrives between them is either found or
        // announced.
        if cq.raw.announce_next().is_err() {
            return Armed::Never;
        }
        let (qps, faults) = (&mut self.qps, &mut self.faults);
        // Completions that arrived before the request cause no event, so they are polled here.
        if complete::put_aside(cq, qps, faults, &mut self.scratch, 1) {
            return Armed::Pending;
        }
        cq.armed = true;
        // Last: until here nothing but asynchronous events wakes the port.
        if self.wakeup.hear(true).is_err() {
            return Armed::Never;
        }
        Armed::Yes
    }

    fn disarm(&mut self, id: CqId) {
        if let Some(cq) = self.cqs.get_mut(id.0) {
            cq.armed = false;
        }
        if !self.cqs.iter().any(|(_, cq)| cq.armed) {
            // An event requested of a queue cannot be cancelled, so its descriptor is ignored.
            let _ = self.wakeup.hear(false);
        }
        self.settle();
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wakeup.epoll.as_fd())
    }

    fn region(&self, region: RegionId) -> Option<&Span> {
        self.regions.get(region.0).map(|region| &region.span)
    }

    fn drops(&self) -> Vec<(&'static str, u64)> {
        self.faults.iter().collect()
    }
}
