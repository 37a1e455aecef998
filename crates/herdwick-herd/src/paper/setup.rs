//! The queue pairs and regions of both ends on a port, and the messages that connect them; the caller
//! carries these between the ends.
//!
//! ```text
//!             client, at each server process            server process
//! requests    UC queue pair, sends               ->     UC queue pair and slots of each client
//! replies     UD queue pair, a RECV a request    <-     one UD queue pair
//! ```
//!
//! In the paper the slots of all clients are one region with one rkey. Here a client has a region of its own,
//! in a domain of its own, so that none writes to the slots of another.

use std::time::Duration;

use herdwick_fabric::{
    Access, Capabilities, ControlError, CqId, CqSpec, Device, Endpoint, PdId, PdRoom, Port,
    PortLimits, QpId, QpSpec, RegionSpec, Remote, Scope, Transport,
};
use herdwick_mem::Span;
use herdwick_request::HashKey;

use super::{
    client::{PaperChannel, PaperClient, PaperClientOptions, buffer_bytes},
    server::{PaperClientId, PaperServer, PaperServerOptions},
    slot::{SLOT_BYTES, VALUE_BYTES_MAX},
};
use crate::{signals::SEND_DEPTH_MIN, wire::Window};

/// Below so many bytes replies are inlined: the paper's cut-off on Apt (section 5.3); on Susitna, 192.
pub const INLINE_BELOW: usize = 144;

/// Options of a server process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaperServerTerms {
    /// Most clients.
    pub clients_max: usize,
    /// Slots of a client; the paper's clients have 4.
    pub window: Window,
    /// Replies of fewer bytes are inlined, if the provider can; [`INLINE_BELOW`].
    pub inline_below: usize,
    /// The key under which the store hashes keyhashes.
    pub hash_key: HashKey,
}

/// Options of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaperClientTerms {
    /// Server processes.
    pub servers: usize,
    /// Slots at each.
    pub window: Window,
    /// Time after which a request without an answer ends the client.
    pub deadline: Duration,
}

/// Why an end cannot be set up.
pub type PaperSetupError = herdwick_fabric::SetupError<PaperUnfit>;

/// The machines refuse the fabric or a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PaperUnfit {
    /// The keyhash might be seen before the value.
    #[error(
        "the fabric {0} does not show the last word of a WRITE last, which HERD's request format of the \
         paper relies on; take another"
    )]
    Unordered(&'static str),
    /// A reply does not fit a datagram.
    #[error(
        "datagrams have {0} bytes, a reply of HERD in the paper {VALUE_BYTES_MAX}: raise the MTU"
    )]
    Datagram(usize),
    /// As many clients are connected as there may be.
    #[error("the server has no room for another client; start it with more")]
    Clients,
}

impl From<PaperUnfit> for PaperSetupError {
    fn from(error: PaperUnfit) -> Self {
        Self::Refused(error)
    }
}

/// What a client learns of a server process.
#[derive(Clone, Debug)]
pub struct PaperGrant {
    /// The queue pair to connect to.
    pub requests: Endpoint,
    /// The queue pair that replies come from.
    pub replies: Endpoint,
    /// The client's slots.
    pub slots: Remote,
}

/// What a server process learns of a client.
#[derive(Clone, Debug)]
pub struct PaperAccept {
    /// The queue pair that writes.
    pub requests: Endpoint,
    /// The queue pair of replies.
    pub replies: Endpoint,
}

/// A client's objects at a server process, in a domain.
#[derive(Debug)]
pub struct PaperLease {
    pd: PdId,
    requests: QpId,
    slots: Span,
}

/// A server process: its port, and its machine.
pub struct PaperServerEnd<P> {
    /// The port.
    pub port: P,
    /// The machine.
    pub side: PaperServer,
    window: Window,
    replies: QpId,
    request_cq: CqId,
}

/// A client's port, and its machine.
pub struct PaperClientEnd<P> {
    /// The port.
    pub port: P,
    /// The machine.
    pub side: PaperClient,
}

/// A client's objects while they are made, one server process after the other.
pub struct PaperClientSetup<P> {
    /// The port; join a server's domain on it before [`PaperClientSetup::join`].
    pub port: P,
    options: PaperClientOptions,
    channels: Vec<PaperChannel>,
}

