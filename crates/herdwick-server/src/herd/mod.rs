//! The HERD front end of a worker (HERD, SIGCOMM 2014): takes requests from slots or from a UD receive
//! queue, and sends replies, over any provider; executes the lease manager's commands; reopens a lost
//! device.

mod counted_partition;
pub(crate) mod fabrics;
pub(crate) mod lease;
mod worker_leases;

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use herdwick_fabric::{Armed, Counter, Device, OpenError, Port, Released, SharedMemory};
use herdwick_herd::{
    ServerCounters, ServerEnd, ServerTerms, SetupError,
    hello::{Refusal, WorkerAccept, WorkerGrant},
};
use herdwick_providers::Fabric;
use mio::{Interest, Registry, event::Event, unix::SourceFd};

use crate::{
    herd::lease::{LeaseAnswer, LeaseCommand, LeaseId, Terms, WorkerEnd},
    runtime::{
        front::{Activity, Front, Pass, Tokens},
        partition::NOBODY,
        request_timer::{RequestTimer, RequestTimes},
    },
    settings::latency::Latency,
    telemetry::latency::LatencyHistograms,
};
use counted_partition::{Counted, FrontCounters};
use worker_leases::HeldLeases;

/// The parameters of a front end.
pub(crate) struct HerdConfig {
    /// The worker's index.
    pub(crate) worker: usize,
    /// The number of workers.
    pub(crate) workers: usize,
    /// Largest number of leases.
    pub(crate) leases_max: usize,
    /// Shortest time that the worker polls before it sleeps.
    pub(crate) spin: Duration,
    /// Largest reply in bytes.
    pub(crate) reply_bytes_max: usize,
    /// The memory of the worker's store, for clients that may read it.
    pub(crate) store: Option<SharedMemory>,
    /// What to measure of how long requests take.
    pub(crate) latency: Latency,
    /// The worker's end of the lease manager's channels.
    pub(crate) end: WorkerEnd,
}

/// One worker's HERD front end over one port of `D`.
///
/// When the device is lost, the front end has its leases ended, then closes the port, and opens another
/// one for the next claim.
pub(crate) struct HerdFront<D: Device> {
    /// The fabric's name.
    transport: &'static str,
    device: D,
    /// `None` while the device is lost.
    server: Option<ServerEnd<D::Port>>,
    held: HeldLeases,
    /// A command that the last poll before sleeping found.
    found: Option<LeaseCommand>,
    /// Where the event sources of ends opened later are registered.
    sources: Option<(Registry, Tokens)>,
    losses: LostDevices,
    /// Leases that the device did not release completely.
    unrevoked: Arc<AtomicU64>,
    /// How long requests take, if that is measured.
    times: Option<RequestTimes>,
    /// The requests of the pass that is under way.
    timer: RequestTimer,
    config: HerdConfig,
}

impl<D: Device> HerdFront<D> {
    pub(crate) fn new(
        transport: &'static str,
        device: D,
        config: HerdConfig,
    ) -> Result<Self, SetupError> {
        let mut front = Self::closed(transport, device, config);
        front.open()?;
        Ok(front)
    }

    /// Creates a front end whose device may be absent: it is opened now or at the next claim.
    pub(crate) fn patient(transport: &'static str, device: D, config: HerdConfig) -> Self {
        let mut front = Self::closed(transport, device, config);
        // A failure shows when it matters: the next claim opens the device, or is refused.
        let _ = front.open();
        front
    }

    fn closed(transport: &'static str, device: D, config: HerdConfig) -> Self {
        Self {
            transport,
            server: None,
            device,
            held: HeldLeases::default(),
            found: None,
            sources: None,
            losses: LostDevices::default(),
            unrevoked: Arc::default(),
            times: RequestTimes::new(transport, &config.latency),
            timer: RequestTimer::default(),
            config,
        }
    }

    fn open(&mut self) -> Result<(), SetupError> {
        let terms = ServerTerms {
            worker: self.config.worker,
            workers: self.config.workers,
            clients_max: self.config.leases_max,
            spin: self.config.spin,
            reply_bytes_max: self.config.reply_bytes_max,
        };
        self.server = Some(ServerEnd::open(&self.device, &terms)?);
        // The new end counts its failures from 0.
        self.losses.seen = 0;
        self.announce().map_err(|source| {
            // A sleeping worker would not be woken by this end's clients.
            self.server = None;
            let what = "making the device known to a worker";
            SetupError::Open(OpenError::System { what, source })
        })
    }

    /// Registers the end's event source with the worker's poll.
    fn announce(&self) -> io::Result<()> {
        let fd = self.server.as_ref().and_then(|end| end.port.wait_fd());
        match (&self.sources, fd) {
            (Some((registry, tokens)), Some(fd)) => registry.register(
                &mut SourceFd(&fd.as_raw_fd()),
                tokens.token(0),
                Interest::READABLE,
            ),
            _ => Ok(()),
        }
    }

