//! What is run under faults, and what that yields.

use std::time::Duration;

use herdwick_herd::RequestPath;

use super::kind::FaultKind;
use crate::run::System;

/// A run under faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRun {
    /// The system.
    pub system: System,
    /// HERD: how requests reach the workers; `None`: drawn from the seed.
    pub path: Option<RequestPath>,
    /// Server cores. The servers of other systems than HERD have one, whatever is asked for.
    pub workers: usize,
    /// Client processes.
    pub clients: usize,
    /// Client machines, which share the clients.
    pub machines: usize,
    /// Requests of a client under way.
    pub window: usize,
    /// Of the network, the load and the faults.
    pub seed: u64,
    /// Requests.
    pub operations: u64,
    /// The kinds of faults that the seed draws from.
    pub kinds: Vec<FaultKind>,
    /// The faults of the schedule that happen, by their numbers; `None`: all.
    pub only: Option<Vec<u64>>,
}

impl Default for FaultRun {
    fn default() -> Self {
        Self {
            system: System::Herd,
            path: None,
            workers: 2,
            clients: 16,
            machines: 4,
            window: 4,
            seed: 1,
            operations: 20_000,
            kinds: FaultKind::ALL.to_vec(),
            only: None,
        }
    }
}

/// How often a kind of fault happened, and what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Injected {
    /// Faults of the schedule.
    pub faults: u64,
    /// What they hit: packets, queue pairs, passes, requests or leases.
    pub effects: u64,
}

/// When a fault happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultSpan {
    /// What happened.
    pub kind: FaultKind,
    /// Its beginning, after that of the run.
    pub from: Duration,
    /// Its end; of a fault that does not last, its beginning.
    pub until: Duration,
}

/// What a run under faults yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultReport {
    /// Requests that began.
    pub begun: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// Mutations whose outcome is unknown.
    pub unknown: u64,
    /// Keys, each with a history of its own.
    pub keys: u64,
    /// Faults by kind, in the order of [`FaultKind::ALL`].
    pub injected: [Injected; FaultKind::ALL.len()],
    /// When each fault began and ended, in the order of their beginnings.
    pub spans: Vec<FaultSpan>,
    /// From time to time, how many requests had been answered until then.
    pub progress: Vec<(Duration, u64)>,
    /// The numbers of the faults that happened.
    pub happened: Vec<u64>,
    /// Hash of all events.
    pub trace: u64,
    /// Number of events.
    pub events: u64,
    /// Virtual time that it took.
    pub took: Duration,
    /// What is wrong, if anything.
    pub violation: Option<String>,
}
