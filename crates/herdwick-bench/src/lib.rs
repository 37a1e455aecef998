//! Load, measurement and report for `herdwick bench`: the speed of the store, the fabrics and whole
//! servers, each figure with the host and the options that produced it.
//!
//! [`compare()`] measures the fabrics of one server: it starts a server (or uses a running one),
//! stores the keys, and lets clients on their own CPUs request them over each fabric in turn,
//! beside an echo that stores nothing if that is configured. [`store()`] measures the store alone;
//! [`cache()`] measures hit ratio and memory beside memcached; [`idle()`] measures an idle
//! server. All return a [`Report`]; [`Table`] formats it. Folders: `workload` (keys and requests),
//! `lines` and `tcp` (load), `host` (CPUs and clocks), `report`.
#![forbid(unsafe_code)]

mod cache;
mod compare;
mod config;
mod cost;
mod counters;
mod crowd;
mod host;
mod hostile;
mod idle;
mod lines;
mod measure;
mod pace;
mod remote;
mod replies;
mod report;
mod server;
mod store;
mod target;
mod tcp;
mod workload;

use std::fmt;

pub use cache::{TraceError, cache};
pub use compare::compare;
pub use config::{
    Config, ConfigError, CountError, Fabric, FabricError, SEED, System, parse_count, parse_size,
};
pub use host::Machine;
pub use hostile::{LeaseError, Neighbour, neighbour};
pub use idle::{IDLE_CONNECTIONS, IDLE_SESSIONS, idle};
pub use lines::EndpointError;
pub use report::{
    Against, BeforeAfter, CpuPerOp, Knobs, Latency, Manifest, Outcome, Percentiles, Report, Run,
    SCHEMA, Subject, Table, Word,
};
pub use server::ServerError;
pub use store::store;
pub use target::DriveError;
pub use workload::{Dist, DistError, KeySpaceError, Mix, Workload};

/// Why a measurement returned no report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Invalid options.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server did not start or did not answer.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// More idle connections than this process may have descriptors.
    #[error(
        "--idle-connections needs {needed} descriptors, and this process may have {limit}: raise \
         it (ulimit -Hn), or ask for fewer"
    )]
    Descriptors {
        /// Descriptors needed.
        needed: u64,
        /// Hard limit of descriptors.
        limit: u64,
    },
    /// A trace could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The connection to the server failed during the load.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// The server refused to store some of the keys.
    #[error(
        "the server refused to store {refused} of {keys} keys: give it more memory (-m), or ask for fewer --keys"
    )]
    Fill {
        /// Keys refused.
        refused: u64,
        /// Keys in total.
        keys: u64,
    },
    /// The server stopped answering while the keys were stored.
    #[error("the server stopped answering after it had stored {answered} keys")]
    Stalled {
        /// Keys stored until then.
        answered: u64,
    },
    /// The bare store does not fit into its memory.
    #[error(transparent)]
    Store(#[from] herdwick_mica::StoreError),
    /// The HERD endpoints of the echo or of a lease could not be created.
    #[error(transparent)]
    Endpoints(#[from] EndpointError),
    /// The server does not offer that fabric.
    #[error("no {fabric} to this server: {reason}; `herdwick doctor` says what works on this host")]
    NoTransport {
        /// The fabric.
        fabric: Fabric,
        /// Why not.
        reason: String,
    },
    /// A client thread panicked; its message is on standard error.
    #[error("a client thread panicked; its words stand above")]
    Panicked,
}

/// Progress of a measurement, for a status line that is overwritten in place.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The current step.
    pub what: String,
    /// Operations answered so far.
    pub operations: u64,
    /// Seconds since the step began.
    pub seconds: f64,
    /// Operations that the step takes in total, if known.
    pub of: Option<u64>,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kilo = self.operations as f64 / self.seconds.max(1e-9) / 1000.0;
        write!(f, "{}: {:.1} s, {kilo:.0} kops/s", self.what, self.seconds)?;
        match self.of {
            Some(of) if of > 0 => write!(f, ", {} %", self.operations * 100 / of),
            _ => Ok(()),
        }
    }
}
