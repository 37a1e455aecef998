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
mod design;
mod error;
mod guard;
mod helper;
mod host;
mod hostile;
mod idle;
mod in_process;
mod lines;
mod measure;
mod messages;
mod names;
mod pace;
mod progress;
mod remote;
mod replies;
mod report;
mod server;
mod store;
mod study;
mod system;
mod target;
mod tcp;
mod verb;
mod workload;

pub use cache::{TraceError, cache};
pub use compare::{COMMIT, compare};
pub use config::{
    Config, ConfigError, CountError, Fabric, FabricError, SEED, parse_count, parse_size,
};
pub use design::{Design, DesignError, DesignPlan, Level, design};
pub use error::BenchError;
pub use guard::guard;
pub use herdwick_fabric::Transport as VerbTransport;
pub use host::Machine;
pub use hostile::{HostileLeaseError, Neighbour, neighbour};
pub use idle::{IDLE_CONNECTIONS, IDLE_SESSIONS, idle};
pub use lines::EndpointError;
pub use names::NameError;
pub use progress::Progress;
pub use report::{
    Against, BeforeAfter, CpuPerOp, FigureClass, Knobs, Latency, Manifest, Outcome, Percentiles,
    Report, Run, SCHEMA, Subject, Table, VerbPoint,
};
pub use server::ServerError;
pub use store::store;
pub use system::{EmulatedSystem, FarmValues, System};
pub use target::DriveError;
pub use verb::{Direction, Verb, VerbError, VerbPlan, parse_transport, parse_yes, verb};
pub use workload::{Dist, DistError, KeySpaceError, Mix, Workload, partition_shares};
