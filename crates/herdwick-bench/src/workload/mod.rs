//! The workload: keys, values, their distribution, the mix, and the order of requests, all decided
//! before the first request so that a client at full speed only reads them.

mod keys;
mod mix;
mod partitions;
mod trace;
mod zipf;

pub(crate) use keys::KeySpace;
pub use keys::KeySpaceError;
pub use mix::{Dist, DistError, Mix, Workload};
pub use partitions::partition_shares;
pub(crate) use trace::{Step, TRACE_STEPS, Trace};
pub(crate) use zipf::Zipf;
