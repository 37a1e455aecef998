//! The engine Clover (`docs/clover.md`): a data node and the metadata server, on one fabric, as a front end
//! of the only worker. It executes the lease manager's commands; clients read and write the data node's memory
//! themselves. Of a secondary store (`docs/hkvs.md`) one client may write, the server that it is a part of.

mod counters;
mod host_parts;
mod secondary;
mod split;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    os::fd::AsRawFd,
    thread::{self, JoinHandle},
    time::Duration,
};

use herdwick_clover::{Accepts, Hosts, Joined, OptionsError, Right, Secret, SetupError};
use herdwick_fabric::{ConnectError, Device, Port};
use herdwick_herd::hello::{Parts, Refusal};
use herdwick_providers::AnyDevice;
use herdwick_request::HashKey;
use mio::{Interest, Registry, event::Event, unix::SourceFd};

use crate::{
    herd::lease::{LeaseAnswer, LeaseCommand, LeaseId, Terms, WorkerEnd},
    runtime::{
        front::{Activity, Front, Pass, Tokens},
        time::ServerClock,
    },
    settings::error::StartError,
};
pub(crate) use counters::CloverCounters;
use host_parts::{HostParts, START};
use secondary::{Admission, Secondary};
pub(crate) use split::{STORE_BYTES, lease_bytes};

/// Longest sleep while there are clients: leases run out, and keys are examined in turn.
const TICK: Duration = Duration::from_millis(10);
/// Pause after a failed attempt to empty the memory.
const PAUSE: Duration = Duration::from_secs(1);

/// What the engine is made of.
pub(crate) struct CloverConfig {
    /// Bytes for the data node's memory and for the metadata server's tables.
    pub(crate) bytes: usize,
    /// Largest number of clients.
    pub(crate) clients_max: usize,
    /// The key by which keys are hashed.
    pub(crate) hash_key: HashKey,
    /// What the data node asks for before a client may write, which this process alone knows.
    pub(crate) secret: Secret,
    /// What the client has to prove to know that may write; `None`: every client may.
    pub(crate) secondary: Option<Secret>,
    /// The worker's end of the lease manager's channels.
    pub(crate) end: WorkerEnd,
}

/// The front end of the worker of a server whose engine is Clover.
pub(crate) struct CloverFront {
    /// `None`: those of an earlier primary are closed, and new ones could not be opened.
    hosts: Option<Hosts<AnyDevice>>,
    /// Whether every pass needs the time: the fabric has timers.
    has_timers: bool,
    leases: HashMap<LeaseId, HeldClient>,
    end: WorkerEnd,
    /// A command that the last poll before sleeping found.
    found: Option<LeaseCommand>,
    now: Duration,
    counters: CloverCounters,
    /// Who may write, if not every client.
    secondary: Option<Secondary>,
    /// When the memory may be emptied at the earliest.
    empties_at: Duration,
    emptying: Emptying,
    parts: HostParts,
    /// Where event sources are registered.
    tokens: Option<Tokens>,
    /// The counters of hosts that were closed.
    past: Vec<(&'static str, u64)>,
}

/// How far the emptying of the memory is.
#[derive(Default)]
enum Emptying {
    /// It has not begun, or is done.
    #[default]
    No,
    /// The operating system releases memory and makes other, which takes a second for a gigabyte or two.
    Opens(JoinHandle<Result<(AnyDevice, Hosts<AnyDevice>), StartError>>),
    /// The metadata server begins, by then.
    Begins(Duration),
}

/// A client between its grant and its revocation.
struct HeldClient {
    joined: Joined,
    /// The host that it connected from; `None`: this one.
    host: Option<IpAddr>,
    /// Whether the lease manager knows that its connection is over.
    reported: bool,
}

impl CloverFront {
    /// Makes an empty data node and its metadata server on `device`, which the lease manager offers.
    pub(crate) fn open(
        device: &AnyDevice,
        config: CloverConfig,
        timer: ServerClock,
    ) -> Result<Self, StartError> {
        let parts = HostParts {
            device: device.clone(),
            bytes: config.bytes,
            clients_max: config.clients_max,
            hash_key: config.hash_key,
            secret: config.secret,
        };
        Ok(Self {
            hosts: Some(parts.begin(timer)?),
            has_timers: !device.capabilities().lossless,
            leases: HashMap::new(),
            end: config.end,
            found: None,
            now: timer.now(),
            counters: CloverCounters::default(),
            secondary: config.secondary.map(Secondary::new),
            empties_at: Duration::ZERO,
            emptying: Emptying::No,
            parts,
            tokens: None,
            past: Vec::new(),
        })
    }

