//! The server: each worker has one thread, one partition of the store and its own connections. The
//! data path has one kind of lock, that of a partition; besides, the workers share settings, limits
//! and counters.
//!
//! A worker owns its partition and several front ends, one for each transport: sockets for memcached's
//! protocols, and request slots in memory for HERD. The engines HERD (items in segments) and slab (items in
//! slabs) differ in the store of a partition (`runtime/store`); the engine Clover is a front end of its own, whose
//! clients work in memory without the worker. With `serve --offload` popular keys are replicated to a secondary
//! store (hKVS), which is a server with the engine Clover: the code for it is in the file `offload` of each folder
//! concerned. A request over a socket for another worker's partition is executed at once if that partition's lock is free; else it is sent to its owner in a
//! forwarded batch, over bounded queues. [`spawn`] starts the server; [`Server::shutdown`] drains and
//! ends it.
//!
//! | folder or file | what is in it |
//! |---|---|
//! | `server` | starts and ends a server, and all its threads |
//! | `settings` | the configuration, why a start failed, values that may change at run time, the connection count and limit, LRU crawler settings and progress |
//! | `context` | what all workers share: settings, limits, users, certificates, counters that belong to no worker |
//! | `preflight` | what a start does before it opens the stores: opens the listeners and the metrics address, reads users and certificates, so that a failed start leaves the memory file as it was |
//! | `file_lock` | `flock` on a file that two servers must not share |
//! | `telemetry` | snapshots of all counters, hot keys, counts by prefix, the counters of leases and of the secondary store |
//! | `telemetry/stats` | the tables that declare every statistic, once for `stats` and for the metrics page |
//! | `telemetry/watch` | the events of `watch`, their queue in each worker, and their format |
//! | `runtime` | a worker's loop, sleep and shutdown; partitions and their locks, and the store of each engine; which keys are popular; forwarding to other workers and the encoding of a batch's replies; upload permits; LRU crawler and key dumps; clocks and CPUs |
//! | `net` | sockets: listeners, and one byte stream over TCP, TLS, a unix socket or one UDP request |
//! | `net/auth` | users and passwords (`-Y`, MEMCACHED_SASL_PWDB); SASL PLAIN and SCRAM-SHA-256; the commands of authentication are in `memcached/gate` and `memcached/sasl` |
//! | `net/tls` | certificates and their reload, handshakes, the encrypted stream |
//! | `net/udp` | the UDP sockets: memcached's frame header, one request a datagram, a reply of at most three times the request for untrusted sources |
//! | `net/unix` | unix listeners and streams; to close a descriptor that a client has sent (`SCM_RIGHTS`) may take long, so threads of their own do |
//! | `threads` | the threads besides the workers (`runtime`) and the lease manager's (`herd/lease/manager`) |
//! | `threads/accept` | the thread that accepts connections, polls the UDP sockets (`net/udp`) and deals both to the workers round-robin; the thread for TLS handshakes |
//! | `threads/metrics` | the page for Prometheus, and the thread that serves it over HTTP |
//! | `threads/event_writer` | the thread that writes events to watchers (`watch`) |
//! | `threads/offload` | the thread that keeps the secondary store up to date, as its one writing client |
//! | `memcached` | serves connections of memcached's clients in turns: runs, rounds, replies, uploads; their memory budget and timeouts, authentication, commands to the whole server (`stats`, `flush_all`, `watch`); the decoders are in `herdwick-memcache` |
//! | `herd` | the HERD front end of a worker: serves requests, executes the lease manager's commands, reopens a lost device; the fabrics' devices, opened at the start |
//! | `herd/lease` | hellos and leases: the lease socket, tokens, quotas of memory for clients on a fabric |
//! | `herd/lease/manager` | the thread that grants and revokes leases, and its commands to the workers |
//! | `clover` | the engine Clover: its data node and metadata server, as a front end of its one worker; which client may write to a secondary store; the division of `-m`. Memcached's port then stores nothing |
//! | `memory` | fits the configuration into `-m` (fewer workers, no fabrics, smaller items) and divides it; opens the stores and the memory file (`-e`); creates the lease service, the front ends of fabrics, and the parts of the replication to a secondary store |
#![forbid(unsafe_code)]

mod clover;
mod context;
mod file_lock;
mod herd;
mod memcached;
mod memory;
mod net;
mod preflight;
mod runtime;
mod server;
mod settings;
mod telemetry;
mod threads;

pub use herd::{fabrics::FabricStatus, lease::check_lease_directory};
pub use herdwick_clover::Secret;
pub use herdwick_herd::RequestPath;
pub use herdwick_hkvs::{Limits, Policy, Popularity, STALENESS_MAX, Seen};
pub use herdwick_providers::ListenOptions;
pub use herdwick_slab::Growth;
pub use memory::{
    fit_config::Reduced,
    recovery::{Cold, Restart},
};
pub use runtime::invalidator::Invalidator;
pub use server::{Server, spawn};
pub use settings::{
    WORKERS_MAX,
    auth_error::AuthError,
    config::{
        Config, CrawlerConfig, Engine, Leases, Offers, OneSidedReads, PORT, Protocol, SaslUsers,
        ShutdownHook, Timeouts,
    },
    error::StartError,
    file_error::MemoryFileError,
    latency::Latency,
    listen_address::{Address, Interface, Listen},
    offload::{Offload, PolicyChoice},
    pin::Pin,
    tls::{ClientCertificates, KeyFormat, Tls, TlsError},
    tuning::Tuning,
    udp::{Network, Udp},
};
pub use telemetry::{
    leases::LeaseNames,
    offload::OffloadNames,
    stats::{
        GeneralNames, StatisticDescription, StatisticKind, Unit, WorkerNames,
        composed_names as names, statistics,
    },
};
