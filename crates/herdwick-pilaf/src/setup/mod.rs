//! The objects of both ends on a port, and what they have to tell each other. The caller carries
//! grants, accepts and tickets between them, as the fabric needs it.
//!
//! ```text
//! client                                       server
//! RC queue pair, READs only               ->   RC queue pair without RECVs; table, extents
//! RC queue pair, requests and replies     <->  RC queue pair with RECVs
//! ```

mod client;
mod in_process;
mod pace;
mod server;

pub use client::{ClientEnd, ClientOptions};
pub use server::{ServerEnd, ServerOptions};

use herdwick_fabric::{Endpoint, PdRoom, PdTicket, RegionSpec};
use herdwick_read::ReaderError;
use herdwick_request::HashKey;

use crate::{
    calls::REPLY_RECVS,
    judge::{ExtentsView, TableView},
    message::{CREDITS, HEAD_BYTES, MESSAGE_BYTES_MAX},
};

/// Most clients of one server.
pub const CLIENTS_MAX: usize = 1024;

/// Why an end cannot be set up.
pub type SetupError = herdwick_fabric::SetupError<OptionsError>;

/// Pilaf refuses its options, the fabric or a client.
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
    /// The fabric cannot carry a reply.
    #[error("the fabric {0} has no inline sends of {HEAD_BYTES} bytes; take another")]
    Inline(&'static str),
    /// As many clients are connected as there may be.
    #[error("the server has no room for another client; start it with more")]
    Clients,
}

impl From<OptionsError> for SetupError {
    fn from(error: OptionsError) -> Self {
        Self::Refused(error)
    }
}

/// What a client needs of its domain.
#[must_use]
pub fn pd_room() -> PdRoom {
    PdRoom {
        writable: 0,
        peer_writable: 0,
        recvs: CREDITS,
        peer_recvs: REPLY_RECVS,
    }
}

/// A table, as a client learns of it.
#[derive(Debug)]
pub struct TableGrant {
    /// Where it is.
    pub view: TableView,
    /// For [`Device::import_region`](herdwick_fabric::Device::import_region).
    pub ticket: PdTicket,
}

/// What a client learns of the server.
#[derive(Debug)]
pub struct Grant {
    /// The queue pair for requests.
    pub requests: Endpoint,
    /// The queue pair for READs.
    pub reads: Endpoint,
    /// The table.
    pub table: TableGrant,
    /// The memory of extents.
    pub extents: ExtentsView,
    /// For [`Device::import_region`](herdwick_fabric::Device::import_region), of the extents.
    pub extents_ticket: PdTicket,
    /// The key by which keys are hashed.
    pub hash_key: HashKey,
}

/// What the server learns of a client.
#[derive(Clone, Debug)]
pub struct Accept {
    /// The queue pair for requests.
    pub requests: Endpoint,
    /// The queue pair for READs.
    pub reads: Endpoint,
}

/// `count` buffers for messages.
const fn buffers(count: usize) -> RegionSpec {
    RegionSpec::local(count * MESSAGE_BYTES_MAX)
}
