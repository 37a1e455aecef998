//! What an operator or a program configures of providers: for a server, and for a client.

use std::{net::SocketAddr, path::PathBuf};

use herdwick_verbs::VerbsOptions;

/// The fabrics of a server, besides shared memory, for which there is a lease socket.
#[derive(Clone, Debug, Default)]
pub struct ListenOptions {
    /// The UDP address for RoCEv2; `None`: not offered. Port 0 binds a free port.
    pub roce: Option<SocketAddr>,
    /// Whether RoCEv2 packets must be authenticated with keys, which the lease's connection
    /// carries.
    pub roce_keyed: bool,
    /// A capture file for all RoCEv2 packets sent and received, in Wireshark's format.
    pub roce_capture: Option<PathBuf>,
    /// Whether an RDMA device is used.
    pub verbs: Verbs,
}

/// Whether an RDMA device is used.
#[derive(Clone, Debug, Default)]
pub enum Verbs {
    /// Not used.
    #[default]
    Off,
    /// Used if a usable device is found; the server starts either way.
    IfThere(VerbsOptions),
    /// Required: the server does not start without a usable device.
    Needed(VerbsOptions),
}

/// Whether a server is to offer a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// No.
    Off,
    /// If there is a usable device.
    IfThere,
    /// The server does not start without it.
    Needed,
}

/// A client's choices.
#[derive(Clone, Debug, Default)]
pub struct DialOptions {
    /// The RDMA device to use; `None`: the one that reaches the server.
    pub verbs: Option<VerbsOptions>,
}
