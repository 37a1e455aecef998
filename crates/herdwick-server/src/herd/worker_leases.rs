//! The leases that one worker holds resources for: protection domain, memory and queue pairs.

use std::{collections::HashMap, os::fd::OwnedFd};

use herdwick_fabric::{ConnectError, ControlError, Device, PdId, PdTicket, Released, SharedMemory};
use herdwick_herd::{
    Admitted, LeaseResources, RequestPath, ServerEnd, SetupError,
    hello::{Refusal, WorkerAccept, WorkerGrant},
    wire::{Epoch, Window},
};

use crate::{
    herd::lease::{LeaseId, Terms},
    runtime::time::monotonic,
};

/// The leases that one worker holds resources for.
#[derive(Default)]
pub(super) struct HeldLeases {
    leases: HashMap<LeaseId, HeldLease>,
}

struct HeldLease {
    terms: Terms,
    pd: PdId,
    resources: LeaseResources,
    /// Set when the client's queue pairs are connected.
    admitted: Option<Admitted>,
}

/// Why a lease was not granted or not connected.
#[derive(Debug, thiserror::Error)]
pub(super) enum GrantError {
    #[error("no such lease, or terms that no layout has")]
    Terms,
    #[error("the client's queue pairs are not where it came from")]
    Elsewhere,
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Setup(#[from] SetupError),
}

impl GrantError {
    /// Returns the refusal for the client: its own fault, or the server's.
    pub(super) fn refusal(&self) -> Refusal {
        match self {
            // An endpoint of another transport counts as malformed.
            Self::Elsewhere
            | Self::Setup(SetupError::Connect(
                ConnectError::Endpoint(_) | ConnectError::Transport(_),
            )) => Refusal::Malformed,
            Self::Terms | Self::Control(_) | Self::Setup(_) => Refusal::Memory,
        }
    }
}

impl HeldLeases {
    pub(super) fn ids(&self) -> impl Iterator<Item = LeaseId> {
        self.leases.keys().copied()
    }

    /// Returns the connected leases from which no more requests can arrive.
    pub(super) fn failed<D: Device>(
        &self,
        device: &D,
        server: &ServerEnd<D::Port>,
    ) -> impl Iterator<Item = LeaseId> {
        // A queue pair that is not connected yet hears nothing, which is no failure.
        let serves = |lease: &HeldLease| lease.admitted.is_some();
        let failed =
            move |lease: &HeldLease| serves(lease) && !server.hears(device, &lease.resources);
        let leases = self.leases.iter();
        leases
            .filter(move |(_, lease)| failed(lease))
            .map(|(id, _)| *id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Creates a domain, memory and a queue pair for a lease, and registers `store` in the domain. Returns
    /// the grant and its descriptors.
    pub(super) fn grant<D: Device>(
        &mut self,
        device: &D,
        server: &mut ServerEnd<D::Port>,
        (id, terms): (LeaseId, Terms),
        store: Option<&SharedMemory>,
    ) -> Result<(WorkerGrant, Vec<OwnedFd>), GrantError> {
        let window = Window::new(terms.window.into()).ok_or(GrantError::Terms)?;
        let pd = device.create_pd_for(&mut server.port, &terms.path.pd_room(window))?;
        match allocate(device, server, pd, (terms.path, window)) {
            Ok((mut resources, mut grant, mut fds)) => {
                // Without its store a lease works all the same.
                let to = (pd, &mut resources);
                let shared = store.map(|store| server.share(device, to, store, monotonic()));
                if let Some(Ok((store, more))) = shared {
                    grant.store = Some(store);
                    fds.extend(more);
                }
                let lease = HeldLease {
                    terms,
                    pd,
                    resources,
                    admitted: None,
                };
                self.leases.insert(id, lease);
                Ok((grant, fds))
            }
            Err(error) => {
                // Destroying the domain frees everything allocated in it so far.
                device.destroy_pd(&mut server.port, pd)?;
                Err(error)
            }
        }
    }

    /// Connects a lease with its client's queue pairs and starts polling it.
    pub(super) fn connect<D: Device>(
        &mut self,
        device: &D,
        server: &mut ServerEnd<D::Port>,
        id: LeaseId,
        peer: &WorkerAccept,
    ) -> Result<(), GrantError> {
        let lease = self.leases.get_mut(&id).ok_or(GrantError::Terms)?;
        let epoch = Epoch::new(lease.terms.epoch).ok_or(GrantError::Terms)?;
        let ends = [&peer.requests, &peer.replies];
        // The endpoints are the client's word: without this, replies could be sent to another host.
        if !device.is_at(&server.port, lease.pd, &ends, lease.terms.host) {
            return Err(GrantError::Elsewhere);
        }
        let reply_bytes_max = lease.terms.reply_bytes_max as usize;
        let admitted = server.admit(device, &lease.resources, peer, epoch, reply_bytes_max)?;
        lease.admitted = Some(admitted);
        Ok(())
    }

    /// Stops serving a lease and returns its memory to the operating system. Calls `done`
    /// afterwards, with an error if the device keeps some of it. Nothing else of the lease remains.
    pub(super) fn revoke<D: Device>(
        &mut self,
        device: &D,
        server: &mut ServerEnd<D::Port>,
        id: LeaseId,
        done: Released,
    ) {
        // A grant that failed holds nothing.
        let Some(lease) = self.leases.remove(&id) else {
            return done(Ok(()));
        };
        let dismissed = lease
            .admitted
            .map_or(Ok(()), |admitted| server.dismiss(device, admitted));
        // In this order: no queue pair reaches the memory when it is released.
        let done = Box::new(|released| done(dismissed.and(released)));
        device.release_pd(&mut server.port, lease.pd, done);
    }
}

fn allocate<D: Device>(
    device: &D,
    server: &mut ServerEnd<D::Port>,
    pd: PdId,
    (path, window): (RequestPath, Window),
) -> Result<(LeaseResources, WorkerGrant, Vec<OwnedFd>), GrantError> {
    let resources = server.allocate(device, pd, path, window)?;
    let PdTicket { blob, fds } = device.export_pd(&mut server.port, pd)?;
    let grant = server.grant(device, &resources, blob, fds.len() as u8)?;
    Ok((resources, grant, fds))
}
