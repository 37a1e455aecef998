//! What one worker holds for each lease.

use std::{collections::HashMap, os::fd::OwnedFd};

use herdwick_fabric::{
    Access, AddressHandle, ConnectError, ControlError, CqId, PdId, Port, QpId, QpSpec, RegionId,
    RegionSpec, Scope, Transport,
};
use herdwick_herd::{
    AttachError, Chunk, ClientId, ServerSide,
    hello::{WorkerAccept, WorkerGrant},
    wire::{Epoch, Window},
};

use super::{LeaseDevice, REQUEST_RECVS};
use crate::lease::{LeaseId, Terms};

/// The leases that one worker has memory for.
pub(super) struct Held {
    leases: HashMap<LeaseId, Lease>,
    request_cq: CqId,
    replies: QpId,
}

struct Lease {
    terms: Terms,
    pd: PdId,
    requests: QpId,
    lines: RegionId,
    overflow: RegionId,
    /// Set once connected.
    service: Option<(ClientId, AddressHandle)>,
}

/// A lease was not taken into service.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    #[error("no such lease, or terms that no layout has")]
    Terms,
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Attach(#[from] AttachError),
}

impl Held {
    pub(super) fn new(request_cq: CqId, replies: QpId) -> Self {
        Self {
            leases: HashMap::new(),
            request_cq,
            replies,
        }
    }

    /// Makes a domain, memory and a queue pair for a lease, and the ticket to them.
    pub(super) fn grant<D: LeaseDevice>(
        &mut self,
        device: &D,
        port: &mut D::Port,
        id: LeaseId,
        terms: Terms,
    ) -> Result<(WorkerGrant, Vec<OwnedFd>), ServeError> {
        let pd = device.create_pd(port)?;
        let granted = self.furnish(device, port, pd, terms);
        match granted {
            Ok((lease, grant)) => {
                self.leases.insert(id, lease);
                Ok(grant)
            }
            Err(error) => {
                // Everything furnished so far goes with its domain.
                device.destroy_pd(port, pd)?;
                Err(error)
            }
        }
    }

    fn furnish<D: LeaseDevice>(
        &self,
        device: &D,
        port: &mut D::Port,
        pd: PdId,
        terms: Terms,
    ) -> Result<(Lease, (WorkerGrant, Vec<OwnedFd>)), ServeError> {
        let window = Window::new(terms.window.into()).ok_or(ServeError::Terms)?;
        let requests = device.create_qp(
            port,
            &QpSpec {
                pd,
                transport: Transport::Uc,
                send_cq: self.request_cq,
                recv_cq: self.request_cq,
                send_depth: 1,
                recv_depth: REQUEST_RECVS,
            },
        )?;
        let mut memory = |len| {
            let spec = RegionSpec {
                len,
                access: Access::WRITE,
                scope: Scope::Qp(requests),
            };
            device.allocate_region(port, pd, &spec)
        };
        let (lines, overflow) = (
            memory(window.line_bytes())?,
            memory(window.overflow_bytes())?,
        );
        let (ticket, fds) = device.ticket(port, pd)?;
        let grant = WorkerGrant {
            fds: fds.len() as u8,
            ticket,
            lines: device.remote(port, lines)?,
            overflow: device.remote(port, overflow)?,
            requests: device.endpoint(port, requests)?,
            replies: device.endpoint(port, self.replies)?,
        };
        Ok((
            Lease {
                terms,
                pd,
                requests,
                lines,
                overflow,
                service: None,
            },
            (grant, fds),
        ))
    }

    /// Connects a lease with its client's queue pairs and takes it into service.
    pub(super) fn connect<D: LeaseDevice>(
        &mut self,
        device: &D,
        port: &mut D::Port,
        side: &mut ServerSide,
        id: LeaseId,
        peer: &WorkerAccept,
    ) -> Result<(), ServeError> {
        let lease = self.leases.get_mut(&id).ok_or(ServeError::Terms)?;
        device.connect(port, lease.requests, &peer.requests)?;
        let address = device.create_address(port, self.replies, &peer.replies)?;
        match lease
            .chunk(port, address)
            .and_then(|chunk| Ok(side.attach(chunk)?))
        {
            Ok(client) => {
                lease.service = Some((client, address));
                Ok(())
            }
            Err(error) => {
                device.destroy_address(port, address)?;
                Err(error)
            }
        }
    }

    /// Takes a lease out of service and gives its memory back to the operating system.
    pub(super) fn revoke<D: LeaseDevice>(
        &mut self,
        device: &D,
        port: &mut D::Port,
        side: &mut ServerSide,
        id: LeaseId,
    ) {
        // A grant that failed left nothing.
        let Some(lease) = self.leases.remove(&id) else {
            return;
        };
        if let Some((client, address)) = lease.service {
            // The chunk names the memory; it must not outlive this line.
            drop(side.detach(client));
            let gone = device.destroy_address(port, address);
            debug_assert!(gone.is_ok(), "{gone:?}");
        }
        let gone = device.destroy_pd(port, lease.pd);
        debug_assert!(gone.is_ok(), "{gone:?}");
    }
}

impl Lease {
    fn chunk(&self, port: &impl Port, address: AddressHandle) -> Result<Chunk, ServeError> {
        let memory = |region| port.region(region).cloned().ok_or(ServeError::Terms);
        Ok(Chunk {
            lines: memory(self.lines)?,
            overflow: memory(self.overflow)?,
            window: Window::new(self.terms.window.into()).ok_or(ServeError::Terms)?,
            epoch: Epoch::new(self.terms.epoch).ok_or(ServeError::Terms)?,
            address,
            reply_bytes_max: self.terms.reply_bytes_max as usize,
        })
    }
}
