//! Leases: how a client is given memory, and how the server takes it back.
//!
//! The lease manager runs on a thread of its own. Clients connect to it by a unix socket in a
//! private directory, or by a connection to the memcached port that begins with a claim. It
//! verifies claims ([`herdwick_herd::hello`]), has every worker allocate memory for the client, and
//! passes the file descriptors, if there are any. The socket is the lease: when it closes, or no
//! heartbeat arrives in time, the workers take the memory back at the end of a pass. The lease
//! manager names no provider; what a worker grants is an opaque ticket.

mod client;
mod counters;
mod manager;
mod service;
mod shares;
mod slot;
mod socket;
mod tokens;

pub use counters::LeaseNames;
pub(crate) use counters::{LEASES, LeaseCounters};
pub(crate) use manager::{LeaseChannels, LeaseConfig, LeaseManager, WAKER, WorkerLink};
pub(crate) use service::{Closing, Host, LeaseService, WorkerEnd};
pub(crate) use slot::{Arrival, ConnectionSlot};
pub(crate) use socket::LeaseSocket;
pub use socket::check_lease_directory;
pub(crate) use tokens::Tokens;

use std::{net::IpAddr, os::fd::OwnedFd};

use herdwick_herd::{
    RequestPath,
    hello::{Refusal, WorkerAccept, WorkerGrant},
};
use herdwick_providers::Fabric;

/// Identifies a lease for the life of the server; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseId(pub(crate) u64);

/// The fabric and request path of a lease. A token encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) fabric: Fabric,
    pub(crate) path: RequestPath,
}

/// The terms of a lease, the same at each worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The epoch in every request slot and reply; never 0.
    pub(crate) epoch: u16,
    /// Number of slots: a power of two.
    pub(crate) window: u16,
    /// Largest reply payload in bytes.
    pub(crate) reply_bytes_max: u32,
    pub(crate) path: RequestPath,
    /// The host that the client connected from; `None`: this host.
    pub(crate) host: Option<IpAddr>,
}

/// An order of the lease manager to a worker.
#[derive(Debug)]
pub(crate) enum Order {
    /// Allocate memory and queue pairs.
    Grant(LeaseId, Terms),
    /// Connect them with the client's, and start polling.
    Connect(LeaseId, WorkerAccept),
    /// Stop polling and release everything.
    Revoke(LeaseId),
}

/// A worker's answer; the channel adds the worker's index.
#[derive(Debug)]
pub(crate) enum Answer {
    /// To [`Order::Grant`]; `None`: the worker failed, and holds nothing.
    Granted(LeaseId, Option<Box<(WorkerGrant, Vec<OwnedFd>)>>),
    /// To [`Order::Connect`]; an error: the endpoints are malformed, or the server failed.
    Connected(LeaseId, Result<(), Refusal>),
    /// Unsolicited: the device or queue pair of this lease was lost.
    Lost(LeaseId),
    /// To [`Order::Revoke`]: the lease is not served any more, and its memory is released.
    Revoked(LeaseId),
}
