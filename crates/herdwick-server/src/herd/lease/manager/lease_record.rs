//! The lease manager's record of one socket, from its connection until every worker has revoked its
//! lease.

use std::{os::fd::OwnedFd, time::Duration};

use herdwick_fabric::PdTicket;
use herdwick_herd::{
    handshake::ServerHandshake,
    hello::{Grant, Part, Parts, WorkerGrant},
};
use herdwick_providers::Fabric;

use super::super::{CountedConnection, LeaseKind, Terms, quota::Holder};
use crate::net::stream::Stream;

pub(super) struct LeaseRecord {
    /// `None` once the lease ends; the record stays until every worker has revoked.
    pub(super) stream: Option<Stream>,
    /// Released with the stream.
    slot: Option<CountedConnection>,
    /// The holder that the lease counts against.
    pub(super) holder: Holder,
    pub(super) shake: ServerHandshake,
    /// Set by the claim.
    pub(super) terms: Option<Terms>,
    /// The fabric of the lease, set by the claim.
    pub(super) fabric: Fabric,
    /// Bytes that it counts against the limit on all leases.
    pub(super) bytes: usize,
    /// Of a client that knows the server by its registration, the orders of the fence at which it was admitted.
    pub(super) member: Option<u64>,
    /// Whether it was granted by parts, and is to be accepted so.
    pub(super) by_parts: bool,
    /// A grant was sent, and is not known to have been read.
    pub(super) may_be_unread: bool,
    /// Whether every worker has connected it.
    pub(super) live: bool,
    /// Workers that have not connected it yet.
    pub(super) connecting: usize,
    /// Workers that have not revoked it yet.
    pub(super) revoking: usize,
    grants: Vec<Option<(WorkerGrant, Vec<OwnedFd>)>>,
}

/// All workers' grants, ready to be sent.
pub(super) struct Grants {
    pub(super) frame: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

impl LeaseRecord {
    pub(super) fn new(
        stream: Stream,
        slot: Option<CountedConnection>,
        holder: Holder,
        now: Duration,
    ) -> Self {
        Self {
            stream: Some(stream),
            slot,
            holder,
            // Of no meaning before the claim.
            fabric: Fabric::ALL[0],
            shake: ServerHandshake::new(now),
            terms: None,
            bytes: 0,
            member: None,
            by_parts: false,
            may_be_unread: false,
            live: false,
            connecting: 0,
            revoking: 0,
            grants: Vec::new(),
        }
    }

    /// Returns whether it has claimed nothing yet.
    pub(super) fn is_silent(&self) -> bool {
        self.terms.is_none()
    }

    /// Removes the stream, for the caller to close.
    pub(super) fn hang_up(&mut self) -> Option<Stream> {
        self.slot = None;
        self.stream.take()
    }

    pub(super) fn claim(&mut self, kind: LeaseKind, terms: Terms, bytes: usize, workers: usize) {
        self.fabric = kind.fabric;
        self.member = kind.member;
        self.terms = Some(terms);
        self.bytes = bytes;
        self.grants = (0..workers).map(|_| None).collect();
    }

    /// Records the grant of an engine other than HERD; returns the frame that carries it.
    pub(super) fn grant_parts(&mut self, tickets: Vec<PdTicket>) -> Grants {
        self.by_parts = true;
        let (mut parts, mut fds) = (Vec::new(), Vec::new());
        for ticket in tickets {
            parts.push(Part {
                blob: ticket.blob,
                fds: ticket.fds.len() as u8,
            });
            fds.extend(ticket.fds);
        }
        Grants {
            frame: Parts(parts).to_frame(),
            fds,
        }
    }

    /// Records one worker's grant. With the last one, returns the frame that carries all of them.
    pub(super) fn grant(
        &mut self,
        worker: usize,
        grant: (WorkerGrant, Vec<OwnedFd>),
    ) -> Option<Grants> {
        *self.grants.get_mut(worker)? = Some(grant);
        let terms = self.terms?;
        // One frame has all grants: the client learns of none before all are there.
        if self.grants.iter().any(Option::is_none) {
            return None;
        }
        let mut grants: Vec<_> = std::mem::take(&mut self.grants)
            .into_iter()
            .flatten()
            .collect();
        if grants.iter().any(|(grant, _)| grant.store.is_none()) {
            // The stores of all workers, or of none.
            for (grant, fds) in &mut grants {
                grant.store = None;
                // Descriptors of the store follow those of the grant.
                fds.truncate(grant.fds.into());
            }
        }
        let (workers, fds): (Vec<_>, Vec<_>) = grants.into_iter().unzip();
        let grant = Grant {
            epoch: terms.epoch,
            window: terms.window,
            reply_bytes_max: terms.reply_bytes_max,
            workers,
        };
        Some(Grants {
            frame: grant.to_frame(),
            fds: fds.into_iter().flatten().collect(),
        })
    }
}
