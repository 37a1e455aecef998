//! Plain data: the configuration with its defaults and checks, the errors of a start, and the values
//! that may change while the server runs.

pub(crate) mod config;
pub(crate) mod error;
pub(crate) mod listen;
pub(crate) mod tuning;

/// Largest number of workers.
pub const WORKERS_MAX: usize = 256;
