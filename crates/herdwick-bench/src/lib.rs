//! Load, measurement and report: how fast the store, the fabrics and whole servers are, told with
//! everything that made the figures.
//!
//! [`compare()`] measures ways into one server: it starts one (or finds one), stores the keys, and
//! lets clients on CPUs of their own ask for them over each fabric in turn, beside an echo that
//! stores nothing if asked to. [`store()`] measures the store alone, [`cache()`]
//! what a server keeps beside what memcached does. All give a [`Report`]; [`Table`] shows it.
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

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Options that cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No server.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// Too many idle connections for this process.
    #[error(
        "--idle-connections needs {needed} descriptors, and this process may have {limit}: raise \
         it (ulimit -Hn), or ask for fewer"
    )]
    Descriptors {
        /// How many it would have.
        needed: u64,
        /// How many it may have.
        limit: u64,
    },
    /// No trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The way to the server broke.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// The server did not take the keys.
    #[error(
        "the server refused to store {refused} of {keys} keys: give it more memory (-m), or ask for fewer --keys"
    )]
    Fill {
        /// How many it refused.
        refused: u64,
        /// Of how many.
        keys: u64,
    },
    /// The server stopped answering while the keys were stored.
    #[error("the server stopped answering after it had stored {answered} keys")]
    Stalled {
        /// How many it had stored.
        answered: u64,
    },
    /// The bare store does not fit.
    #[error(transparent)]
    Store(#[from] herdwick_mica::StoreError),
    /// HERD's objects could not be made.
    #[error(transparent)]
    Rig(#[from] EndpointError),
    /// The server does not offer that fabric.
    #[error("no {fabric} to this server: {reason}; `herdwick doctor` says what works on this host")]
    NoTransport {
        /// The fabric.
        fabric: Fabric,
        /// What happened.
        reason: String,
    },
    /// A client thread ended without a word.
    #[error("a client thread panicked; its words stand above")]
    Panicked,
}

/// How far it is, for a line that is written over.
#[derive(Clone, Debug)]
pub struct Progress {
    /// What is being done.
    pub what: String,
    /// Operations answered so far.
    pub operations: u64,
    /// Seconds since it began.
    pub seconds: f64,
    /// Operations it will take, where that is known.
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
