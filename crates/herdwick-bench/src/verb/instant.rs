//! What the benchmark itself takes for a verb: the issuer on a port whose verbs complete at once.

use std::{collections::VecDeque, os::fd::BorrowedFd, sync::Arc, time::Duration};

use herdwick_fabric::{
    Armed, Completion, CqId, Port, PostError, Progress, QpId, RecvWr, RegionId, Remote, Rkey,
    SendWr, Status,
};
use herdwick_mem::Span;

use super::{
    issue::{Flow, Issuer, Shape},
    plan::Point,
};
use crate::{
    cost,
    counters::RunCounters,
    pace::Pace,
    target::{Load, Target},
    workload::Trace,
};

/// A port that completes each verb when it is posted, and moves nothing.
#[derive(Default)]
struct InstantPort {
    signaled: VecDeque<u64>,
}

impl Port for InstantPort {
    fn post_send(&mut self, _: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError> {
        let signaled = batch.iter().filter(|wr| wr.signaled);
        self.signaled.extend(signaled.map(|wr| wr.wr_id));
        Ok(())
    }

    fn post_recv(&mut self, _: QpId, _: &[RecvWr]) -> Result<(), PostError> {
        Ok(())
    }

    fn poll(&mut self, _: CqId, out: &mut [Completion]) -> usize {
        let count = self.signaled.len().min(out.len());
        for (out, wr_id) in out.iter_mut().zip(self.signaled.drain(..count)) {
            out.wr_id = wr_id;
            out.status = Status::Success;
        }
        count
    }

    fn progress(&mut self, _: Duration) -> Progress {
        Progress::default()
    }

    fn arm(&mut self, _: CqId) -> Armed {
        Armed::Never
    }

    fn disarm(&mut self, _: CqId) {}

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn region(&self, _: RegionId) -> Option<&Span> {
        None
    }
}

/// Nanoseconds of one block.
const BLOCK_NS: u64 = 500_000;

/// Returns the nanoseconds that the issuer takes for a verb of `point`.
pub(super) fn issue_ns(point: Point) -> f64 {
    let base = Remote {
        rkey: Rkey(0),
        addr: 0,
    };
    let flow = |_| Flow::new(QpId(0), None, base, RegionId(0), Arc::default(), 0);
    let flows = (0..point.queue_pairs).map(flow).collect();
    let shape = Shape {
        point,
        per_message: 0,
        may_lose: false,
        seed: 1,
    };
    let mut issuer = Issuer::new((), InstantPort::default(), CqId(0), shape, flows);
    let (mut trace, mut pace) = (Trace::fill(0..1), Pace::closed());
    let mut counters = RunCounters::new();
    cost::ns_per_op(|clock| {
        counters.clear();
        let mut load = Load {
            trace: &mut trace,
            pace: &mut pace,
            counters: &mut counters,
            version: 0,
        };
        let start_ns = clock.ns();
        let driven = issuer.drive(&mut load, start_ns + BLOCK_NS, &mut || clock.ns());
        debug_assert!(driven.is_ok(), "this port refuses nothing");
        (clock.ns() - start_ns, counters.hits)
    })
}
