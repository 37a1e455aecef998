//! The machine: its description, the placement of threads, CPU time, and the latency between its
//! cores.

mod cpus;
mod line;
mod machine;
mod time;

pub(crate) use cpus::{Placement, allowed_cpus, pin};
pub(crate) use line::{LineRtt, line_rtt};
pub use machine::Machine;
pub(crate) use time::{ProcessCpu, Stopwatch, thread_cpu_ns};
