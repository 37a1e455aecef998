//! What is asked for: keys, values, their distribution, the mix, and the order of it all, decided
//! before the first request so that a client at full speed only reads it.

mod keys;
mod mix;
mod rng;
mod trace;
mod zipf;

pub use keys::{KeySpace, KeySpaceError};
pub use mix::{Dist, DistError, Mix, Workload};
pub use rng::Rng;
pub use trace::{KEYS_MAX, Step, TRACE_STEPS, Trace};
pub use zipf::Zipf;
