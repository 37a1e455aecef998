//! A client's queue pairs and regions on a port: to the metadata server and to each data node.

use std::time::Duration;

use herdwick_fabric::{ControlError, CqSpec, Device, OpenError, PdId, PortLimits, RegionSpec};
use herdwick_read::{Reader, ReaderOptions, RecvBuffers};
use herdwick_request::HashKey;

use super::{
    Accept, Accepts, Grant, Invitation, NodeAccept, NodeGrant, NodeTerms, OptionsError, Right,
    SetupError, check, check_nodes, check_time, endpoint_of, link, rc,
};
use crate::{
    Client,
    answer::Delays,
    calls::{CALL_DEPTH, CallObjects, Calls},
    client::ClientParts,
    judge::{GetId, Lookups, View},
    layout::{HEAD_BYTES, Memberships, is_whole},
    message::{CALL_BYTES_MAX, CALLS_MAX, REPLY_BYTES_MAX},
    mutations::{Mutations, body_max},
    nodes::Nodes,
};

/// Most PUTs and DELETEs that a client has in flight.
const PUTS_MAX: usize = 1024;
/// Most cursors of a client.
const CURSORS_MAX: usize = 1 << 28;

/// A client's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// GETs in flight.
    pub window: usize,
    /// PUTs and DELETEs in flight.
    pub puts: usize,
    /// Keys whose place is remembered. Others cost a call to the metadata server.
    pub cursors: usize,
    /// Longest value that is written.
    pub value_max: usize,
    /// Interval at which the client reports to the metadata server which epoch it has left.
    pub publish: Duration,
    /// Time for which a PUT waits for a free entry.
    pub entry_wait: Duration,
    /// Time after which a server or data node that does not answer is given up.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            window: 32,
            puts: 16,
            cursors: 1 << 17,
            value_max: 4096,
            publish: Duration::from_millis(1),
            entry_wait: Duration::from_millis(200),
            timeout: Duration::from_secs(5),
        }
    }
}

/// A client's port and machine.
pub struct ClientEnd<D: Device> {
    /// The device.
    pub device: D,
    /// The port.
    pub port: D::Port,
    /// The machine.
    pub client: Client,
}

/// What a client has been granted: by the metadata server, and by each data node in the same order as
/// the server's. Each comes with this side of its domain.
#[derive(Debug)]
pub struct Grants {
    /// The metadata server.
    pub server: (PdId, Grant),
    /// The data nodes.
    pub nodes: Vec<(PdId, NodeGrant)>,
}

