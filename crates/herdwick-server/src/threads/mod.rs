//! The threads of a server besides its workers, the lease manager's and those that close unix sockets
//! (`net/unix/closers`): they accept connections, complete TLS handshakes, answer Prometheus, write
//! events to watchers, and keep the secondary store up to date (hKVS). `server.rs` starts them.

pub(crate) mod accept;
pub(crate) mod event_writer;
pub(crate) mod metrics;
pub(crate) mod offload;
