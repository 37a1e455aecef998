//! What is run, what it yields, and why it is not possible.

use std::time::Duration;

use herdwick_fabric::ControlError;
use herdwick_herd::{RequestPath, wire::Window};
use herdwick_sim::verbs::{Outcome, Span};

/// A system that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// HERD over MICA's store.
    Herd,
    /// HERD with the request format and the pipeline of its paper; without faults alone.
    HerdPaper,
    /// FaRM-KV with values in its table.
    Farm,
    /// FaRM-KV with values outside its table.
    FarmVar,
    /// Pilaf.
    Pilaf,
    /// Clover; under faults alone.
    Clover,
}

impl System {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Herd,
        Self::HerdPaper,
        Self::Farm,
        Self::FarmVar,
        Self::Pilaf,
        Self::Clover,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Herd => "herd",
            Self::HerdPaper => "herd-paper",
            Self::Farm => "farm",
            Self::FarmVar => "farm-var",
            Self::Pilaf => "pilaf",
            Self::Clover => "clover",
        }
    }
}

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// The system.
    pub system: System,
    /// HERD: how requests reach the workers.
    pub path: RequestPath,
    /// Server cores. The servers of FaRM-KV and Pilaf have one, whatever is asked for.
    pub workers: usize,
    /// Client processes.
    pub clients: usize,
    /// Client machines, which share the clients.
    pub machines: usize,
    /// HERD: replies that a worker posts together, at most; 1 as in its paper.
    pub postlist: usize,
    /// Requests of a client under way.
    pub window: usize,
    /// Keys of 16 bytes, all stored beforehand and drawn uniformly.
    pub keys: u32,
    /// Bytes of a value: at least 8.
    pub value_bytes: usize,
    /// PUTs among a hundred requests.
    pub put_percent: u8,
    /// Of the network and the load.
    pub seed: u64,
    /// How long, in virtual time.
    pub span: Span,
}

impl Default for Run {
    /// HERD as in section 5.1 of its paper, with fewer keys.
    fn default() -> Self {
        Self {
            system: System::Herd,
            path: RequestPath::UcWrite,
            workers: 6,
            clients: 51,
            machines: 17,
            postlist: 1,
            window: 4,
            keys: 1 << 16,
            value_bytes: 32,
            put_percent: 5,
            seed: 1,
            span: Span::default(),
        }
    }
}

/// An answer in the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Answered {
    /// When it came, after the beginning of the measured time.
    pub at: Duration,
    /// How long the request took, in nanoseconds.
    pub took_ns: u64,
}

/// What a run yields.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Rate, latencies and hash.
    pub outcome: Outcome,
    /// The answers, in the order in which they came.
    pub answers: Vec<Answered>,
    /// Share of the time that each server core served requests, of 1.
    pub busy: Vec<f64>,
    /// Requests that were answered in the measured time.
    pub answered: u64,
    /// And in the second half of it.
    pub late: u64,
    /// Requests that ended without an answer, or with another than the load expects.
    pub failed: u64,
    /// Replies that a full send queue refused; each client asks again when its time is up.
    pub refused: u64,
}

impl Report {
    /// By how much the rate of the second half of the measured time is above that of the first, in percent: a
    /// steady state changes by less than 2.
    #[must_use]
    pub fn drift_percent(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 requests")]
        let [early, late] = [self.answered - self.late, self.late].map(|count| count as f64);
        100.0 * (late / early.max(1.0) - 1.0)
    }
}

/// Why a run is not possible.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A number is out of range.
    #[error("{what} is from {min} to {max}")]
    Range {
        /// Which.
        what: &'static str,
        /// Least value.
        min: usize,
        /// Largest value.
        max: usize,
    },
    /// The window is none of HERD's.
    #[error("the window is a power of two from 1 to {max}", max = Window::MAX)]
    Window,
    /// The profile names one of its clients that there is not.
    #[error(transparent)]
    Profile(#[from] herdwick_sim::ProfileError),
    /// An object of a port cannot be made.
    #[error("setting up a port: {0}")]
    Control(#[from] ControlError),
    /// HERD's objects cannot be made.
    #[error("setting up HERD: {0}")]
    Herd(#[from] herdwick_herd::SetupError),
    /// The objects of HERD as in its paper cannot be made.
    #[error("setting up HERD as in its paper: {0}")]
    HerdPaper(#[from] herdwick_herd::paper::PaperSetupError),
    /// HERD's store cannot be made.
    #[error("making a store: {0}")]
    Store(#[from] herdwick_mica::StoreError),
    /// FaRM-KV's objects cannot be made.
    #[error("setting up FaRM-KV: {0}")]
    Farm(#[from] herdwick_farm::SetupError),
    /// The keys do not fit FaRM-KV's table.
    #[error("storing the keys: {0}")]
    FarmFull(#[from] herdwick_farm::PutError),
    /// Pilaf's objects cannot be made.
    #[error("setting up Pilaf: {0}")]
    Pilaf(#[from] herdwick_pilaf::SetupError),
    /// The keys do not fit Pilaf's table.
    #[error("storing the keys: {0}")]
    PilafFull(#[from] herdwick_pilaf::PutError),
    /// Clover's objects cannot be made.
    #[error("setting up Clover: {0}")]
    Clover(#[from] herdwick_clover::SetupError),
    /// Clover's metadata server did not get ready.
    #[error("Clover's metadata server does not start")]
    CloverStart,
    /// The system is run under faults, not measured.
    #[error("clover runs under faults, and is not measured: add --faults all")]
    FaultsAlone,
    /// The system is measured, not run under faults.
    #[error(
        "herd-paper is measured, and does not run under faults: its clients repeat no request; give herd"
    )]
    NoFaults,
}

impl RunError {
    /// The error of the first value that is not within its least and largest one, each with its name.
    pub(crate) fn unless_within(
        values: &[(&'static str, usize, usize, usize)],
    ) -> Result<(), Self> {
        let outside = values
            .iter()
            .find(|(_, value, min, max)| !(min..=max).contains(&value));
        match outside {
            Some(&(what, _, min, max)) => Err(Self::Range { what, min, max }),
            None => Ok(()),
        }
    }
}
