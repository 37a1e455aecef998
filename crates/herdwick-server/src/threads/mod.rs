//! The threads of a server besides its workers and the lease manager's: they accept connections,
//! complete TLS handshakes, answer Prometheus, and write events to watchers.

pub(crate) mod accept;
pub(crate) mod event_writer;
pub(crate) mod metrics;
