//! The port of a session's fabric, whichever it is.

#[cfg(test)]
use herdwick_conformance::seeded::SeededPort;
use std::{os::fd::BorrowedFd, time::Duration};

use herdwick_fabric::{
    Armed, Completion, CqId, Port, PostError, Progress, QpId, RecvWr, RegionId, SendWr,
};
use herdwick_mem::Span;
use herdwick_roce_udp::RocePort;
use herdwick_shm::ShmPort;
use herdwick_verbs::VerbsPort;

/// The port of a session's fabric. Each call is one branch.
#[derive(Debug)]
pub(crate) enum AnyPort {
    Shm(Box<ShmPort>),
    Roce(Box<RocePort>),
    Verbs(Box<VerbsPort>),
    /// The fabric of the schedules in tests.
    #[cfg(test)]
    Seeded(Box<SeededPort>),
}

macro_rules! either {
    ($self:ident, $port:ident => $call:expr) => {
        match $self {
            AnyPort::Shm($port) => $call,
            AnyPort::Roce($port) => $call,
            AnyPort::Verbs($port) => $call,
            #[cfg(test)]
            AnyPort::Seeded($port) => $call,
        }
    };
}

impl Port for AnyPort {
    #[inline]
    fn post_send(&mut self, qp: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError> {
        either!(self, port => port.post_send(qp, batch))
    }

    #[inline]
    fn post_recv(&mut self, qp: QpId, batch: &[RecvWr]) -> Result<(), PostError> {
        either!(self, port => port.post_recv(qp, batch))
    }

    #[inline]
    fn poll(&mut self, cq: CqId, out: &mut [Completion]) -> usize {
        either!(self, port => port.poll(cq, out))
    }

    #[inline]
    fn progress(&mut self, now: Duration) -> Progress {
        either!(self, port => port.progress(now))
    }

    #[inline]
    fn flush(&mut self, now: Duration) {
        either!(self, port => port.flush(now));
    }

    fn arm(&mut self, cq: CqId) -> Armed {
        // Virtual time does not pass while a test sleeps.
        #[cfg(test)]
        if matches!(self, Self::Seeded(_)) {
            return Armed::Never;
        }
        either!(self, port => port.arm(cq))
    }

    fn disarm(&mut self, cq: CqId) {
        either!(self, port => port.disarm(cq));
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        either!(self, port => port.wait_fd())
    }

    fn region(&self, region: RegionId) -> Option<&Span> {
        either!(self, port => port.region(region))
    }

    fn drops(&self) -> Vec<(&'static str, u64)> {
        either!(self, port => port.drops())
    }

    fn connection_counts(&self) -> Vec<(&'static str, u64)> {
        either!(self, port => port.connection_counts())
    }
}