/// What a client needs of its domain at a server process.
#[must_use]
pub fn pd_room(window: Window) -> PdRoom {
    PdRoom {
        writable: window.slots() * SLOT_BYTES,
        peer_writable: 0,
        recvs: 0,
        peer_recvs: window.slots(),
    }
}

fn check(has: &Capabilities) -> Result<(), PaperUnfit> {
    if !has.ordered_write {
        return Err(PaperUnfit::Unordered(has.name));
    }
    if has.datagram_bytes_max < VALUE_BYTES_MAX {
        return Err(PaperUnfit::Datagram(has.datagram_bytes_max));
    }
    Ok(())
}

impl<P: Port> PaperServerEnd<P> {
    /// Opens the port of a server process without clients.
    ///
    /// # Errors
    /// [`PaperSetupError`].
    pub fn open<D: Device<Port = P>>(
        device: &D,
        terms: &PaperServerTerms,
    ) -> Result<Self, PaperSetupError> {
        let (has, clients) = (device.capabilities(), terms.clients_max.max(1));
        check(has)?;
        let mut port = device.open_port(&PortLimits {
            pds: clients + 1,
            qps: clients + 1,
            cqs: 2,
            regions: clients + 1,
            addresses: clients,
        })?;
        let pd = device.create_pd(&mut port)?;
        // Nothing completes at the clients' queue pairs but errors.
        let request_cq = device.create_cq(&mut port, &CqSpec { depth: clients })?;
        // A reply for each slot of each client, behind a run of unsignaled ones.
        let send_depth = SEND_DEPTH_MIN + clients * terms.window.slots();
        let reply_cq = device.create_cq(&mut port, &CqSpec { depth: send_depth })?;
        let replies = device.create_qp(
            &mut port,
            &QpSpec {
                pd,
                transport: Transport::Ud,
                send_cq: reply_cq,
                recv_cq: reply_cq,
                send_depth,
                recv_depth: 0,
            },
        )?;
        let staging = RegionSpec::local(send_depth * SLOT_BYTES);
        let options = PaperServerOptions {
            replies,
            reply_cq,
            send_depth,
            staging: device.allocate_memory(&mut port, pd, &staging)?,
            // `inline_below` is the first length that is not inlined.
            inline_below: terms.inline_below.min(has.inline_bytes_max + 1),
            window: terms.window.slots(),
            clients_max: clients,
            hash_key: terms.hash_key,
            gso: has.gso,
        };
        Ok(Self {
            port,
            side: PaperServer::new(options),
            window: terms.window,
            replies,
            request_cq,
        })
    }

    /// Makes a client's slots and queue pair in its domain `pd`, made with [`pd_room`].
    ///
    /// # Errors
    /// [`PaperSetupError`]; what was made goes with the domain.
    pub fn grant<D: Device<Port = P>>(
        &mut self,
        device: &D,
        pd: PdId,
    ) -> Result<(PaperLease, PaperGrant), PaperSetupError> {
        let port = &mut self.port;
        let requests = device.create_qp(
            port,
            &QpSpec {
                pd,
                transport: Transport::Uc,
                send_cq: self.request_cq,
                recv_cq: self.request_cq,
                send_depth: 1,
                recv_depth: 0,
            },
        )?;
        let slots = RegionSpec {
            len: self.window.slots() * SLOT_BYTES,
            access: Access::WRITE,
            scope: Scope::Pd,
        };
        let (region, slots) = device.allocate_memory(port, pd, &slots)?;
        let grant = PaperGrant {
            requests: device.endpoint(port, requests)?,
            replies: device.endpoint(port, self.replies)?,
            slots: device.remote(port, region)?,
        };
        let lease = PaperLease {
            pd,
            requests,
            slots,
        };
        Ok((lease, grant))
    }

    /// Connects a client and takes it into service.
    ///
    /// # Errors
    /// [`PaperSetupError`]; then only the domain remains.
    pub fn admit<D: Device<Port = P>>(
        &mut self,
        device: &D,
        lease: &PaperLease,
        accept: &PaperAccept,
    ) -> Result<PaperClientId, PaperSetupError> {
        let port = &mut self.port;
        device.connect(port, lease.requests, &accept.requests)?;
        let to = device.create_address(port, self.replies, &accept.replies)?;
        match self.side.attach(lease.slots.clone(), to) {
            Some(client) => Ok(client),
            None => {
                device.destroy_address(port, to)?;
                Err(PaperUnfit::Clients.into())
            }
        }
    }

