//! What is measured of how long requests take.

use std::time::Duration;

/// What is measured of how long requests take: by default nothing, which costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Histograms by transport and command, for `stats latency` and metrics.
    pub histograms: bool,
    /// Requests that take at least this long are counted, and shown by `watch slow`; `None`: none.
    pub slow: Option<Duration>,
}
