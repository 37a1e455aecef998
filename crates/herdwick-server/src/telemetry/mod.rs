//! What the server reports: counters, statistics, metrics, hot keys, counts by prefix, and the events
//! of `watch`.

pub(crate) mod hot;
pub(crate) mod latency;
pub(crate) mod leases;
pub(crate) mod offload;
pub(crate) mod prefixes;
pub(crate) mod snapshot;
pub(crate) mod stats;
pub(crate) mod uri;
pub(crate) mod watch;
