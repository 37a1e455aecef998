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
//! | `settings` | the configuration, errors of a start, values that may change at run time, the connection limit |
//! | `context` | what all workers share: settings, limits, users, certificates, counters that belong to no worker |
//! | `listeners` | opens the listeners and the metrics address, and reads users and certificates, before the stores |
//! | `file_lock` | `flock` on a file that two servers must not share |
//! | `telemetry` | counters, `stats`, the page for Prometheus, hot keys, counts by prefix, `watch` |
//! | `runtime` | a worker's loop, sleep and shutdown; partitions and their locks; forwarding to other workers; upload permits; LRU crawler and key dumps; clocks and CPUs |
//! | `net` | sockets: listeners, and one byte stream over TCP, TLS and unix sockets |
//! | `net/accept` | the thread that accepts connections and receives datagrams, the thread for TLS handshakes |
//! | `net/auth` | users; SASL PLAIN and SCRAM-SHA-256 |
//! | `net/tls` | certificates and their reload, handshakes, the encrypted stream |
//! | `net/udp` | memcached over UDP, with a limit on amplification |
//! | `net/unix` | unix listeners and streams; descriptors that a client sends (`SCM_RIGHTS`) cannot block a thread |
//! | `memcached` | connections of memcached's clients and their memory budget, operators' commands; the decoders are in `herdwick-memcache` |
//! | `herd` | the HERD front end of a worker and the leases that it holds resources for; the fabrics offered |
//! | `herd/lease` | hellos and leases: memory for clients on a fabric; in `manager`, the thread that grants and revokes leases |
//! | `memory` | how `-m` is divided, and what a start builds in it: stores, lease service, HERD front ends; the memory file (`-e`) |
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
