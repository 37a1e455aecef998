//! The ends of a system, and the devices that they are made on.

use std::time::Duration;

use herdwick_sim::{Cpu, Process, SeededDevice, SeededNetwork};

use crate::run::Answered;

/// A client as a run sees it.
pub(crate) trait Measured: Process {
    /// Forgets the answers so far, and counts answers from `late` on.
    fn forget(&mut self, late: Duration);

    /// Takes the answers, each with the network's time.
    fn answers(&mut self) -> Vec<Answered>;

    /// Number of answers since then.
    fn late(&self) -> u64;

    /// Number of requests that failed.
    fn failed(&self) -> u64;
}

/// A server as a run sees it.
pub(crate) trait Serving: Process {
    /// Replies that a full send queue refused, so that clients ask again.
    fn refused(&self) -> u64 {
        0
    }
}

/// The ends of a system, ready to run: servers first.
pub(crate) struct Ends {
    pub(crate) servers: Vec<Box<dyn Serving>>,
    pub(crate) clients: Vec<Box<dyn Measured>>,
}

/// The devices of a run.
pub(crate) struct Testbed {
    pub(crate) network: SeededNetwork,
    pub(crate) servers: Vec<SeededDevice>,
    pub(crate) clients: Vec<SeededDevice>,
    pub(crate) server_cpu: Cpu,
    pub(crate) client_cpu: Cpu,
}
