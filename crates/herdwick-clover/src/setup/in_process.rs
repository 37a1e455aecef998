//! Data nodes and their metadata server in one process, and clients there or elsewhere: of clients in
//! other processes, the caller carries what sessions carry.

use std::{net::IpAddr, os::fd::BorrowedFd, time::Duration};

use herdwick_fabric::{Device, PdId, PdTicket, Port};

use super::{
    Accepts, ClientEnd, ClientOptions, Grant, Invitation, NodeAccept, NodeClientId, NodeEnd,
    NodeGrant, OptionsError, Right, Secret, ServerEnd, ServerOptions, SetupError,
};
use crate::ClientId;

/// Data nodes and their metadata server.
pub struct Hosts<D: Device> {
    /// The data nodes.
    pub nodes: Vec<NodeEnd<D>>,
    /// The metadata server.
    pub server: ServerEnd<D>,
    secret: Secret,
}

/// What a client is called by its hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// By the metadata server.
    pub server: ClientId,
    /// By each data node.
    pub nodes: Vec<NodeClientId>,
}

impl<D: Device> Hosts<D> {
    /// Starts a metadata server on data nodes that ask for `secret`: on a device that serves clients,
    /// and one that is a client of the nodes. Clients can join when [`crate::Server::is_ready`].
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn open(
        mut nodes: Vec<NodeEnd<D>>,
        devices: (D, D),
        options: &ServerOptions,
        secret: Secret,
    ) -> Result<Self, SetupError> {
        let server = serve(&mut nodes, devices, (options, &secret))?;
        Ok(Self {
            nodes,
            server,
            secret,
        })
    }

    /// Ends all sessions, and starts another metadata server on the data nodes that are left.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn restart(&mut self, devices: (D, D), options: &ServerOptions) -> Result<(), SetupError> {
        for node in &mut self.nodes {
            node.remove_all()?;
        }
        self.server = serve(&mut self.nodes, devices, (options, &self.secret))?;
        Ok(())
    }

    /// Connects a client on `device` in this process, which may write.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn join(
        &mut self,
        device: D,
        options: &ClientOptions,
    ) -> Result<(ClientEnd<D>, Joined), SetupError> {
        let (joined, invitation) = self.admit(Right::Write)?;
        let (end, accepts) = ClientEnd::join(device, invitation, options)?;
        self.connect(&joined, &accepts)?;
        Ok((end, joined))
    }

    /// Makes the objects for a client at the metadata server and at each data node.
    ///
    /// # Errors
    /// [`SetupError`]; nothing of the client is left, but what a provider refuses to destroy.
    pub fn admit(&mut self, right: Right) -> Result<(Joined, Invitation), SetupError> {
        let Self {
            nodes,
            server,
            secret,
        } = self;
        let secret = (right == Right::Write).then_some(&*secret);
        let (id, server) = invite(server, secret)?;
        let mut joined = Joined {
            server: id,
            nodes: Vec::new(),
        };
        let mut granted = Vec::new();
        for node in nodes {
            match invite_to_node(node, secret) {
                Ok((id, grant)) => {
                    joined.nodes.push(id);
                    granted.push(grant);
                }
                Err(error) => {
                    // Of the nodes, those that have admitted it so far.
                    self.remove(&joined)?;
                    return Err(error);
                }
            }
        }
        let nodes = granted;
        Ok((joined, Invitation { server, nodes }))
    }

    /// Returns whether a client that connected from `host` (`None`: this one) has its queue pairs there.
    #[must_use]
    pub fn is_at(&self, joined: &Joined, accepts: &Accepts, host: Option<IpAddr>) -> bool {
        let (calls, mut ends) = accepts.endpoints();
        let nodes = self.nodes.iter().zip(&joined.nodes);
        let mut nodes = nodes.zip(&mut ends);
        self.server.is_at(joined.server, calls, host)
            && nodes.all(|((node, id), ends)| node.is_at(*id, &ends, host))
    }

    /// Connects a client's queue pairs.
    ///
    /// # Errors
    /// [`SetupError`]; the client is to be removed.
    pub fn connect(&mut self, joined: &Joined, accepts: &Accepts) -> Result<(), SetupError> {
        if accepts.nodes.len() != joined.nodes.len() {
            return Err(OptionsError::NotAllNodes.into());
        }
        self.server.connect(joined.server, &accepts.server)?;
        connect(&mut self.nodes, &joined.nodes, &accepts.nodes)
    }

    /// One pass of all ports, and of the metadata server. Returns the number of calls that arrived.
    pub fn pass(&mut self, now: Duration) -> usize {
        let Self { nodes, server, .. } = self;
        for node in &mut *nodes {
            node.port.progress(now);
        }
        server.port.progress(now);
        server.node_port.progress(now);
        let arrived = server.pass(now);
        server.port.flush(now);
        server.node_port.flush(now);
        for node in nodes {
            node.port.flush(now);
        }
        arrived
    }

    /// Arms the wakeups of all ports, and looks once more at what arrived before `now`. Returns whether
    /// nothing is to be done until a wakeup, or the next sweep.
    pub fn arm(&mut self, now: Duration) -> bool {
        // Nodes behind one that cannot be armed are left out: the caller does not sleep then.
        let armed = self.nodes.iter_mut().all(NodeEnd::arm) & self.server.arm();
        armed && self.pass(now) == 0 && self.server.server().is_idle()
    }

    /// Undoes [`Hosts::arm`].
    pub fn disarm(&mut self) {
        self.nodes.iter_mut().for_each(NodeEnd::disarm);
        self.server.disarm();
    }

    /// Returns the descriptors to sleep on, once armed.
    pub fn wait_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let server = [&self.server.port, &self.server.node_port].into_iter();
        let ports = self.nodes.iter().map(|node| &node.port).chain(server);
        ports.filter_map(Port::wait_fd)
    }

    /// Ends a client's session: at the data nodes first.
    ///
    /// # Errors
    /// As [`NodeEnd::remove`]: the metadata server keeps the client.
    pub fn remove(&mut self, joined: &Joined) -> Result<(), SetupError> {
        // In this order: the server gives what the client held another use.
        for (node, id) in self.nodes.iter_mut().zip(&joined.nodes) {
            node.remove(*id)?;
        }
        self.server.remove(joined.server);
        Ok(())
    }
}

