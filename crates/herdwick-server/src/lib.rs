//! The server: each worker has one thread, one partition and its own connections. The data path
//! shares no locks; the workers share only settings, limits and counters.
//!
//! A worker owns its partition of the store and several fronts, one for each transport: sockets for
//! memcached's protocols, and request slots in memory for HERD. Requests for another worker's
//! partition are sent to it in forwarded batches over bounded queues. [`spawn`] starts the server;
//! [`Server::shutdown`] drains and ends it.
//!
//! | folder or file | what is in it |
//! |---|---|
//! | `server`, `worker` | the start and end of the server; one worker's loop: poll, execute, sleep |
//! | `partition`, `forward`, `cross_core` | a worker's part of the keys; requests for the part of another worker |
//! | `accept`, `tls`, `unix` | listeners; TLS handshakes and streams; unix sockets of untrusted clients |
//! | `tcp`, `udp` | memcached's protocols: connections, commands, replies |
//! | `herd` | HERD at a worker: request slots polled, replies sent |
//! | `lease` | memory for clients on a fabric: granted, counted, taken back |
//! | `transports`, `memory`, `memory_file`, `file_lock` | the fabrics offered; how `-m` is divided; the file of items (`-e`); locks on files |
//! | `stats`, `counters`, `metrics` | the tables of all statistics; how requests are counted; the page for Prometheus |
//! | `watch`, `dump`, `hot`, `prefixes` | events, keys, hot keys and counts by prefix, for operators |
#![forbid(unsafe_code)]

mod accept;
mod auth;
mod config;
mod context;
mod counters;
mod cross_core;
mod dump;
mod entrances;
mod error;
mod file_lock;
mod fit;
mod forward;
mod front;
mod herd;
mod hot;
mod lease;
mod memory;
mod memory_file;
mod metrics;
mod parking;
mod partition;
mod pin;
mod prefixes;
mod readiness;
mod server;
mod spin;
mod stats;
mod stopping;
mod tcp;
mod time;
mod tls;
mod transports;
mod tuning;
mod udp;
mod unix;
mod upload_steps;
mod watch;
mod worker;

pub use auth::AuthError;
pub use config::{
    Address, Config, Interface, Leases, Listen, Offers, PORT, Protocol, SaslUsers, ShutdownHook,
    StartError, Timeouts, WORKERS_MAX,
};
pub use fit::Reduced;
pub use herdwick_herd::RequestPath;
pub use herdwick_providers::ListenOptions;
pub use lease::{LeaseNames, check_lease_directory};
pub use memory_file::{Cold, MemoryFileError, Restart};
pub use pin::Pin;
pub use server::{Server, spawn};
pub use stats::{Description, GeneralNames, Kind, Unit, WorkerNames, statistics};
pub use tls::{ClientCertificates, KeyFormat, Tls, TlsError};
pub use transports::FabricStatus;
pub use tuning::Tuning;
pub use udp::{Network, Udp};

/// Returns an empty list that reuses the memory of `list`, for items of the same type but for a
/// lifetime.
fn recycle<T, U>(mut list: Vec<T>) -> Vec<U> {
    list.clear();
    // The standard library collects in place: it reuses the memory of a `Vec` whose iterator is
    // mapped to items of the same layout. The test below holds it to that.
    list.into_iter().map(|_| unreachable!()).collect()
}

#[cfg(test)]
mod tests {
    use herdwick_mica::Request;

    use super::*;

    #[test]
    fn recycled_vec_keeps_its_allocation() {
        let list: Vec<Request<'_>> = Vec::with_capacity(100);
        let at = list.as_ptr() as usize;
        let again: Vec<Request<'_>> = recycle(list);
        assert_eq!((again.as_ptr() as usize, again.capacity()), (at, 100));
    }
}
