//! The verbs alone on a profile, as in the microbenchmarks of the HERD paper (its Figures 2 to 6):
//! what a model is calibrated by.
//!
//! [`Flood`] has one side issue a verb as fast as it can; [`Echo`] has clients send requests that
//! servers return. [`calibration_points`] returns the points of papers that a profile is fitted to; [`fit_profile`] fits it.

mod calibration;
mod echo;
mod ends;
mod fit;
mod flood;

pub use calibration::{CALIBRATED, CalibrationPoint, Parameter, calibration_points};
pub use echo::{Echo, Way};
pub use fit::{Fitted, Search, fit_profile};
pub use flood::{Direction, Flood, FloodVerb};

use std::time::Duration;

use herdwick_fabric::{ConnectError, ControlError, OpenError, PostError};

use crate::{Cpu, Process, Profile, ProfileError, Scheduler, SeededNetwork};

/// How long a point runs, in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Before it is measured.
    pub warm_up: Duration,
    /// While it is measured.
    pub measured: Duration,
}

impl Default for Span {
    fn default() -> Self {
        Self {
            warm_up: Duration::from_micros(200),
            measured: Duration::from_micros(300),
        }
    }
}

/// What a point yields.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// 10^6 operations a second.
    pub mops: f64,
    /// Time from a request to its reply, for each reply in the measured time, sorted; in
    /// nanoseconds. Empty where nothing is returned.
    pub latencies: Vec<u64>,
    /// Hash of all events.
    pub trace: u64,
    /// Number of events.
    pub events: u64,
}

impl Outcome {
    /// Mean time from a request to its reply, in nanoseconds; 0 where nothing is returned.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        let count = u64::try_from(self.latencies.len()).unwrap_or(u64::MAX);
        self.latencies.iter().sum::<u64>() / count.max(1)
    }

    /// The time that `percent` of the replies need at most, in nanoseconds.
    #[must_use]
    pub fn percentile_ns(&self, percent: usize) -> u64 {
        let last = self.latencies.len().saturating_sub(1);
        let index = last * percent.min(100) / 100;
        self.latencies.get(index).copied().unwrap_or(0)
    }
}

/// Why a point cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The profile names one of its clients that there is not.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// It has no thread on one side, no window or no payload.
    #[error("servers, clients, machines, window and payload are at least 1")]
    Empty,
    /// A port cannot be opened.
    #[error("opening a port: {0}")]
    Open(#[from] OpenError),
    /// An object cannot be made.
    #[error("setting up a port: {0}")]
    Control(#[from] ControlError),
    /// Queue pairs cannot be connected.
    #[error("connecting: {0}")]
    Connect(#[from] ConnectError),
    /// The verb, its transport or its payload is not allowed.
    #[error("posting: {0}")]
    Post(#[from] PostError),
}

/// A process of a point.
trait Worker: Process {
    /// Forgets the latencies so far.
    fn forget(&mut self) {}

    /// Takes the latencies, in nanoseconds.
    fn latencies(&mut self) -> Vec<u64> {
        Vec::new()
    }

    /// What it could not post.
    fn failure(&self) -> Option<PostError>;
}

/// Runs workers and measures what they do; an operation is so many messages.
fn measure(
    network: &SeededNetwork,
    mut workers: Vec<Box<dyn Worker>>,
    span: Span,
    per_operation: f64,
) -> Result<Outcome, VerbsError> {
    let start = network.now();
    network.rest_cores();
    run(network, &mut workers, start + span.warm_up);
    let before = network.executed();
    workers.iter_mut().for_each(|worker| worker.forget());
    run(network, &mut workers, start + span.warm_up + span.measured);
    if let Some(failure) = workers.iter().find_map(|worker| worker.failure()) {
        return Err(failure.into());
    }
    let executed = network.executed() - before;
    let mut latencies: Vec<u64> = workers.iter_mut().flat_map(|w| w.latencies()).collect();
    latencies.sort_unstable();
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 operations")]
    let mops = executed as f64 / span.measured.as_secs_f64() / 1e6 / per_operation;
    Ok(Outcome {
        mops,
        latencies,
        trace: network.trace(),
        events: network.steps(),
    })
}

fn run(network: &SeededNetwork, workers: &mut [Box<dyn Worker>], end: Duration) {
    let processes = workers.iter_mut().map(|worker| {
        let process: &mut dyn Process = worker.as_mut();
        process
    });
    Scheduler::new(network, processes.collect()).run(end);
}

/// The network of a point, and the devices of its machines.
struct Bed {
    network: SeededNetwork,
    servers: Vec<crate::SeededDevice>,
    clients: Vec<crate::SeededDevice>,
    /// The servers' cores, and the clients'.
    cpus: [Cpu; 2],
}

impl Bed {
    /// Makes one server machine, and `machines` client machines that take turns.
    fn new(
        profile: &Profile,
        seed: u64,
        servers: usize,
        clients: usize,
        machines: usize,
    ) -> Result<Self, VerbsError> {
        let network = SeededNetwork::of(seed, profile);
        let host = network.host(profile);
        let theirs = profile.of_clients()?;
        let hosts: Vec<_> = (0..machines).map(|_| network.host(&theirs)).collect();
        Ok(Self {
            servers: (0..servers).map(|_| network.device_at(host)).collect(),
            clients: (0..clients)
                .map(|index| network.device_at(hosts[index % machines]))
                .collect(),
            network,
            cpus: [profile.cpu.clone(), theirs.cpu],
        })
    }
}