/// Makes a domain at the metadata server, and the client's objects in it.
fn invite<D: Device>(
    server: &mut ServerEnd<D>,
    secret: Option<&Secret>,
) -> Result<(ClientId, (PdTicket, Grant)), SetupError> {
    let room = ServerEnd::<D>::pd_room();
    let pd = server.device.create_pd_for(&mut server.port, &room)?;
    let mut make = || {
        let ticket = server.device.export_pd(&mut server.port, pd)?;
        let (id, grant) = server.admit(pd, secret)?;
        Ok((id, (ticket, grant)))
    };
    let made = make();
    // The objects that were made go with the domain.
    if made.is_err() {
        server.device.destroy_pd(&mut server.port, pd)?;
    }
    made
}

/// Makes a domain at a data node, and the party's objects in it.
fn invite_to_node<D: Device>(
    node: &mut NodeEnd<D>,
    secret: Option<&Secret>,
) -> Result<(NodeClientId, (PdTicket, NodeGrant)), SetupError> {
    let room = NodeEnd::<D>::pd_room();
    let pd = node.device.create_pd_for(&mut node.port, &room)?;
    let mut make = || {
        let ticket = node.device.export_pd(&mut node.port, pd)?;
        let (id, grant) = node.admit(pd, secret)?;
        Ok((id, (ticket, grant)))
    };
    let made = make();
    if made.is_err() {
        node.device.destroy_pd(&mut node.port, pd)?;
    }
    made
}

/// Connects a metadata server to the data nodes.
fn serve<D: Device>(
    nodes: &mut [NodeEnd<D>],
    (device, node_device): (D, D),
    (options, secret): (&ServerOptions, &Secret),
) -> Result<ServerEnd<D>, SetupError> {
    let mut port = ServerEnd::open_port(&node_device, nodes.len())?;
    let (ids, grants) = enter(nodes, (&node_device, &mut port), secret)?;
    let (server, accepts) =
        ServerEnd::open((device, node_device), (port, grants), (options, *secret))?;
    connect(nodes, &ids, &accepts)?;
    Ok(server)
}

/// What a party is called at each data node, and what it is granted there in which domain.
type Entered = (Vec<NodeClientId>, Vec<(PdId, NodeGrant)>);

/// Makes a domain at each data node, and this side of it.
fn enter<D: Device>(
    nodes: &mut [NodeEnd<D>],
    (device, port): (&D, &mut D::Port),
    secret: &Secret,
) -> Result<Entered, SetupError> {
    let (mut ids, mut grants) = (Vec::new(), Vec::new());
    for node in nodes {
        let (id, (ticket, grant)) = invite_to_node(node, Some(secret))?;
        ids.push(id);
        grants.push((device.import_pd(port, ticket)?, grant));
    }
    Ok((ids, grants))
}

fn connect<D: Device>(
    nodes: &mut [NodeEnd<D>],
    ids: &[NodeClientId],
    accepts: &[NodeAccept],
) -> Result<(), SetupError> {
    for ((node, id), accept) in nodes.iter_mut().zip(ids).zip(accepts) {
        node.connect(*id, accept)?;
    }
    Ok(())
}
