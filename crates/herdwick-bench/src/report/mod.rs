//! What a benchmark says: figures that never leave without what made them.

mod against;
mod cache;
mod figures;
mod histogram;
mod table;
mod traces;
mod wrap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::host::Machine;

pub use against::Against;
pub use figures::{BeforeAfter, CpuPerOp, Latency, Run};
pub use histogram::Percentiles;
pub use table::Table;

/// Version of the JSON; fields are only ever added to it.
pub const SCHEMA: u32 = 1;

/// Everything one invocation measured. `null` in JSON means: not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What made the figures.
    pub manifest: Manifest,
    /// The figures.
    pub results: Vec<Outcome>,
}

/// What made the figures of a [`Report`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Commit of the benchmark, `+changes` when built from an edited tree.
    pub commit: String,
    /// Version of the benchmark.
    pub version: String,
    /// Where it ran.
    #[serde(flatten)]
    pub machine: Machine,
    /// Fabrics measured, joined by commas.
    pub fabric: String,
    /// What kind of figures these are, joined by commas: [`Word`]s.
    pub word: String,
    /// Line round trip before the first run and after the last.
    pub line_rtt_ns: BeforeAfter,
    /// Every option, defaults resolved.
    pub knobs: Knobs,
    /// What would have been measured by default and was not, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// What a figure can be compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Word {
    /// Shared memory of one host.
    Shm,
    /// Software on ordinary hardware: sockets, a software RNIC, a bare store.
    Soft,
    /// Under virtual time.
    Sim,
    /// An RNIC.
    Hardware,
}

impl Word {
    /// As in the manifest.
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

/// Every option of a benchmark, as it was used.
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
    #[serde(default)]
    pub request_path: Option<String>,
    pub connections: Option<usize>,
    #[serde(default)]
    pub idle_connections: Option<usize>,
    pub pipeline: Option<usize>,
    pub multiget: Option<usize>,
    pub batch: Option<usize>,
    pub rate: Option<f64>,
    pub runs: usize,
    pub memory_mb: Option<u64>,
    pub trace_steps: usize,
    pub seed: u64,
    pub server_cpus: Vec<usize>,
    pub client_cpus: Vec<usize>,
}

/// One line of the report: a system on a fabric under a workload, medians over its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What was measured and how it was asked.
    #[serde(flatten)]
    pub subject: Subject,
    /// Runs of which these are the medians.
    pub runs: usize,
    /// Operations answered in a second.
    pub ops_per_s: f64,
    /// The slowest run's.
    pub ops_per_s_min: f64,
    /// The fastest run's.
    pub ops_per_s_max: f64,
    /// What the slowest of several clients had, against the mean of all.
    #[serde(default)]
    pub slowest_client: Option<f64>,
    /// Operations due in a second, in an open loop.
    pub offered_per_s: Option<f64>,
    /// Share of reads that hit.
    pub hit_ratio: Option<f64>,
    /// Share of the bytes of reads that hit.
    #[serde(default)]
    pub byte_hit_ratio: Option<f64>,
    /// Requests answered with an error, in all runs.
    pub errors: u64,
    /// Values that were not their key's, in all runs.
    pub wrong_values: u64,
    /// Requests that the server executed together.
    pub batch_mean: Option<f64>,
    /// CPU time that the server's rest cost, in milliseconds for ten seconds.
    pub idle_cpu_ms: Option<f64>,
    /// Resident memory of the server's process, the most of any run's end.
    #[serde(default)]
    pub server_rss_mb: Option<f64>,
    /// Items that the server held at the end.
    #[serde(default)]
    pub items: Option<u64>,
    /// CPU time an operation cost.
    pub cpu_ns_per_op: CpuPerOp,
    /// Line round trip around the runs.
    pub line_rtt_ns: BeforeAfter,
    /// Runs around which it moved by more than a fifth.
    pub drifted_runs: usize,
    /// What generator and check take for an operation, against a target that answers at once.
    #[serde(default)]
    pub generator_ns_per_op: Option<f64>,
    /// Its share of the time that a client has for an operation.
    #[serde(default)]
    pub generator_share: Option<f64>,
    /// Latency from the intended start.
    pub latency_us: Option<Latency>,
    /// The figures of each run.
    #[serde(default)]
    pub per_run: Vec<Run>,
    /// All latencies of all runs, in nanoseconds: `--hdr` writes them, JSON does not have them.
    #[serde(skip)]
    pub latencies_ns: Option<Histogram<u64>>,
}

/// What an [`Outcome`] is about.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "the fields are named after the command's flags"
)]
pub struct Subject {
    pub system: String,
    /// Who else was at the client's elbow.
    pub beside: Option<String>,
    pub fabric: String,
    /// A [`Word`].
    pub word: String,
    /// What the server calls itself.
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
    pub connections: Option<usize>,
    pub pipeline: Option<usize>,
    pub multiget: Option<usize>,
    /// For how much of the data set there was room, in memcached's measure.
    #[serde(default)]
    pub room_percent: Option<u64>,
    /// How much that was, in MiB.
    #[serde(default)]
    pub room_mb: Option<f64>,
}

impl Report {
    /// The JSON, indented.
    ///
    /// # Panics
    /// Never: the report holds nothing that JSON cannot.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("maps with string keys and finite shapes")
    }

    /// Whether everything read was right.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.results
            .iter()
            .all(|result| result.wrong_values == 0 && result.errors == 0)
    }
}

#[cfg(test)]
mod tests;
