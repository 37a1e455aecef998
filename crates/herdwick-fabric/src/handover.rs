//! What set-up of a session needs besides the verbs: a protection domain handed to its peer, taken
//! back from it, and the health of a port.

use std::{fmt, os::fd::OwnedFd};

use crate::ControlError;

/// What a domain is made for: the room that one peer needs in it. A provider whose domains are
/// memory of a fixed size allocates exactly this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PdRoom {
    /// Bytes of the regions that the peer may WRITE.
    pub writable: usize,
    /// Bytes of the peer's regions that this side may WRITE.
    pub peer_writable: usize,
    /// RECVs of this side's UD queue pair in the domain; 0 without one.
    pub recvs: usize,
    /// RECVs of the peer's UD queue pair.
    pub peer_recvs: usize,
}

/// What a peer needs to join a domain, or to reach shared memory of one: opaque bytes, and descriptors that travel beside them over a
/// unix socket. Both are empty where peers reach a region by its rkey alone.
#[derive(Default)]
pub struct PdTicket {
    /// The descriptors, in order.
    pub fds: Vec<OwnedFd>,
    /// Its provider wrote it and its provider reads it; no system looks inside.
    pub blob: Vec<u8>,
}

impl fmt::Debug for PdTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fds, blob } = self;
        write!(f, "PdTicket({} bytes, {} fds)", blob.len(), fds.len())
    }
}

/// A domain could not be joined. Nothing of the ticket is kept.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The ticket is not one that this provider makes.
    #[error("the ticket makes no sense: {0}; ask the server for a new one")]
    Ticket(&'static str),
    /// A limit of the port, or an error of the operating system.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// A callback for when the memory of a domain has been released, called on any thread; with an
/// error if the system or the device keeps some of it.
pub type Released = Box<dyn FnOnce(Result<(), ControlError>) + Send>;

/// The state of a port, as of the last events that it processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortHealth {
    /// Whether the device or its link is lost, so that only another port helps.
    pub lost: bool,
    /// Failures that ended queue pairs since the port was opened; one may count twice. While it
    /// does not change, no queue pair has failed.
    pub failures: u64,
}
