//! The server: one thread, one partition and one set of connections per worker, nothing shared.
//!
//! A worker owns its partition of the store and several fronts, the transports: sockets that speak
//! memcached, and request lines in memory. Keys that another worker owns travel to it in forwarded
//! batches over bounded queues. [`spawn`] starts it all; [`Server::shutdown`] drains it.
#![forbid(unsafe_code)]

mod accept;
mod auth;
mod config;
mod context;
mod counters;
mod cross_core;
mod dump;
mod error;
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
    Address, Config, Interface, Leases, Listen, Offers, PORT, Protocol, ShutdownHook, StartError,
    Timeouts, Verbs, WORKERS_MAX,
};
pub use fit::Reduced;
pub use herdwick_herd::RequestPath;
pub use lease::check_lease_directory;
pub use memory_file::{Cold, MemoryFileError, Restart};
pub use pin::Pin;
pub use server::{Server, spawn};
pub use tls::{ClientCertificates, KeyFormat, Tls, TlsError};
pub use transports::{DeviceSelector, UDP_PORT as ROCE_PORT, VerbsOptions, VerbsStatus};
pub use tuning::Tuning;
pub use udp::{Network, Udp};

/// An empty list in the memory of `list`, for items of the same type but for a lifetime.
fn recycle<T, U>(mut list: Vec<T>) -> Vec<U> {
    list.clear();
    // Collected in place: the standard library reuses the memory of a `Vec` whose iterator it
    // maps to items of the same layout.
    list.into_iter().map(|_| unreachable!()).collect()
}

#[cfg(test)]
mod tests {
    use herdwick_mica::Request;

    use super::*;

    #[test]
    fn recycling_keeps_the_memory() {
        let list: Vec<Request<'_>> = Vec::with_capacity(100);
        let at = list.as_ptr() as usize;
        let again: Vec<Request<'_>> = recycle(list);
        assert_eq!((again.as_ptr() as usize, again.capacity()), (at, 100));
    }
}
