//! The metadata server's queue pairs and regions: on a port to its clients, and on one to the data nodes.

use std::{net::IpAddr, time::Duration};

use herdwick_fabric::{
    Armed, CqId, CqSpec, Device, Endpoint, OpenError, PdId, PdRoom, Port, PortLimits, QpId,
    RegionId, RegionSpec,
};
use herdwick_read::RecvBuffers;
use herdwick_request::HashKey;

use super::{
    CLIENTS_MAX, NodeAccept, NodeGrant, OptionsError, Right, Secret, SetupError, check,
    check_nodes, check_time, endpoint_of, link, rc,
};
use crate::{
    ClientId, Server,
    message::{CALL_BYTES_MAX, CALLS_MAX, REPLY_BYTES_MAX},
    nodes::Nodes,
    server::{PeerObjects, Ports, REPLY_DEPTH, STRIDE, ServerParts, TASKS},
};

/// Options of a metadata server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Most clients, up to [`CLIENTS_MAX`].
    pub clients: usize,
    /// The key by which keys are hashed: a secret of the server and its clients, drawn at random.
    pub hash_key: HashKey,
    /// Interval at which the server examines keys for which no client reported superseded entries.
    pub sweep: Duration,
    /// Time without a call, or for which memory waits for a client, after which it counts as dead.
    pub lease: Duration,
}

impl ServerOptions {
    /// Options with the usual times.
    #[must_use]
    pub fn new(clients: usize, hash_key: HashKey) -> Self {
        Self {
            clients,
            hash_key,
            sweep: Duration::from_micros(100),
            lease: Duration::from_secs(5),
        }
    }
}

/// What a client learns of the metadata server.
#[derive(Debug)]
pub struct Grant {
    /// The queue pair for calls.
    pub calls: Endpoint,
    /// The key by which keys are hashed.
    pub hash_key: HashKey,
    /// What the client may ask for.
    pub right: Right,
}

/// What the metadata server learns of a client.
#[derive(Clone, Debug)]
pub struct Accept {
    /// The queue pair for calls.
    pub calls: Endpoint,
}

/// A metadata server's ports and machine.
pub struct ServerEnd<D: Device> {
    /// The device that serves clients.
    pub device: D,
    /// The port to the clients, for domains.
    pub port: D::Port,
    /// The port to the data nodes.
    pub node_port: D::Port,
    /// Its device: where a process that hosts domains cannot join others, another one.
    pub node_device: D,
    server: Server,
    hash_key: HashKey,
    secret: Secret,
    cqs: [CqId; 2],
    clients: Vec<ServerClient>,
}

struct ServerClient {
    id: ClientId,
    pd: PdId,
    calls: QpId,
    buffers: RegionId,
}