    /// Carries out one command of the lease manager, if there is one. Mapping and unmapping memory
    /// takes as long as the operating system needs, so further commands wait for the next pass.
    fn take_command(&mut self) -> bool {
        let Some(command) = self.next_command() else {
            return false;
        };
        let answer = match command {
            LeaseCommand::Grant(id, terms) => LeaseAnswer::Granted(id, self.grant(id, terms)),
            LeaseCommand::Connect(id, peer) => LeaseAnswer::Connected(id, self.connect(id, &peer)),
            // HERD grants no parts, so the lease manager takes none for it.
            LeaseCommand::ConnectParts(id, _) => {
                LeaseAnswer::Connected(id, Err(Refusal::Malformed))
            }
            LeaseCommand::Revoke(id) => {
                // Answered when the memory is released, maybe by another thread.
                self.revoke(id);
                return true;
            }
        };
        self.tell(answer);
        true
    }

    fn next_command(&mut self) -> Option<LeaseCommand> {
        self.found
            .take()
            .or_else(|| self.config.end.commands.take())
    }

    fn tell(&self, answer: LeaseAnswer) {
        // A send fails only at the end of the server: otherwise the lease manager outlives its
        // commands.
        let _ = self.config.end.answers.send((self.config.worker, answer));
        let _ = self.config.end.manager.wake();
    }

    fn grant(&mut self, id: LeaseId, terms: Terms) -> Option<Box<(WorkerGrant, Vec<OwnedFd>)>> {
        if let Some(server) = &mut self.server {
            // Where a device reports its loss only when it is asked: before memory of it is
            // promised.
            self.device.check(&mut server.port);
        }
        self.settle_loss();
        if self.server.is_none() {
            // Without the device there is no grant, and the claim is refused.
            self.open().ok()?;
        }
        let server = self.server.as_mut().filter(|_| !self.losses.ending)?;
        let store = self.config.store.as_ref().filter(|_| terms.reads);
        let grant = self.held.grant(&self.device, server, (id, terms), store);
        grant.ok().map(Box::new)
    }

    fn connect(&mut self, id: LeaseId, peer: &WorkerAccept) -> Result<(), Refusal> {
        let server = self.server.as_mut().ok_or(Refusal::Memory)?;
        let connected = self.held.connect(&self.device, server, id, peer);
        connected.map_err(|error| error.refusal())
    }

    /// Stops serving a lease at once. The lease manager is notified when the memory is released:
    /// until then it counts against the lease's owner, who may be the cause of the delay.
    fn revoke(&mut self, id: LeaseId) {
        let unrevoked = Arc::clone(&self.unrevoked);
        let (answers, manager) = (
            self.config.end.answers.clone(),
            self.config.end.manager.clone(),
        );
        let worker = self.config.worker;
        let done: Released = Box::new(move |released| {
            // A statistic, which orders nothing.
            unrevoked.fetch_add(released.is_err().into(), Ordering::Relaxed);
            // A send fails only at the end of the server, as in `tell`.
            let _ = answers.send((worker, LeaseAnswer::Revoked(id)));
            let _ = manager.wake();
        });
        match &mut self.server {
            Some(server) => self.held.revoke(&self.device, server, id, done),
            // The end was closed with all that its leases held.
            None => done(Ok(())),
        }
    }

    /// Returns whether queue pairs or the device have failed, so that leases must end.
    #[inline]
    fn has_failed(&self) -> bool {
        let server = self.server.as_ref();
        // Once all leases are ending, the end is closed even if the device has recovered.
        server.is_some_and(|server| {
            self.losses.ending
                || self.device.health(&server.port).failures != self.losses.seen
                || server.is_lost(&self.device)
        })
    }

    #[inline]
    fn settle_loss(&mut self) {
        if self.has_failed() {
            self.lose();
        }
    }

    /// Has the lease manager end the leases whose queue pairs failed; if the device is lost, all of
    /// them, and closes it when the last has ended.
    #[cold]
    fn lose(&mut self) {
        let Some(server) = &self.server else {
            return;
        };
        // Queue pairs alone have failed: the others go on.
        if !self.losses.ending && !server.is_lost(&self.device) {
            self.losses.seen = self.device.health(&server.port).failures;
            for id in self.held.failed(&self.device, server) {
                self.tell(LeaseAnswer::Lost(id));
            }
            return;
        }
        if !self.losses.ending {
            self.losses.ending = true;
            self.losses.count += 1;
            for id in self.held.ids() {
                self.tell(LeaseAnswer::Lost(id));
            }
        }
        // Each lease refers to objects of the port, which is closed only when the last one has been
        // revoked.
        if self.held.is_empty()
            && let Some(server) = self.server.take()
        {
            self.losses.ending = false;
            self.losses.counts = self.losses.with(counts(&server));
        }
    }
}

