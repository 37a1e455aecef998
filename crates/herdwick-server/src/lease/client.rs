//! What the lease manager remembers of one socket.

use std::{os::fd::OwnedFd, time::Duration};

use herdwick_herd::hello::{Grant, WorkerGrant};

use super::{ConnectionSlot, FabricId, Terms, handshake::Handshake, shares::Owner};
use crate::tcp::Stream;

pub(super) struct Client {
    /// Gone once the lease ends; the record stays until every worker has let go.
    pub(super) stream: Option<Stream>,
    /// Goes with the stream.
    slot: Option<ConnectionSlot>,
    /// Whose share it counts against.
    pub(super) owner: Owner,
    pub(super) shake: Handshake,
    /// Set by the claim.
    pub(super) terms: Option<Terms>,
    /// Whose workers serve it, from the claim on.
    pub(super) fabric: FabricId,
    /// What it counts against the bound on all leases.
    pub(super) bytes: usize,
    /// A grant was sent, and nothing has shown yet that it was read.
    pub(super) may_be_unread: bool,
    /// Whether every worker polls for it.
    pub(super) live: bool,
    /// Workers that have yet to connect it.
    pub(super) connecting: usize,
    /// Workers that have yet to let go of it.
    pub(super) revoking: usize,
    grants: Vec<Option<(WorkerGrant, Vec<OwnedFd>)>>,
}

/// All workers' grants, ready to send.
pub(super) struct Grants {
    pub(super) frame: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

impl Client {
    pub(super) fn new(
        stream: Stream,
        slot: Option<ConnectionSlot>,
        owner: Owner,
        now: Duration,
    ) -> Self {
        Self {
            stream: Some(stream),
            slot,
            owner,
            fabric: FabricId(0),
            shake: Handshake::new(now),
            terms: None,
            bytes: 0,
            may_be_unread: false,
            live: false,
            connecting: 0,
            revoking: 0,
            grants: Vec::new(),
        }
    }

    /// Whether it has claimed nothing yet.
    pub(super) fn is_silent(&self) -> bool {
        self.terms.is_none()
    }

    /// Takes the stream away for good.
    pub(super) fn hang_up(&mut self) -> Option<Stream> {
        self.slot = None;
        self.stream.take()
    }

    pub(super) fn claim(&mut self, fabric: FabricId, terms: Terms, bytes: usize, workers: usize) {
        self.fabric = fabric;
        self.terms = Some(terms);
        self.bytes = bytes;
        self.grants = (0..workers).map(|_| None).collect();
    }

    /// Takes one worker's grant; with the last one, gives the frame that carries them all.
    pub(super) fn grant(
        &mut self,
        worker: usize,
        grant: (WorkerGrant, Vec<OwnedFd>),
    ) -> Option<Grants> {
        *self.grants.get_mut(worker)? = Some(grant);
        let terms = self.terms?;
        if self.grants.iter().any(Option::is_none) {
            return None;
        }
        let (workers, fds): (Vec<_>, Vec<_>) = std::mem::take(&mut self.grants)
            .into_iter()
            .flatten()
            .unzip();
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