    /// Carries out one command of the lease manager, if there is one.
    fn take_command(&mut self) -> bool {
        let Some(command) = self.next_command() else {
            return false;
        };
        let answer = match command {
            LeaseCommand::Grant(id, terms) => self.grant(id, terms),
            LeaseCommand::ConnectParts(id, parts) => {
                LeaseAnswer::Connected(id, self.connect(id, &parts))
            }
            // Clover grants by parts, so the lease manager takes nothing else for it.
            LeaseCommand::Connect(id, _) => LeaseAnswer::Connected(id, Err(Refusal::Malformed)),
            LeaseCommand::Revoke(id) => {
                self.revoke(id);
                LeaseAnswer::Revoked(id)
            }
        };
        self.tell(answer);
        true
    }

    fn next_command(&mut self) -> Option<LeaseCommand> {
        self.found.take().or_else(|| self.end.commands.take())
    }

    fn tell(&self, answer: LeaseAnswer) {
        // A send fails only at the end of the server: otherwise the lease manager outlives its commands.
        let _ = self.end.answers.send((0, answer));
        let _ = self.end.manager.wake();
    }

    fn grant(&mut self, id: LeaseId, terms: Terms) -> LeaseAnswer {
        let right = match self.admits(id, &terms) {
            Ok(right) => right,
            Err(refusal) => return LeaseAnswer::Connected(id, Err(refusal)),
        };
        let hosts = self.hosts.as_mut();
        let Some((joined, invitation)) = hosts.and_then(|hosts| hosts.admit(right).ok()) else {
            if let Some(secondary) = &mut self.secondary {
                secondary.ended(id);
            }
            return LeaseAnswer::Granted(id, None);
        };
        let client = HeldClient {
            joined,
            host: terms.host,
            reported: false,
        };
        self.leases.insert(id, client);
        LeaseAnswer::GrantedParts(id, invitation.into_parts())
    }

    /// Returns what a client may do.
    ///
    /// # Errors
    /// Why it may do nothing, or has to come again.
    fn admits(&mut self, id: LeaseId, terms: &Terms) -> Result<Right, Refusal> {
        let Some(secondary) = &mut self.secondary else {
            return Ok(Right::Write);
        };
        match secondary.admit(id, &terms.claim) {
            Admission::Admit(right) => Ok(right),
            Admission::Refuse => Err(Refusal::Token),
            Admission::Later => {
                self.report_all();
                Err(Refusal::Memory)
            }
        }
    }

    /// Reports to the lease manager that all sessions are over.
    fn report_all(&mut self) {
        let held = self.leases.iter_mut();
        let told = held.filter_map(|(id, client)| {
            // Once for each: the lease manager ends a lease at the first report.
            let before = std::mem::replace(&mut client.reported, true);
            (!before).then_some(*id)
        });
        let ids: Vec<LeaseId> = told.collect();
        for id in ids {
            self.tell(LeaseAnswer::Lost(id));
        }
    }

    /// Returns whether this is a secondary store whose primary has gone, and that is not empty yet.
    fn is_abandoned(&self) -> bool {
        self.secondary.as_ref().is_some_and(Secondary::is_abandoned)
    }