/// Lost devices and their counters.
#[derive(Default)]
struct LostDevices {
    /// Ends lost since the start.
    count: u64,
    /// Queue pair failures at the current end that have been handled.
    seen: u64,
    /// Whether an end is being lost: its leases are ending.
    ending: bool,
    /// The counters of lost ends.
    counts: Vec<(&'static str, u64)>,
}

impl LostDevices {
    /// Adds the counters of lost ends to `counts`, those of the current end; empty without one.
    fn with(&self, mut counts: Vec<(&'static str, u64)>) -> Vec<(&'static str, u64)> {
        if counts.is_empty() {
            return self.counts.clone();
        }
        // By position: names and order are the same for each end (`counts`).
        for ((_, count), (_, past)) in counts.iter_mut().zip(&self.counts) {
            *count += past;
        }
        counts
    }
}

/// Returns an end's counters; the names and their order are the same for every end of a device.
fn counts<P: Port>(server: &ServerEnd<P>) -> Vec<(&'static str, u64)> {
    let mut counts: Vec<_> = server.side.counters().iter().collect();
    counts.extend(server.port.drops());
    counts.extend(server.port.connection_counts());
    counts
}

/// Returns every counter that a front end of any provider may report, in the order of [`Front::counts`],
/// which is that of `stats`: those of its ends, the first provider's, its own, then what the other
/// providers' have beyond these.
pub(crate) fn counters() -> Vec<&'static Counter> {
    let [first, others @ ..] = Fabric::ALL;
    let shared = ServerCounters::COUNTERS.iter().chain(first.counters());
    let fronts = shared.chain(FrontCounters::COUNTERS);
    fronts
        .chain(others.into_iter().flat_map(Fabric::counters))
        .collect()
}

impl<D: Device> Front for HerdFront<D> {
    fn register(&mut self, registry: &Registry, tokens: Tokens) -> io::Result<()> {
        self.sources = Some((registry.try_clone()?, tokens));
        self.announce()
    }

    fn ready(&mut self, _local: usize, _event: &Event) {}

    fn pass(&mut self, pass: &mut Pass<'_>) -> Activity {
        let mut commanded = false;
        if pass.whole {
            self.settle_loss();
            commanded = self.take_command();
            *pass.goes_on |= commanded;
        }
        // Most servers have no client on this fabric most of the time, and serve others.
        let served_by = self.server.as_mut();
        let Some(server) = served_by.filter(|server| server.side.clients() > 0) else {
            return if commanded {
                Activity::Busy
            } else {
                Activity::Idle
            };
        };
        let start = pass.start;
        let mut counted = Counted {
            own: &mut pass.own,
            start,
            counters: pass.counters,
            times: self.times.as_ref().map(|times| (times, &mut self.timer)),
        };
        let now = (start.now, start.clock);
        let served = server.side.round(&mut server.port, now, &mut counted);
        if let Some(times) = &mut self.times {
            times.stop(&mut self.timer, NOBODY, pass);
        }
        if commanded || served > 0 {
            Activity::Busy
        } else {
            Activity::Idle
        }
    }

    fn polls_memory(&self) -> bool {
        // With a client there are slots to poll. Without one there are only commands, whose sender
        // wakes the worker.
        let server = self.server.as_ref();
        server.is_some_and(|server| server.side.clients() > 0)
    }

    fn keeps_time(&self) -> bool {
        // What a request's time is measured from is the beginning of the pass that finds it.
        let needs = self.times.is_some() || !self.device.capabilities().lossless;
        needs && self.polls_memory()
    }

    fn arm(&mut self) -> bool {
        // Kept, because a command that is taken from the queue here would be lost otherwise.
        self.found = self.next_command();
        if self.found.is_some() {
            return false;
        }
        let Some(server) = &mut self.server else {
            return true;
        };
        let cq = server.request_cq();
        let ServerEnd { port, side, .. } = server;
        // Arming the completion queue may itself discover a failure.
        // Without a client no request can arrive.
        side.clients() == 0
            || (port.arm(cq) == Armed::Yes && !side.has_news() && !self.has_failed())
    }

    fn disarm(&mut self) {
        if let Some(server) = &mut self.server
            && server.side.clients() > 0
        {
            let cq = server.request_cq();
            server.port.disarm(cq);
        }
    }

    fn drain(&mut self) {}

    // A request over a fabric is executed and answered in the pass that finds it.
    fn is_drained(&self) -> bool {
        true
    }

    fn latencies(&mut self) -> Option<&mut LatencyHistograms> {
        self.times.as_mut()?.histograms()
    }

    fn transport(&self) -> &'static str {
        self.transport
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let standing = self.server.as_ref().map(counts);
        let mut all = self.losses.with(standing.unwrap_or_default());
        let own = FrontCounters {
            devices_lost: self.losses.count,
            leases_unreleased: self.unrevoked.load(Ordering::Relaxed),
        };
        all.extend(own.iter());
        all
    }
}

#[cfg(test)]
mod tests;
