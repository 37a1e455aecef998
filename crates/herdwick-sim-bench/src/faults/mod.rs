//! Systems under faults: clients record the reply to each request for a key, a nemesis injects the
//! faults of a schedule that the seed draws, and every history has to be linearizable.
//!
//! A run ends with the faults gone: every request has to end, and every client to be served again.
//! A run that fails can be made smaller ([`shrink()`]).

mod bench;
mod caller;
mod clover;
mod farm;
mod herd;
mod history;
mod kind;
mod machine;
mod nemesis;
mod pilaf;
mod run;
mod shrink;

pub use kind::FaultKind;
pub use run::{FaultReport, FaultRun, FaultSpan, Injected};
pub use shrink::{Shrunk, shrink};

use std::time::Duration;

use herdwick_fabric::Capabilities;
use herdwick_herd::{RequestPath, wire::Window};
use herdwick_sim::{Profile, SeededNetwork};

use self::{
    bench::Bench,
    clover::{CloverServers, CloverSizes},
    farm::FarmServers,
    herd::{HerdServers, Terms},
    pilaf::PilafServers,
};
use crate::{
    keys::Draws,
    run::{RunError, System},
};

/// How long a client of a system over RC waits for an answer: shorter than RC tries.
const ANSWER_DEADLINE: Duration = Duration::from_millis(15);

/// How long a request waits for each other one, about.
const QUEUED: Duration = Duration::from_nanos(200);

impl FaultRun {
    /// Runs it on hosts of a profile: one for the server, and the client machines.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn on(&self, profile: &Profile) -> Result<FaultReport, RunError> {
        self.check()?;
        // `terms` in ASCII: a sequence of its own beside the others of the seed.
        let mut draws = Draws::new(self.seed ^ 0x7465_726d_7300);
        let path = self.path_of(&mut draws);
        let kinds = self.kinds_of(path, &mut draws);
        let ordered = !kinds.contains(&FaultKind::Tear) || draws.below(2) == 0;
        // FaRM-KV's lines are not for RNICs that load their words in any order (docs/farm.md).
        let lines = matches!(self.system, System::Farm | System::FarmVar);
        let has = Capabilities {
            ordered_write: ordered,
            ordered_read: ordered || lines,
            ..SeededNetwork::promised_by(profile)
        };
        let network = SeededNetwork::with_capabilities(self.seed, has);
        let server = network.host(profile);
        let theirs = profile.of_clients()?;
        let hosts: Vec<_> = (0..self.machines).map(|_| network.host(&theirs)).collect();
        let clients = (0..self.clients).map(|client| hosts[client % self.machines]);
        let clients: Vec<_> = clients.map(|host| network.device_at(host)).collect();
        let device = || network.device_at(server);
        let (count, window, cpu) = (self.clients, self.window, &profile.cpu);
        let bench = (self, &network, clients, &kinds[..], &theirs.cpu);
        match self.system {
            System::Herd => {
                let devices = (0..self.workers).map(|_| device()).collect();
                let terms = self.herd_terms(path, &mut draws)?;
                Bench::new(bench, HerdServers::new(terms, devices, cpu)?)?.run()
            }
            System::HerdPaper => Err(RunError::NoFaults),
            System::Farm | System::FarmVar => {
                let sizes = (count, window, self.system == System::FarmVar);
                let terms = (ANSWER_DEADLINE, &mut draws);
                let servers = FarmServers::new(sizes, terms, device(), cpu)?;
                Bench::new(bench, servers)?.run()
            }
            System::Pilaf => {
                let servers = PilafServers::new((count, window), ANSWER_DEADLINE, device(), cpu)?;
                Bench::new(bench, servers)?.run()
            }
            System::Clover => {
                let sizes = CloverSizes {
                    clients: count,
                    window,
                    operations: self.operations,
                    timeout: ANSWER_DEADLINE,
                };
                let servers = CloverServers::new(&sizes, &mut draws, (&network, device()), cpu)?;
                Bench::new(bench, servers)?.run()
            }
        }
    }

    /// HERD's request path; the other systems' requests are WRITEs, READs or SENDs over RC.
    fn path_of(&self, draws: &mut Draws) -> RequestPath {
        // Drawn also where it is not used, so that the other draws of the seed stay what they are.
        let drawn = RequestPath::ALL[draws.below(3) as usize];
        match self.system {
            System::Herd => self.path.unwrap_or(drawn),
            _ => RequestPath::RcWrite,
        }
    }

    /// The kinds of faults in this run. Over UC, late and torn WRITEs do not occur together: a line
    /// that arrives late, and then word by word, over the next request in its slot, is beyond what a
    /// slot survives.
    fn kinds_of(&self, path: RequestPath, draws: &mut Draws) -> Vec<FaultKind> {
        let torn = draws.below(2) == 0;
        let fits = |kind: &FaultKind| match kind {
            FaultKind::Tear => {
                path != RequestPath::UdSend && (torn || path != RequestPath::UcWrite)
            }
            FaultKind::Duplicate | FaultKind::Reorder => path != RequestPath::UcWrite || !torn,
            _ => true,
        };
        self.kinds.iter().copied().filter(fits).collect()
    }

    fn herd_terms(&self, path: RequestPath, draws: &mut Draws) -> Result<Terms, RunError> {
        let micros = |times: &[u64], draws: &mut Draws| {
            Duration::from_micros(times[draws.below(times.len() as u32) as usize])
        };
        // As long as the server has requests of others before it.
        let queued = QUEUED * u32::try_from(self.clients * self.window).unwrap_or(u32::MAX);
        Ok(Terms {
            path,
            window: Window::new(self.window).ok_or(RunError::Window)?,
            clients_max: self.clients,
            retry_after: queued + micros(&[10, 20, 50], draws),
            deadline: queued
                + match path {
                    RequestPath::RcWrite => micros(&[1000, 5000], draws),
                    RequestPath::UcWrite | RequestPath::UdSend => micros(&[200, 500, 1000], draws),
                },
        })
    }

    fn check(&self) -> Result<(), RunError> {
        let within = [
            ("the number of workers", self.workers, 1, 64),
            ("the number of clients", self.clients, 1, 4096),
            ("the number of client machines", self.machines, 1, 65_536),
            ("the window", self.window, 1, 64),
            ("the number of kinds of faults", self.kinds.len(), 1, 16),
        ];
        RunError::unless_within(&within)
    }
}
