//! READs: posted as prefetches, and copied by the polls that complete them.
//!
//! A READ checks the peer's region entry and queue pair after its copy, too: one that succeeds holds
//! what the region held while its rkey was valid.

use herdwick_fabric::{Local, QpState, Remote, Slab, Status};
use herdwick_mem::{LINE, WORD};

use crate::{
    entry::AccessRight,
    pd::Pd,
    qp::{Qp, Read, Region, fail, local},
};

/// Lines of a READ that its post prefetches; the CPU's own prefetcher finds those that follow.
const PREFETCH_LINES: usize = 8;
/// Bytes that one poll copies; what remains is for the next one.
pub(crate) const POLL_BYTES: usize = 256 << 10;

/// Queues a READ, and prefetches what it will copy.
#[inline]
pub(crate) fn post(qp: &mut Qp, pd: &Pd, into: Local, from: Remote) {
    let at = (from.addr, into.len);
    let reached = qp.reach(pd, from.rkey, at, AccessRight::READ);
    // `offset + len - 1` below would underflow.
    if let Some((span, offset)) = reached.filter(|_| into.len > 0) {
        let (first, last) = (offset / LINE, (offset + into.len - 1) / LINE);
        for line in (first..=last).take(PREFETCH_LINES) {
            span.prefetch(line * (LINE / WORD));
        }
    }
    // Also if the region was not reached: the poll looks again, and reports the status then.
    qp.reads.push_back(Read {
        into,
        from,
        done: 0,
        status: None,
    });
}

/// Advances the oldest READ by up to `budget` bytes, which are deducted. Returns how it ended;
/// `None` if more remains.
#[inline]
pub(crate) fn poll(
    qp: &mut Qp,
    pd: &Pd,
    regions: &Slab<Region>,
    budget: &mut usize,
) -> Option<Status> {
    let mut read = *qp.reads.front()?;
    let status = match read.status {
        None if *budget == 0 => return None,
        None => read.advance(qp, pd, regions, budget),
        ended => ended,
    };
    match status {
        None => qp.reads[0] = read,
        Some(_) => drop(qp.reads.pop_front()),
    }
    status
}

/// Executes every posted READ now, before a request that must not overtake it.
#[cold]
pub(crate) fn finish(qp: &mut Qp, pd: &Pd, regions: &Slab<Region>) {
    for index in 0..qp.reads.len() {
        let mut read = qp.reads[index];
        if read.status.is_none() {
            // Without a budget: the request behind it is executed by this same post.
            read.status = read.advance(qp, pd, regions, &mut usize::MAX.clone());
            qp.reads[index] = read;
        }
    }
}

impl Read {
    fn advance(
        &mut self,
        qp: &mut Qp,
        pd: &Pd,
        regions: &Slab<Region>,
        budget: &mut usize,
    ) -> Option<Status> {
        if qp.state == QpState::Error {
            return Some(Status::Flushed);
        }
        // A long READ takes several polls; what it copied stays counted in `done`.
        let step = (self.into.len - self.done).min(*budget);
        // One of no bytes takes its share, too, so that a poll ends.
        *budget -= step.max(1);
        let status = self.copy(qp, pd, regions, step);
        if status != Status::Success {
            fail(qp, pd);
            return Some(status);
        }
        self.done += step;
        (self.done == self.into.len).then_some(status)
    }

    /// Copies the next `step` bytes.
    #[inline]
    fn copy(&self, qp: &mut Qp, pd: &Pd, regions: &Slab<Region>, step: usize) -> Status {
        let Some(peer) = qp.peer else {
            return Status::Flushed;
        };
        let into = (self.into.region, self.into.offset, self.into.len);
        let Some(to) = local(regions, qp.pd, into) else {
            return Status::LocalError;
        };
        // The whole range is checked at each step, for the entry may have changed since the last
        // one.
        let (key, at) = (self.from.rkey, (self.from.addr, self.into.len));
        let Some((from, offset)) = qp.reach(pd, key, at, AccessRight::READ) else {
            return Status::RemoteAccess;
        };
        let to_at = self.into.offset + self.done;
        to.copy_from(to_at, from, offset + self.done, step);
        // Checked after the copy: the region may have been closed, and its memory used for something
        // else, meanwhile.
        if !qp.is_open(pd, key) {
            Status::RemoteAccess
        } else if !peer.listens(pd) {
            Status::RetryExceeded
        } else {
            Status::Success
        }
    }
}