    /// Empties the memory of a secondary store whose primary has gone, when no session is left. That takes
    /// seconds for gigabytes, so it is done before the next primary comes, and no pass waits for it.
    fn empty_abandoned(&mut self, registry: &Registry) {
        if !self.is_abandoned() {
            return;
        }
        let (now, tokens) = (self.now, self.tokens);
        let gone_on = match std::mem::take(&mut self.emptying) {
            // Sessions end first: their clients may reach the old memory.
            Emptying::No if !self.leases.is_empty() || now < self.empties_at => Some(Emptying::No),
            Emptying::No => self.reopen().ok(),
            Emptying::Opens(thread) if !thread.is_finished() => Some(Emptying::Opens(thread)),
            Emptying::Opens(thread) => {
                // A panic of the thread counts as a failure to open.
                let opened = thread.join().ok().and_then(Result::ok);
                if let Some((device, hosts)) = opened {
                    (self.parts.device, self.hosts) = (device, Some(hosts));
                }
                // The new ports have descriptors of their own. Those of the old ones left the poll
                // when they were closed.
                let registered = tokens.map_or(Ok(()), |tokens| self.register(registry, tokens));
                let due = now + START;
                (self.hosts.is_some() && registered.is_ok()).then_some(Emptying::Begins(due))
            }
            Emptying::Begins(due) => self.begin_empty(due),
        };
        match gone_on {
            Some(state) => self.emptying = state,
            None => self.emptying_failed(),
        }
    }

    /// Has a thread open empty memory. First the old one goes, of which no client has anything any more: there is
    /// memory for one store.
    fn reopen(&mut self) -> io::Result<Emptying> {
        self.keep_counts();
        let (before, parts) = (self.hosts.take(), self.parts.clone());
        let name = "emptying".to_owned();
        let thread = thread::Builder::new().name(name).spawn(move || {
            drop(before);
            parts.reopen()
        });
        thread.map(Emptying::Opens)
    }

    /// Has the metadata server of empty memory go on with its start; `None`: it failed.
    fn begin_empty(&mut self, due: Duration) -> Option<Emptying> {
        let begun = host_parts::step(self.hosts.as_mut()?, self.now, due).ok()?;
        if !begun {
            return Some(Emptying::Begins(due));
        }
        self.secondary.iter_mut().for_each(Secondary::emptied);
        Some(Emptying::No)
    }

    /// Counts an attempt to empty the memory that failed. The next one is not made at once.
    fn emptying_failed(&mut self) {
        self.empties_at = self.now + PAUSE;
        self.keep_counts();
        self.hosts = None;
        let mut counts = self.past.iter_mut();
        let failed = counts.find(|(name, _)| *name == "clover_reopens_failed");
        failed.into_iter().for_each(|(_, count)| *count += 1);
    }

    /// Keeps the counters of hosts that are about to be closed.
    fn keep_counts(&mut self) {
        self.past = self.counts();
        self.counters = CloverCounters::default();
    }

    /// Returns whether a metadata server begins on empty memory: passes do not wait for events.
    fn begins(&self) -> bool {
        matches!(self.emptying, Emptying::Begins(_))
    }

    fn connect(&mut self, id: LeaseId, parts: &Parts) -> Result<(), Refusal> {
        let client = self.leases.get(&id).ok_or(Refusal::Memory)?;
        let parts: Vec<&[u8]> = parts.0.iter().map(|part| &part.blob[..]).collect();
        let accepts = Accepts::of_parts(&parts).map_err(|_| Refusal::Malformed)?;
        let hosts = self.hosts.as_mut().ok_or(Refusal::Memory)?;
        if !hosts.is_at(&client.joined, &accepts, client.host) {
            return Err(Refusal::Malformed);
        }
        if let Some(secondary) = &mut self.secondary {
            // Before the queue pairs are connected: from then on the client may write.
            secondary.connecting(id);
        }
        let connected = hosts.connect(&client.joined, &accepts);
        connected.map_err(|error| match error {
            SetupError::Connect(ConnectError::Endpoint(_) | ConnectError::Transport(_))
            | SetupError::Refused(OptionsError::NotAllNodes) => Refusal::Malformed,
            _ => Refusal::Memory,
        })
    }