impl<D: Device> ClientEnd<D> {
    /// Opens a port for [`ClientEnd::open`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_port(device: &D, nodes: usize) -> Result<D::Port, OpenError> {
        device.open_port(&PortLimits {
            pds: nodes + 1,
            // Calls, READs, and one queue pair to each node.
            qps: nodes + 2,
            cqs: 4,
            regions: nodes + 3,
            addresses: 0,
        })
    }

    /// Joins the domains of an invitation, and makes a client's objects. Returns what its hosts have to
    /// know of them, too.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn join(
        device: D,
        invitation: Invitation,
        options: &ClientOptions,
    ) -> Result<(Self, Accepts), SetupError> {
        let mut port = Self::open_port(&device, invitation.nodes.len())?;
        let (ticket, grant) = invitation.server;
        let server = (device.import_pd(&mut port, ticket)?, grant);
        let nodes = invitation.nodes.into_iter();
        let nodes = nodes.map(|(ticket, grant)| Ok((device.import_pd(&mut port, ticket)?, grant)));
        let nodes = nodes.collect::<Result<_, SetupError>>()?;
        let grants = Grants { server, nodes };
        let (end, server, nodes) = Self::open(device, (port, grants), options)?;
        Ok((end, Accepts { server, nodes }))
    }

    /// Makes a client's objects, and returns what the server and each node have to know of them.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn open(
        device: D,
        (mut port, grants): (D::Port, Grants),
        options: &ClientOptions,
    ) -> Result<(Self, Accept, Vec<NodeAccept>), SetupError> {
        let Grants {
            server: (pd, grant),
            nodes,
        } = grants;
        check_options(options)?;
        let terms = check_all_nodes(&device, &nodes)?;
        let largest = terms.geometry.largest();
        let Some((reads_pd, first)) = nodes.first() else {
            return Err(OptionsError::NodesDiffer.into());
        };
        let (view, end) = (
            View {
                memory: first.memory,
                geometry: terms.geometry,
            },
            first.reads,
        );
        let reads = ReaderOptions {
            lookups: options.window,
            // A step READs two entries, or an entry and a shortcut.
            step_bytes: 2 * largest,
            ..ReaderOptions::default()
        };
        let reader = Reader::create(&device, &mut port, *reads_pd, &reads);
        let reader = reader.map_err(OptionsError::from)?;
        device.connect(&mut port, reader.qp(), &end)?;
        let objects = call_objects(&device, &mut port, pd)?;
        device.connect(&mut port, objects.qp, &grant.calls)?;
        let accept = Accept {
            calls: endpoint_of(&device, &port, objects.qp)?,
        };
        let most = (largest - HEAD_BYTES).min(body_max(options.value_max));
        let stride = (HEAD_BYTES + most).next_multiple_of(8);
        let depth = nodes.len() * options.puts;
        let cq = device.create_cq(&mut port, &CqSpec { depth })?;
        let (mut links, mut accepts) = (Vec::new(), Vec::new());
        for (index, (pd, grant)) in nodes.into_iter().enumerate() {
            let made = link(&device, &mut port, (pd, cq), &grant, (options.puts, stride))?;
            device.import_region(&mut port, pd, grant.ticket)?;
            let reads = (index == 0).then(|| endpoint_of(&device, &port, reader.qp()));
            accepts.push(NodeAccept {
                writes: endpoint_of(&device, &port, made.qp)?,
                reads: reads.transpose()?,
            });
            links.push(made);
        }
        let nodes = Nodes::new(links, cq, stride);
        // Others wait for entries as long as this client does: they get what it does not use.
        let window = (options.puts, options.entry_wait / 2);
        let mutations = Mutations::new(window, most, terms.geometry.entries, nodes);
        let calls = Calls::new(&mut port, objects, options.timeout)?;
        // A client may write if the server and all nodes let it.
        let right = match grant.right {
            Right::Read => Right::Read,
            Right::Write => terms.right,
        };
        let terms = (view, right, grant.hash_key, most);
        let client = machine(options, terms, (reader, mutations, calls));
        let end = Self {
            device,
            port,
            client,
        };
        Ok((end, accept, accepts))
    }
}

fn check_options(options: &ClientOptions) -> Result<(), OptionsError> {
    check("puts", options.puts, PUTS_MAX)?;
    check("cursors", options.cursors, CURSORS_MAX)?;
    for (what, time) in [
        ("publish", options.publish),
        ("entry_wait", options.entry_wait),
        ("timeout", options.timeout),
    ] {
        check_time(what, time)?;
    }
    Ok(())
}

/// Checks the data nodes, and that they are all of one metadata server, in its order.
fn check_all_nodes<D: Device>(
    device: &D,
    nodes: &[(PdId, NodeGrant)],
) -> Result<NodeTerms, OptionsError> {
    let terms = check_nodes(device, nodes.iter().map(|(_, grant)| grant))?;
    let members: Memberships = nodes.iter().map(|(_, grant)| grant.membership).collect();
    match is_whole(&members) {
        true => Ok(terms),
        false => Err(OptionsError::NotAllNodes),
    }
}

fn call_objects<D: Device>(
    device: &D,
    port: &mut D::Port,
    pd: PdId,
) -> Result<CallObjects, ControlError> {
    let send_cq = device.create_cq(port, &CqSpec { depth: CALL_DEPTH })?;
    let recv_cq = device.create_cq(port, &CqSpec { depth: CALLS_MAX })?;
    let spec = rc(pd, [send_cq, recv_cq], [CALL_DEPTH, CALLS_MAX]);
    let buffers = |bytes| RegionSpec::local(CALLS_MAX * bytes);
    let qp = device.create_qp(port, &spec)?;
    let replies = device.allocate_memory(port, pd, &buffers(REPLY_BYTES_MAX))?;
    Ok(CallObjects {
        qp,
        send_cq,
        recv_cq,
        calls: device.allocate_memory(port, pd, &buffers(CALL_BYTES_MAX))?,
        replies: RecvBuffers::new(qp, replies, REPLY_BYTES_MAX),
    })
}

fn machine(
    options: &ClientOptions,
    (view, right, hash_key, body_max): (View, Right, HashKey, usize),
    (reader, mutations, calls): (Reader<GetId>, Mutations, Calls),
) -> Client {
    Client::new(ClientParts {
        reader,
        lookups: (Lookups::new(options.window, view), options.window),
        mutations,
        calls,
        cursors: options.cursors,
        hash_key,
        right,
        body_max,
        delays: Delays {
            publish: options.publish,
            entry_wait: options.entry_wait,
            timeout: options.timeout,
        },
    })
}
