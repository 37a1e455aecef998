//! Leases: how a client comes by memory, and how the server takes it back.
//!
//! The lease manager is a thread of its own. Clients come to it by a unix socket in a private
//! directory, or by a connection to the memcached port that begins with a claim. It takes claims
//! ([`herdwick_herd::hello`]), has every worker make memory for the client, and hands the file
//! descriptors over, if there are any. The socket is the lease: when it closes, or no heartbeat
//! comes in time, the workers take the memory back at the end of a pass. The lease manager names no
//! provider; what a worker grants is an opaque ticket.

mod client;
mod counters;
mod handshake;
mod manager;
mod service;
mod shares;
mod slot;
mod socket;
mod tokens;

pub(crate) use counters::LeaseCounters;
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

/// Names a lease for the life of the server; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseId(pub(crate) u64);

/// Numbers the fabrics that leases are for; [`crate::transports`] knows their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FabricId(pub(crate) usize);

/// What a lease is for. A token says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) fabric: FabricId,
    pub(crate) path: RequestPath,
}

/// What a client gets at each worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// In every line and reply; never 0.
    pub(crate) epoch: u16,
    /// Slots: a power of two.
    pub(crate) window: u16,
    /// Largest reply payload.
    pub(crate) reply_bytes_max: u32,
    pub(crate) path: RequestPath,
    /// The host that the client came from, unless this one.
    pub(crate) host: Option<IpAddr>,
}

/// What the lease manager asks of a worker.
#[derive(Debug)]
pub(crate) enum Order {
    /// Make memory and queue pairs.
    Grant(LeaseId, Terms),
    /// Connect them with the client's, and begin to poll.
    Connect(LeaseId, WorkerAccept),
    /// Take everything back.
    Revoke(LeaseId),
}

/// What a worker answers; the channel carries it with the worker's index.
#[derive(Debug)]
pub(crate) enum Answer {
    /// To [`Order::Grant`]; `None`: the worker could not, and holds nothing.
    Granted(LeaseId, Option<Box<(WorkerGrant, Vec<OwnedFd>)>>),
    /// To [`Order::Connect`]: refused are endpoints that make no sense, or the server's own
    /// failure.
    Connected(LeaseId, Result<(), Refusal>),
    /// Unasked: the device is lost under this lease.
    Lost(LeaseId),
    /// To [`Order::Revoke`]: the lease is out of service, and its pages are free.
    Revoked(LeaseId),
}
