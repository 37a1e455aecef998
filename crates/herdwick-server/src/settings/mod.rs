//! The configuration with its defaults and checks, the errors of a start, the values that may change
//! while the server runs, the connection limit, and the state of a crawl.

pub(crate) mod auth_error;
pub(crate) mod config;
pub(crate) mod connections;
pub(crate) mod crawler;
pub(crate) mod error;
pub(crate) mod file_error;
pub(crate) mod invalidation;
pub(crate) mod latency;
pub(crate) mod listen_address;
pub(crate) mod member_fence;
pub(crate) mod offload;
pub(crate) mod pin;
pub(crate) mod tls;
pub(crate) mod tuning;
pub(crate) mod udp;

/// Largest number of workers.
pub const WORKERS_MAX: usize = 256;