    /// Ends a session: at the data node first, so that what the client held finds another use.
    fn revoke(&mut self, id: LeaseId) {
        if let Some(client) = self.leases.remove(&id)
            && let Some(hosts) = &mut self.hosts
            && hosts.remove(&client.joined).is_err()
        {
            // The client may reach the memory still, so what it held finds no other use.
            self.counters.clover_clients_unreleased += 1;
        }
        if let Some(secondary) = &mut self.secondary
            && secondary.ended(id)
        {
            self.report_all();
        }
    }

    /// Reports to the lease manager a client that has not called in time, or whose connection failed.
    fn report_lapsed(&mut self) {
        let lapsed = self.hosts.as_ref().and_then(|hosts| hosts.server.lapsed());
        let Some(lapsed) = lapsed else {
            return;
        };
        let mut clients = self.leases.iter_mut();
        let client = clients.find(|(_, client)| client.joined.server == lapsed);
        if let Some((id, client)) = client
            && !std::mem::replace(&mut client.reported, true)
        {
            let id = *id;
            self.tell(LeaseAnswer::Lost(id));
        }
    }
}

impl Front for CloverFront {
    fn register(&mut self, registry: &Registry, tokens: Tokens) -> io::Result<()> {
        self.tokens = Some(tokens);
        let fds = self.hosts.iter().flat_map(Hosts::wait_fds);
        for (local, fd) in fds.enumerate() {
            let mut source = SourceFd(&fd.as_raw_fd());
            registry.register(&mut source, tokens.token(local), Interest::READABLE)?;
        }
        Ok(())
    }

    fn ready(&mut self, _local: usize, _event: &Event) {}

    fn pass(&mut self, pass: &mut Pass<'_>) -> Activity {
        let mut commanded = false;
        self.now = pass.start.now;
        if pass.whole {
            commanded = self.take_command();
            *pass.goes_on |= commanded;
            self.empty_abandoned(pass.registry);
            self.report_lapsed();
        }
        let is_busy = self
            .hosts
            .as_mut()
            .is_some_and(|hosts| hosts.pass(self.now) > 0 || !hosts.server.server().is_idle());
        if commanded || is_busy || self.begins() {
            Activity::Busy
        } else {
            Activity::Idle
        }
    }

    fn polls_memory(&self) -> bool {
        !self.leases.is_empty()
    }

    fn keeps_time(&self) -> bool {
        self.has_timers && self.polls_memory()
    }

    fn arm(&mut self) -> bool {
        // Kept for the next pass: taken here, it would be lost otherwise.
        self.found = self.next_command();
        let now = self.now;
        let is_idle = self.found.is_none() && !self.begins();
        is_idle && self.hosts.as_mut().is_none_or(|hosts| hosts.arm(now))
    }

    fn disarm(&mut self) {
        self.hosts.iter_mut().for_each(Hosts::disarm);
    }

    fn drain(&mut self) {}

    fn is_drained(&self) -> bool {
        true
    }

    fn tick(&self) -> Option<Duration> {
        (self.polls_memory() || self.is_abandoned()).then_some(TICK)
    }

    fn transport(&self) -> &'static str {
        self.parts.device.fabric().name()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let Some(hosts) = &self.hosts else {
            return self.past.clone();
        };
        let server = &hosts.server;
        let own = self.counters.with(&server.server().counters());
        let mut counts: Vec<_> = own.iter().collect();
        let nodes = hosts.nodes.iter().map(|node| &node.port);
        for port in nodes.chain([&server.port]) {
            counts.extend(port.drops());
            counts.extend(port.connection_counts());
        }
        // By position: the names are the same for all hosts of a device.
        for ((_, count), (_, past)) in counts.iter_mut().zip(&self.past) {
            *count += past;
        }
        counts
    }
}
