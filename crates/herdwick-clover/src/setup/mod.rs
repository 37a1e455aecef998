//! The queue pairs and regions of data nodes, metadata server and clients on their ports, and the messages
//! that connect them. The caller carries grants, accepts and tickets between them, as the fabric needs it.
//!
//! ```text
//! client                                           data node
//! RC queue pair, READs only (first node alone)  -> RC queue pair; the memory
//! RC queue pair, WRITEs and CASes               -> RC queue pair; the memory
//!                                                  metadata server
//! RC queue pair, calls and replies             <-> RC queue pair with RECVs
//! metadata server                                  data node
//! RC queue pair, READs, WRITEs and CASes        -> RC queue pair; the memory
//! ```
//! Circular import with `node`: what data nodes grant is checked here for all that use them.

mod client;
mod in_process;
mod node;
mod server;
mod session;

pub use client::{ClientEnd, ClientOptions, Grants};
pub use in_process::{Hosts, Joined};
pub use node::{NodeAccept, NodeClientId, NodeEnd, NodeGrant, NodeOptions, Right, Secret};
pub use server::{Accept, Grant, ServerEnd, ServerOptions};
pub use session::{Accepts, BadPart, Invitation};

use std::time::Duration;

use herdwick_fabric::{
    ConnectError, ControlError, CqId, Device, PdId, QpId, QpSpec, RegionSpec, Transport,
};
use herdwick_read::ReaderError;

use crate::{
    layout::BadGeometry,
    message::REPLY_BYTES_MAX,
    nodes::{NODES_MAX, NodeLink},
};

/// Most clients of a metadata server, and of a data node.
pub const CLIENTS_MAX: usize = 1024;

/// Why an end cannot be set up.
pub type SetupError = herdwick_fabric::SetupError<OptionsError>;

/// Clover refuses its options, the fabric or a peer.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// READs cannot be set up.
    #[error(transparent)]
    Read(#[from] ReaderError),
    /// A limit of this crate.
    #[error("{what} is 1 to {max}, not {asked}")]
    Option {
        /// What is limited.
        what: &'static str,
        /// Its value.
        asked: usize,
        /// Its greatest value.
        max: usize,
    },
    /// A time of the options is 0.
    #[error("{0} is a time longer than 0")]
    NoTime(&'static str),
    /// The dimensions of the memory.
    #[error(transparent)]
    Geometry(#[from] BadGeometry),
    /// The data nodes differ.
    #[error(
        "the data nodes have memories of different dimensions; start them with the same options"
    )]
    NodesDiffer,
    /// A client needs all data nodes of its metadata server.
    #[error(
        "these are not the data nodes of the metadata server: name all of them, in the server's order"
    )]
    NotAllNodes,
    /// The fabric has no CAS.
    #[error("the fabric {0} has no atomics; take another")]
    NoAtomics(&'static str),
    /// The fabric cannot carry a reply.
    #[error("the fabric {0} has no inline sends of {REPLY_BYTES_MAX} bytes; take another")]
    Inline(&'static str),
    /// As many clients are connected as there may be.
    #[error("there is no room for another client; start the server with more")]
    Clients,
    /// The secret is wrong.
    #[error("the data node's secret is another: ask its operator, or read only")]
    Secret,
    /// The server has to walk the data nodes' memory first.
    #[error("the metadata server is still reading the data nodes; try again")]
    Starting,
    /// The metadata server has to write.
    #[error("a metadata server needs the secret of each data node")]
    ReadOnly,
}

impl From<OptionsError> for SetupError {
    fn from(error: OptionsError) -> Self {
        Self::Refused(error)
    }
}

impl From<BadGeometry> for SetupError {
    fn from(error: BadGeometry) -> Self {
        OptionsError::from(error).into()
    }
}

fn check(what: &'static str, asked: usize, max: usize) -> Result<(), OptionsError> {
    if (1..=max).contains(&asked) {
        return Ok(());
    }
    Err(OptionsError::Option { what, asked, max })
}

fn check_time(what: &'static str, time: Duration) -> Result<(), OptionsError> {
    match time.is_zero() {
        true => Err(OptionsError::NoTime(what)),
        false => Ok(()),
    }
}

fn rc(pd: PdId, cqs: [CqId; 2], depths: [usize; 2]) -> QpSpec {
    QpSpec {
        pd,
        transport: Transport::Rc,
        send_cq: cqs[0],
        recv_cq: cqs[1],
        send_depth: depths[0],
        recv_depth: depths[1],
    }
}

/// Makes and connects the queue pair by which this side uses a data node's memory, with buffers for
/// `operations` operations.
fn link<D: Device>(
    device: &D,
    port: &mut D::Port,
    (pd, cq): (PdId, CqId),
    grant: &NodeGrant,
    (operations, stride): (usize, usize),
) -> Result<NodeLink, ConnectError> {
    // No RECVs: nothing is sent to this side.
    let qp = device.create_qp(port, &rc(pd, [cq, cq], [operations, 0]))?;
    let buffers = device.allocate_memory(port, pd, &RegionSpec::local(operations * stride))?;
    device.connect(port, qp, &grant.writes)?;
    let memory = grant.memory;
    Ok(NodeLink {
        qp,
        memory,
        buffers,
    })
}

fn endpoint_of<D: Device>(
    device: &D,
    port: &D::Port,
    qp: QpId,
) -> Result<herdwick_fabric::Endpoint, ControlError> {
    device.endpoint(port, qp)
}

/// Checks that the data nodes fit each other, and the fabric.
fn check_nodes<'a, D: Device>(
    device: &D,
    mut grants: impl ExactSizeIterator<Item = &'a NodeGrant>,
) -> Result<NodeTerms, OptionsError> {
    let has = device.capabilities();
    if !has.read || !has.rc {
        return Err(ReaderError::NoRead(has.name).into());
    }
    // Entries are linked by CAS.
    if has.atomics == herdwick_fabric::Atomics::None {
        return Err(OptionsError::NoAtomics(has.name));
    }
    check("data nodes", grants.len(), NODES_MAX)?;
    let Some(first) = grants.next() else {
        return Err(OptionsError::NodesDiffer);
    };
    let mut terms = NodeTerms {
        geometry: first.geometry,
        right: first.right,
    };
    for grant in grants {
        if grant.geometry != terms.geometry {
            return Err(OptionsError::NodesDiffer);
        }
        if grant.right == Right::Read {
            terms.right = Right::Read;
        }
    }
    terms.geometry.check()?;
    Ok(terms)
}

/// What the grants of all data nodes have in common.
struct NodeTerms {
    geometry: crate::layout::Geometry,
    right: Right,
}
