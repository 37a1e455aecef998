//! The target of verbs: drives its port, takes messages, and posts RECVs again. A target that neither
//! receives nor moves packets sleeps, since one-sided verbs then need no CPU there.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use herdwick_fabric::{Completion, CqId, Device, Opcode, Port, PostError, QpId, RecvWr, Status};

use super::arrivals::Arrivals;

/// A queue pair of a target.
pub(super) struct ResponderFlow {
    qp: QpId,
    /// Its RECVs, in the order in which they are posted, again and again.
    recvs: Vec<RecvWr>,
    /// The RECV to post next.
    next: usize,
    /// RECVs that a poll has consumed.
    consumed: usize,
    arrivals: Arc<Arrivals>,
}

impl ResponderFlow {
    pub(super) fn new(qp: QpId, recvs: Vec<RecvWr>, arrivals: Arc<Arrivals>) -> Self {
        Self {
            qp,
            recvs,
            next: 0,
            consumed: 0,
            arrivals,
        }
    }

    pub(super) fn arrivals(&self) -> Arc<Arrivals> {
        Arc::clone(&self.arrivals)
    }

    /// Posts the consumed RECVs again, then counts their messages for the issuer.
    #[inline]
    fn repost<P: Port>(&mut self, port: &mut P) -> Result<(), PostError> {
        let mut left = self.consumed;
        while left > 0 {
            let batch = left.min(self.recvs.len() - self.next);
            port.post_recv(self.qp, &self.recvs[self.next..][..batch])?;
            self.next = (self.next + batch) % self.recvs.len();
            left -= batch;
        }
        let received = &self.arrivals.received.0;
        // Release: the RECVs are posted before the issuer, which acquires the count, sends to them.
        received.fetch_add(self.consumed as u64, Ordering::Release);
        self.consumed = 0;
        Ok(())
    }
}

/// Completions that one poll takes.
const POLL: usize = 64;
/// Passes after which a port that has moved nothing is taken to need no CPU.
const TRIAL_PASSES: u64 = 100_000;
/// How long a target sleeps that needs no CPU.
const NAP: Duration = Duration::from_millis(1);

/// One thread of the targets.
pub(super) struct TargetThread<D: Device> {
    // The device stays open as long as its port is used.
    _device: D,
    port: D::Port,
    cq: CqId,
    flows: Vec<ResponderFlow>,
    out: Vec<Completion>,
    passes: u64,
    moved: bool,
    /// Completions that were no success, of all targets of a run.
    failures: Arc<AtomicU64>,
}

impl<D: Device> TargetThread<D> {
    pub(super) fn new(
        (device, port, cq): (D, D::Port, CqId),
        mut flows: Vec<ResponderFlow>,
    ) -> Self {
        for (index, flow) in flows.iter_mut().enumerate() {
            flow.recvs
                .iter_mut()
                .for_each(|recv| recv.wr_id = index as u64);
        }
        Self {
            _device: device,
            port,
            cq,
            flows,
            out: vec![Completion::BLANK; POLL],
            passes: 0,
            moved: false,
            failures: Arc::default(),
        }
    }

    /// Posts the first RECVs. Failures are added to `failures`.
    ///
    /// # Errors
    /// [`PostError`].
    pub(super) fn start(&mut self, failures: Arc<AtomicU64>) -> Result<(), PostError> {
        self.failures = failures;
        for flow in self.flows.iter().filter(|flow| !flow.recvs.is_empty()) {
            self.port.post_recv(flow.qp, &flow.recvs)?;
        }
        Ok(())
    }

    /// Runs one pass; sleeps before it if this target needs no CPU.
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing arrives that it could wait for"
    )]
    pub(super) fn pass(&mut self, now: Duration) {
        let receives = self.flows.iter().any(|flow| !flow.recvs.is_empty());
        self.passes += 1;
        if !receives && !self.moved && self.passes > TRIAL_PASSES {
            std::thread::sleep(NAP);
        }
        self.moved |= self.port.progress(now).moved;
        if receives && self.receive().is_err() {
            // Relaxed, here and below: it is read after the thread has been joined.
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        self.port.flush(now);
    }

    fn receive(&mut self) -> Result<(), PostError> {
        let count = self.port.poll(self.cq, &mut self.out);
        for completion in &self.out[..count] {
            let is_message = matches!(completion.opcode, Opcode::Recv | Opcode::RecvWithImm);
            // An issuer that has ended flushes what is left.
            if completion.status == Status::Flushed {
                continue;
            }
            if completion.status != Status::Success || !is_message {
                self.failures.fetch_add(1, Ordering::Relaxed);
            } else if let Some(flow) = self.flows.get_mut(completion.wr_id as usize) {
                flow.consumed += 1;
            }
        }
        for flow in self.flows.iter_mut().filter(|flow| flow.consumed > 0) {
            flow.repost(&mut self.port)?;
        }
        Ok(())
    }
}
