//! Data nodes, a metadata server and clients that are in one process: what sessions carry between
//! processes is handed over here.

use herdwick_fabric::{Device, PdId};

use super::{
    ClientEnd, ClientOptions, Grants, NodeAccept, NodeClientId, NodeEnd, NodeGrant, Secret,
    ServerEnd, ServerOptions, SetupError,
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

    /// Connects a client on `device`, which may write.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn join(
        &mut self,
        device: D,
        options: &ClientOptions,
    ) -> Result<(ClientEnd<D>, Joined), SetupError> {
        let Self {
            nodes,
            server,
            secret,
        } = self;
        let mut port = ClientEnd::open_port(&device, nodes.len())?;
        let pd = server
            .device
            .create_pd_for(&mut server.port, &ServerEnd::<D>::pd_room())?;
        let ticket = server.device.export_pd(&mut server.port, pd)?;
        let (id, grant) = server.admit(pd, Some(secret))?;
        let pd = device.import_pd(&mut port, ticket)?;
        let (ids, grants) = enter(nodes, (&device, &mut port), secret)?;
        let grants = Grants {
            server: (pd, grant),
            nodes: grants,
        };
        let (end, accept, accepts) = ClientEnd::open(device, (port, grants), options)?;
        server.connect(id, &accept)?;
        connect(nodes, &ids, &accepts)?;
        let joined = Joined {
            server: id,
            nodes: ids,
        };
        Ok((end, joined))
    }

    /// Ends a client's session: at the data nodes first.
    ///
    /// # Errors
    /// As [`NodeEnd::remove`]: the metadata server keeps the client.
    pub fn remove(&mut self, joined: &Joined) -> Result<(), SetupError> {
        for (node, id) in self.nodes.iter_mut().zip(&joined.nodes) {
            node.remove(*id)?;
        }
        self.server.remove(joined.server);
        Ok(())
    }
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
        let room = NodeEnd::<D>::pd_room();
        let pd = node.device.create_pd_for(&mut node.port, &room)?;
        let ticket = node.device.export_pd(&mut node.port, pd)?;
        let (id, grant) = node.admit(pd, Some(secret))?;
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