impl<D: Device> ServerEnd<D> {
    /// Opens a port to the data nodes, for [`ServerEnd::open`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_port(device: &D, nodes: usize) -> Result<D::Port, OpenError> {
        device.open_port(&PortLimits {
            pds: nodes,
            qps: nodes,
            cqs: 1,
            regions: nodes,
            addresses: 0,
        })
    }

    /// Makes a server's objects, and returns what the data nodes have to know of them. `node_port` is
    /// of `node_device`; each node comes with this side of its domain. No client of an earlier server
    /// may be connected to the nodes. `secret` is what clients have to show that write, here as at the nodes.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn open(
        (device, node_device): (D, D),
        (mut node_port, nodes): (D::Port, Vec<(PdId, NodeGrant)>),
        (options, secret): (&ServerOptions, Secret),
    ) -> Result<(Self, Vec<NodeAccept>), SetupError> {
        check("clients", options.clients, CLIENTS_MAX)?;
        check_time("lease", options.lease)?;
        let terms = check_nodes(&node_device, nodes.iter().map(|(_, grant)| grant))?;
        let clients = options.clients;
        let mut port = device.open_port(&PortLimits {
            pds: clients,
            qps: clients,
            cqs: 2,
            regions: clients,
            addresses: 0,
        })?;
        if terms.right == Right::Read {
            return Err(OptionsError::ReadOnly.into());
        }
        let has = device.capabilities();
        if has.inline_bytes_max < REPLY_BYTES_MAX {
            return Err(OptionsError::Inline(has.name).into());
        }
        let mut cq = |depth| device.create_cq(&mut port, &CqSpec { depth });
        let cqs = [
            // Each client may have so many RECVs complete at once: no completion queue overflows.
            cq(options.clients * CALLS_MAX)?,
            cq(options.clients * REPLY_DEPTH)?,
        ];
        // A task has one verb at a time on its way to each node.
        let depth = nodes.len() * TASKS;
        let node_cq = node_device.create_cq(&mut node_port, &CqSpec { depth })?;
        let (mut links, mut accepts) = (Vec::new(), Vec::new());
        for (pd, grant) in nodes {
            let made = link(
                &node_device,
                &mut node_port,
                (pd, node_cq),
                &grant,
                (TASKS, STRIDE),
            )?;
            node_device.import_region(&mut node_port, pd, grant.ticket)?;
            accepts.push(NodeAccept {
                writes: endpoint_of(&node_device, &node_port, made.qp)?,
                reads: None,
            });
            links.push(made);
        }
        let server = Server::new(ServerParts {
            geometry: terms.geometry,
            nodes: Nodes::new(links, node_cq, STRIDE),
            clients: options.clients as u16,
            cqs,
            hash_key: options.hash_key,
            sweep: options.sweep,
            lease: options.lease,
        });
        let end = Self {
            device,
            port,
            node_port,
            node_device,
            server,
            hash_key: options.hash_key,
            secret,
            cqs,
            clients: Vec::with_capacity(options.clients),
        };
        Ok((end, accepts))
    }

    /// Returns the machine.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// What a client needs of its domain.
    #[must_use]
    pub fn pd_room() -> PdRoom {
        PdRoom {
            recvs: CALLS_MAX,
            peer_recvs: CALLS_MAX,
            ..PdRoom::default()
        }
    }

    /// Makes the objects for a client whose domain is `pd`. With the secret it may ask for what PUTs and
    /// DELETEs need, without one it may ask where keys are.
    ///
    /// # Errors
    /// [`OptionsError::Secret`], [`OptionsError::Starting`] until [`Server::is_ready`],
    /// [`OptionsError::Clients`], or the provider's refusal; objects that were made are left in the
    /// domain, and go with it.
    pub fn admit(
        &mut self,
        pd: PdId,
        secret: Option<&Secret>,
    ) -> Result<(ClientId, Grant), SetupError> {
        let right = self.secret.right(secret)?;
        if !self.server.is_ready() {
            return Err(OptionsError::Starting.into());
        }
        let id = self.server.next_id().ok_or(OptionsError::Clients)?;
        let Self {
            device, port, cqs, ..
        } = self;
        let [recv_cq, send_cq] = *cqs;
        let spec = rc(pd, [send_cq, recv_cq], [REPLY_DEPTH, CALLS_MAX]);
        let calls = device.create_qp(port, &spec)?;
        let spec = RegionSpec::local(CALLS_MAX * CALL_BYTES_MAX);
        let buffers = device.allocate_memory(port, pd, &spec)?;
        let grant = Grant {
            calls: endpoint_of(device, port, calls)?,
            hash_key: self.hash_key,
            right,
        };
        let attached = ServerClient {
            id,
            pd,
            calls,
            buffers: buffers.0,
        };
        let objects = PeerObjects {
            qp: calls,
            calls: RecvBuffers::new(calls, buffers, CALL_BYTES_MAX),
        };
        self.server.attach(port, id, (objects, right))?;
        self.clients.push(attached);
        Ok((id, grant))
    }

    /// Connects a client's queue pair.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn connect(&mut self, id: ClientId, accept: &Accept) -> Result<(), SetupError> {
        let found = self.clients.iter().find(|client| client.id == id);
        let calls = found.ok_or(OptionsError::Clients)?.calls;
        self.device.connect(&mut self.port, calls, &accept.calls)?;
        self.server.connected(id);
        Ok(())
    }

    /// Returns whether a client that connected from `host` (`None`: this one) has its queue pair there.
    #[must_use]
    pub fn is_at(&self, id: ClientId, calls: &Endpoint, host: Option<IpAddr>) -> bool {
        let found = self.clients.iter().find(|client| client.id == id);
        found.is_some_and(|client| self.device.is_at(&self.port, client.pd, &[calls], host))
    }

    /// Arms the wakeups of both ports; returns whether the caller may sleep if a pass afterwards finds
    /// nothing.
    pub fn arm(&mut self) -> bool {
        let [calls, _] = self.cqs;
        let nodes = self.server.node_cq();
        [self.port.arm(calls), self.node_port.arm(nodes)] == [Armed::Yes; 2]
    }

    /// Undoes [`ServerEnd::arm`].
    pub fn disarm(&mut self) {
        let [calls, _] = self.cqs;
        self.port.disarm(calls);
        self.node_port.disarm(self.server.node_cq());
    }

    /// Serves what has arrived, and goes on with what is under way. Returns the number of calls that
    /// arrived. The caller drives the ports.
    pub fn pass(&mut self, now: Duration) -> usize {
        let ports = &mut Ports {
            clients: &mut self.port,
            nodes: &mut self.node_port,
        };
        self.server.pass(ports, now)
    }

    /// Returns a client whose connection failed, that has not called for the time of the lease, or for
    /// which memory has waited that long. It keeps entries from another use until it is removed: from the
    /// data nodes first ([`super::NodeEnd::remove`]), then here.
    #[must_use]
    pub fn lapsed(&self) -> Option<ClientId> {
        self.server.lapsed()
    }

    /// Ends a client's session, after those at all data nodes: entries that it held find another use.
    pub fn remove(&mut self, id: ClientId) {
        let Some(index) = self.clients.iter().position(|client| client.id == id) else {
            return;
        };
        let client = self.clients.swap_remove(index);
        // Before it is detached: its lease is not known afterwards.
        self.server.count_lapsed(id);
        self.server.detach(id);
        let Self { device, port, .. } = self;
        // What is left is destroyed with the domain.
        let _ = device.destroy_qp(port, client.calls);
        let _ = device.free_region(port, client.buffers);
        let _ = device.destroy_pd(port, client.pd);
    }

    /// Returns the number of clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }
}
