//! The server: each worker has one thread, one partition of the store and its own connections. The
//! data path has one kind of lock, that of a partition; besides, the workers share settings, limits
//! and counters.
//!
//! A worker owns its partition and several front ends, one for each transport: sockets for memcached's
//! protocols, and request slots in memory for HERD. A request over a socket for another worker's
//! partition is executed in place if that partition's lock is free; else it is sent to its owner in a
//! forwarded batch, over bounded queues. [`spawn`] starts the server; [`Server::shutdown`] drains and
//! ends it.
//!
//! | folder or file | what is in it |
//! |---|---|
//! | `server` | the start and the end of a server |
//! | `settings` | plain data: configuration, errors of a start, values that may change at run time |
//! | `context` | what all workers share: settings, limits, users, certificates, counters |
//! | `listeners`, `file_lock` | what a start opens before the stores; the lock on a file that two servers must not share |
//! | `telemetry` | counters, `stats`, the page for Prometheus, hot keys, counts by prefix, `watch` |
//! | `runtime` | a worker's loop and its partition; requests for the partition of another worker |
//! | `net` | listeners, accepting, TLS, memcached's datagrams, users and passwords; in `unix`, the defence against descriptors that clients send over a unix socket |
//! | `memcached` | connections of memcached's clients; the decoders are in `herdwick-memcache` |
//! | `herd` | HERD at a worker; hellos and leases: memory for clients on a fabric; the fabrics offered |
//! | `memory` | how `-m` is divided; the file of items (`-e`) |
#![forbid(unsafe_code)]

mod context;
mod file_lock;
mod herd;
mod listeners;
mod memcached;
mod memory;
mod net;
mod runtime;
mod server;
mod settings;
mod telemetry;

pub use herd::{fabrics::FabricStatus, lease::check_lease_directory};
pub use herdwick_herd::RequestPath;
pub use herdwick_mica::StoreKind;
pub use herdwick_providers::ListenOptions;
pub use memory::{
    fit::Reduced,
    restart::{Cold, Restart},
};
pub use server::{Server, spawn};
pub use settings::{
    WORKERS_MAX,
    auth_error::AuthError,
    config::{
        Config, CrawlerConfig, Leases, Offers, PORT, Protocol, SaslUsers, ShutdownHook, Timeouts,
    },
    error::StartError,
    file_error::MemoryFileError,
    listen::{Address, Interface, Listen},
    network::{Network, Udp},
    pin::Pin,
    tls::{ClientCertificates, KeyFormat, Tls, TlsError},
    tuning::Tuning,
};
pub use telemetry::{
    leases::LeaseNames,
    stats::{GeneralNames, StatisticDescription, StatisticKind, Unit, WorkerNames, statistics},
};
