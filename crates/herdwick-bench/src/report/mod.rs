//! Reports of benchmarks: figures together with the machine and the options that produced them.
//!
//! Circular import with `figures`: a report contains the figures, and the figures are put together to an
//! outcome of a report.

mod against;
mod cache;
mod figures;
mod histogram;
mod numbers;
mod point;
mod table;
mod traces;
mod verb;
mod wrap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::host::Machine;

pub use against::Against;
pub use figures::{BeforeAfter, CpuPerOp, Latency, Run};
pub use histogram::Percentiles;
pub use point::VerbPoint;
pub use table::Table;

/// Version of the JSON format; fields are only ever added.
pub const SCHEMA: u32 = 1;

/// All results of one invocation. `null` in JSON means: not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The machine and the options.
    pub manifest: Manifest,
    /// The figures.
    pub results: Vec<Outcome>,
}

/// The machine and the options that produced the figures of a [`Report`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Commit of the benchmark, `+changes` when built from an edited tree.
    pub commit: String,
    /// Version of the benchmark.
    pub version: String,
    /// The machine.
    #[serde(flatten)]
    pub machine: Machine,
    /// Fabrics measured, joined by commas.
    pub fabric: String,
    /// Classes of the figures, joined by commas: [`FigureClass`]s.
    pub word: String,
    /// Cache-line round trip before the first run and after the last.
    pub line_rtt_ns: BeforeAfter,
    /// Every option, with defaults resolved.
    pub knobs: Knobs,
    /// What the defaults would have measured but did not, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// The class of a figure; figures of different classes are not comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FigureClass {
    /// Shared memory of one host.
    Shm,
    /// Software on ordinary hardware: sockets, a software RNIC, a bare store.
    Soft,
    /// Simulation under virtual time.
    Sim,
    /// An RNIC.
    Hardware,
}

impl FigureClass {
    /// Returns its name in the manifest.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Soft => "soft",
            Self::Sim => "sim",
            Self::Hardware => "hardware",
        }
    }
}

/// Every option of a benchmark, with the value that was used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "named after the command's flags, which explain themselves in --help"
)]
pub struct Knobs {
    pub server: Option<String>,
    pub workload: String,
    pub get_share: f64,
    pub dist: String,
    pub keys: u64,
    pub key_size: usize,
    pub value_size: usize,
    pub seconds: f64,
    pub warmup_seconds: f64,
    pub clients: Option<usize>,
    pub workers: Option<usize>,
    pub window: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline_below: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<usize>,
    #[serde(default)]
    pub request_path: Option<String>,
    pub connections: Option<usize>,
    #[serde(default)]
    pub idle_connections: Option<usize>,
    pub pipeline: Option<usize>,
    pub multiget: Option<usize>,
    pub batch: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<bool>,
    pub rate: Option<f64>,
    pub runs: usize,
    pub memory_mb: Option<u64>,
    pub trace_steps: usize,
    pub seed: u64,
    pub server_cpus: Vec<usize>,
    pub client_cpus: Vec<usize>,
}

/// One line of the report: a system on a fabric under a workload; medians over its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What was measured, and under which load.
    #[serde(flatten)]
    pub subject: Subject,
    /// Number of runs.
    pub runs: usize,
    /// Operations answered per second.
    pub ops_per_s: f64,
    /// The same, of the slowest run.
    pub ops_per_s_min: f64,
    /// The same, of the fastest run.
    pub ops_per_s_max: f64,
    /// Rate of the slowest of several clients, relative to the mean of all.
    #[serde(default)]
    pub slowest_client: Option<f64>,
    /// Operations due per second, in an open loop.
    pub offered_per_s: Option<f64>,
    /// Share of reads that hit.
    pub hit_ratio: Option<f64>,
    /// Share of the bytes of reads that hit.
    #[serde(default)]
    pub byte_hit_ratio: Option<f64>,
    /// Requests answered with an error, in all runs.
    pub errors: u64,
    /// Values that did not belong to the key that was read, in all runs.
    pub wrong_values: u64,
    /// Mean number of requests that the server executed in a batch.
    pub batch_mean: Option<f64>,
    /// CPU time of the server at rest, in milliseconds per ten seconds.
    pub idle_cpu_ms: Option<f64>,
    /// Resident memory of the server's process, MiB: the largest value at the end of a run.
    #[serde(default)]
    pub server_rss_mb: Option<f64>,
    /// Items that the server held at the end.
    #[serde(default)]
    pub items: Option<u64>,
    /// CPU time per operation.
    pub cpu_ns_per_op: CpuPerOp,
    /// Cache-line round trip before and after the runs.
    pub line_rtt_ns: BeforeAfter,
    /// Runs during which the round trip changed by more than a fifth.
    pub drifted_runs: usize,
    /// Nanoseconds per operation of generator and check, against a target that answers at once.
    #[serde(default)]
    pub generator_ns_per_op: Option<f64>,
    /// Its share of the time that a client has per operation.
    #[serde(default)]
    pub generator_share: Option<f64>,
    /// READs that a GET took, where clients GET by READs.
    #[serde(default)]
    pub reads_per_get: Option<f64>,
    /// Bytes that those READs asked for, a GET.
    #[serde(default)]
    pub read_bytes_per_get: Option<f64>,
    /// Nanoseconds that the checksums of those READs take, of a system that has them.
    #[serde(default)]
    pub checksum_ns_per_get: Option<f64>,
    /// Latency from the intended start.
    pub latency_us: Option<Latency>,
    /// The figures of each run.
    #[serde(default)]
    pub per_run: Vec<Run>,
    /// Latencies of all runs, in nanoseconds. `--hdr` writes them; the JSON does not contain them.
    #[serde(skip)]
    pub latencies_ns: Option<Histogram<u64>>,
}

/// The subject of an [`Outcome`]: what was measured, under which load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "the fields are named after the command's flags"
)]
pub struct Subject {
    pub system: String,
    /// The neighbour on the same host: `scribbler`, `spinner`, or `crowd` (idle connections).
    pub beside: Option<String>,
    pub fabric: String,
    /// A [`FigureClass`].
    pub word: String,
    /// Version that the server reports.
    pub server: Option<String>,
    pub workload: String,
    pub get_share: f64,
    pub dist: String,
    pub keys: u64,
    pub key_bytes: usize,
    pub value_bytes: usize,
    pub workers: Option<usize>,
    pub clients: usize,
    pub window: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<usize>,
    pub connections: Option<usize>,
    pub pipeline: Option<usize>,
    pub multiget: Option<usize>,
    /// The verb and how it was posted, in a benchmark of verbs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verb: Option<VerbPoint>,
    /// Memory, in percent of the data set (by memcached's estimate of item sizes, or of the peak
    /// size of the trace).
    #[serde(default)]
    pub room_percent: Option<u64>,
    /// Memory that the cache was given, in MiB.
    #[serde(default)]
    pub room_mb: Option<f64>,
}

impl Report {
    /// Returns the report as indented JSON.
    ///
    /// # Panics
    /// Never: the report holds nothing that JSON cannot.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("maps with string keys and finite shapes")
    }

    /// Returns whether no request failed and every value was right.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.results
            .iter()
            .all(|result| result.wrong_values == 0 && result.errors == 0)
    }
}

#[cfg(test)]
mod tests;