    /// Takes a client out of service, and destroys its domain.
    ///
    /// # Errors
    /// [`ControlError::Unknown`]: it was not in service.
    pub fn dismiss<D: Device<Port = P>>(
        &mut self,
        device: &D,
        lease: PaperLease,
        client: PaperClientId,
    ) -> Result<(), ControlError> {
        let PaperLease { pd, slots, .. } = lease;
        // It refers to the memory of the domain, which is destroyed below.
        drop(slots);
        let to = self.side.detach(client);
        let to = to.ok_or(ControlError::Unknown("client"))?;
        let destroyed = device.destroy_address(&mut self.port, to);
        // The domain goes even if the address could not be destroyed: it is what the client could
        // write to.
        device.destroy_pd(&mut self.port, pd).and(destroyed)
    }
}

impl<P: Port> PaperClientSetup<P> {
    /// Opens the port of a client.
    ///
    /// # Errors
    /// [`PaperSetupError`].
    pub fn open<D: Device<Port = P>>(
        device: &D,
        terms: &PaperClientTerms,
    ) -> Result<Self, PaperSetupError> {
        let (has, servers) = (device.capabilities(), terms.servers.max(1));
        check(has)?;
        let window = terms.window.slots();
        let mut port = device.open_port(&PortLimits {
            pds: servers,
            qps: 2 * servers,
            cqs: 2,
            regions: 2 * servers,
            addresses: servers,
        })?;
        let requests = CqSpec {
            // That of replies sends nothing, but has room for one.
            depth: servers * (SEND_DEPTH_MIN + window + 1),
        };
        let replies = CqSpec {
            depth: servers * window,
        };
        let options = PaperClientOptions {
            window,
            request_cq: device.create_cq(&mut port, &requests)?,
            reply_cq: device.create_cq(&mut port, &replies)?,
            inline_bytes_max: has.inline_bytes_max,
            header_bytes: has.datagram_header_bytes,
            deadline: terms.deadline,
        };
        Ok(Self {
            port,
            options,
            channels: Vec::with_capacity(servers),
        })
    }

    /// Makes what the client needs at the next server process, in its domain `pd`, and connects it. Returns
    /// the message for that process.
    ///
    /// # Errors
    /// [`PaperSetupError`].
    pub fn join<D: Device<Port = P>>(
        &mut self,
        device: &D,
        pd: PdId,
        grant: &PaperGrant,
    ) -> Result<PaperAccept, PaperSetupError> {
        let Self {
            port,
            options,
            channels,
        } = self;
        let window = options.window;
        let replies = device.create_qp(
            port,
            &QpSpec {
                pd,
                transport: Transport::Ud,
                send_cq: options.request_cq,
                recv_cq: options.reply_cq,
                send_depth: 1,
                recv_depth: window,
            },
        )?;
        device.accept_from(port, replies, &grant.replies)?;
        let requests = device.create_qp(
            port,
            &QpSpec {
                pd,
                transport: Transport::Uc,
                send_cq: options.request_cq,
                recv_cq: options.request_cq,
                send_depth: SEND_DEPTH_MIN + window,
                recv_depth: 0,
            },
        )?;
        device.connect(port, requests, &grant.requests)?;
        let staging = RegionSpec::local(window * SLOT_BYTES);
        let buffers = RegionSpec::local(window * buffer_bytes(options));
        channels.push(PaperChannel {
            requests,
            slots: grant.slots,
            staging: device.allocate_memory(port, pd, &staging)?,
            replies,
            buffers: device.allocate_memory(port, pd, &buffers)?,
        });
        Ok(PaperAccept {
            requests: device.endpoint(port, requests)?,
            replies: device.endpoint(port, replies)?,
        })
    }

    /// Returns the client, when every server process is joined.
    #[must_use]
    pub fn finish(self) -> PaperClientEnd<P> {
        PaperClientEnd {
            port: self.port,
            side: PaperClient::new(self.options, self.channels),
        }
    }
}
