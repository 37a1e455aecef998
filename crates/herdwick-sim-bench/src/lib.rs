//! Systems on simulated RNICs: the same machines as on any fabric, each on a virtual core, under a
//! closed load.
//!
//! A [`Run`] holds the system, the number of everything, and the seed; [`Run::on`] sets it up on the
//! hosts of a profile, runs it in virtual time, and measures. The same run gives the same
//! [`Report`], hash of all events included, on every machine.
#![forbid(unsafe_code)]

mod client;
mod ends;
mod farm;
mod faults;
mod herd;
mod herd_paper;
mod keys;
mod memory;
mod pilaf;
mod run;

pub use faults::{FaultKind, FaultReport, FaultRun, FaultSpan, Injected, Shrunk, shrink};
pub use run::{Answered, Report, Run, RunError, System};

use std::time::Duration;

use herdwick_sim::{Process, Profile, Scheduler, SeededNetwork, verbs::Outcome};

use crate::ends::{Ends, Testbed};

impl Run {
    /// Runs it on hosts of a profile: one for the server, and the client machines.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn on(&self, profile: &Profile) -> Result<Report, RunError> {
        self.check()?;
        let network = SeededNetwork::of(self.seed, profile);
        let mut server = profile.clone();
        server.rnic.postlist_max = self.postlist.clamp(1, profile.rnic.postlist_max);
        let server = network.host(&server);
        let theirs = profile.of_clients()?;
        let machines: Vec<_> = (0..self.machines).map(|_| network.host(&theirs)).collect();
        let machine = |client| machines[client % self.machines];
        let bed = Testbed {
            servers: (0..self.workers)
                .map(|_| network.device_at(server))
                .collect(),
            clients: (0..self.clients)
                .map(|client| network.device_at(machine(client)))
                .collect(),
            network,
            server_cpu: profile.cpu.clone(),
            client_cpu: theirs.cpu,
        };
        let network = bed.network.clone();
        let ends = match self.system {
            System::Herd => herd::set_up(self, bed)?,
            System::HerdPaper => herd_paper::set_up(self, bed)?,
            System::Farm => farm::set_up(self, bed, false)?,
            System::FarmVar => farm::set_up(self, bed, true)?,
            System::Pilaf => pilaf::set_up(self, bed)?,
            System::Clover => return Err(RunError::FaultsAlone),
        };
        Ok(self.measure(&network, ends))
    }

    fn check(&self) -> Result<(), RunError> {
        let within = [
            ("the number of workers", self.workers, 1, 64),
            ("the number of clients", self.clients, 1, 65_536),
            ("the number of client machines", self.machines, 1, 65_536),
            ("the number of keys", self.keys as usize, 1, 1 << 26),
            ("the value", self.value_bytes, keys::VALUE_BYTES_MIN, 1000),
            (
                "the share of PUTs in percent",
                self.put_percent.into(),
                0,
                100,
            ),
        ];
        RunError::unless_within(&within)
    }

    fn measure(&self, network: &SeededNetwork, mut ends: Ends) -> Report {
        let servers = ends.servers.len();
        let start = network.now();
        network.rest_cores();
        let begins = start + self.span.warm_up;
        run(network, &mut ends, begins);
        for client in &mut ends.clients {
            client.forget(begins + self.span.measured / 2);
        }
        let busy = run(network, &mut ends, begins + self.span.measured);
        let mut answers = Vec::new();
        let (mut failed, mut late) = (0, 0);
        for client in &mut ends.clients {
            answers.append(&mut client.answers());
            late += client.late();
            failed += client.failed();
        }
        for answer in &mut answers {
            // The clock began with the warm-up.
            answer.at = answer.at.saturating_sub(begins);
        }
        answers.sort_unstable();
        let mut latencies: Vec<_> = answers.iter().map(|answer| answer.took_ns).collect();
        latencies.sort_unstable();
        let answered = answers.len() as u64;
        let seconds = self.span.measured.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 requests")]
        let mops = answered as f64 / seconds / 1e6;
        Report {
            outcome: Outcome {
                mops,
                latencies,
                trace: network.trace(),
                events: network.steps(),
            },
            answers,
            // `run` has the servers first.
            busy: busy[..servers]
                .iter()
                .map(|busy| busy.as_secs_f64() / seconds)
                .collect(),
            answered,
            late,
            failed,
            refused: ends.servers.iter().map(|server| server.refused()).sum(),
        }
    }
}

/// Runs all ends until `end`; returns for how long each was busy.
fn run(network: &SeededNetwork, ends: &mut Ends, end: Duration) -> Vec<Duration> {
    let count = ends.servers.len() + ends.clients.len();
    let servers = ends.servers.iter_mut().map(|server| {
        let process: &mut dyn Process = server.as_mut();
        process
    });
    let clients = ends.clients.iter_mut().map(|client| {
        let process: &mut dyn Process = client.as_mut();
        process
    });
    let mut scheduler = Scheduler::new(network, servers.chain(clients).collect());
    scheduler.run(end);
    (0..count).map(|index| scheduler.busy(index)).collect()
}
