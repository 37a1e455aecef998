//! Leases: how a client is given memory, and how the server takes it back.
//!
//! The lease manager runs on a thread of its own. Clients connect to it by a unix socket in a
//! private directory, or by a connection to the memcached port that begins with a claim. It
//! verifies claims ([`herdwick_herd::hello`]), has every worker allocate memory for the client, and
//! passes the file descriptors, if there are any. The socket is the lease: when it closes, or no
//! heartbeat arrives in time, each worker stops serving the lease at the start of its next whole pass, and
//! reports when the memory is released. The lease manager names no provider; what a worker grants is an
//! opaque ticket.

mod commands;
mod manager;
mod port_claim;
mod quota;
mod service;
mod socket;
mod tokens;

#[cfg(test)]
pub(crate) use commands::command_channel;
pub(crate) use commands::{LeaseAnswer, LeaseCommand, LeaseId, LeaseKind, Terms, WorkerEnd};
pub(crate) use manager::{LeaseChannels, LeaseConfig, LeaseManager, WAKER, WorkerLink};
pub(crate) use port_claim::{CountedConnection, LeaseArrival};
pub(crate) use service::{Closing, Greeting, HelloResponder, LeaseService, Offered};
pub(crate) use socket::LeaseListener;
pub use socket::check_lease_directory;
pub(crate) use tokens::LeaseTokens;
