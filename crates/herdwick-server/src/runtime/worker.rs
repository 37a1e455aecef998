//! A worker: one thread that polls its front ends and its cross-core queues, executes what they carry
//! on its partition (see `partition_lock`), and sleeps when there is no work.

use std::{sync::Arc, time::Duration};

use mio::{Events, Poll};

use crate::{
    context::Context,
    runtime::{
        crawl::WorkerCrawl,
        cross_core::{BATCHES_PER_PAIR, CrossCore},
        forward::{ForwardBatch, WorkerCommand},
        front::{Activity, Front, Pass, Tokens},
        parking::WakeupFd,
        partition::{Partition, PassStart},
        partition_lock::{Own, Partitions},
        readiness,
        shutdown::Shutdown,
        spin::AdaptiveSpin,
        time::ServerClock,
        upload_permits::Permits,
    },
    telemetry::{
        latency::TransportLatency,
        snapshot::{Snapshot, TransportCount, WorkerCounters},
        stats::PollCounters,
    },
};

/// While work was recently found in memory, only one in this many passes looks for anything else: at
/// sockets, a poll of which takes longer than a request, at the clock, the memory limit and commands.
/// Requests of a pass between two whole ones see the time of the earlier one.
const WHOLE_EVERY: u32 = 16;
/// Longest sleep of a worker, so that it notices timeouts.
const TICK: Duration = Duration::from_secs(1);
/// Time from the start of the shutdown after which unfinished connections are closed.
const DRAIN: Duration = Duration::from_secs(2);
/// Maximum number of events per `epoll_wait`.
// The limit loses nothing: the events left over come first in the next call (epoll_wait(2), round
// robin).
pub(crate) const EVENTS: usize = 256;
/// Forwarded batches executed between two polls of the front ends.
const BATCHES: usize = 16;

/// One thread, its partition and its transports.
pub(crate) struct Worker {
    pub(crate) context: Arc<Context>,
    pub(crate) partitions: Arc<Partitions>,
    /// The permits of all partitions, whose number follows the memory limit.
    pub(crate) permits: Arc<Permits>,
    pub(crate) fronts: Vec<Box<dyn Front + Send>>,
    pub(crate) cross_core: CrossCore,
    pub(crate) poll: Poll,
    pub(crate) events: Events,
    pub(crate) wakeup: WakeupFd,
    pub(crate) timer: ServerClock,
    /// How long to poll for work before a sleep.
    pub(crate) spin: AdaptiveSpin,
    pub(crate) shutdown: Arc<Shutdown>,
    pub(crate) counters: WorkerCounters,
    pub(crate) polling: PollCounters,
    /// This worker's index.
    pub(crate) index: usize,
    pub(crate) state: WorkerState,
}

/// What a worker keeps from pass to pass.
#[derive(Default)]
pub(crate) struct WorkerState {
    /// The bytes that the memory limit of the last whole pass left unused in each partition.
    unused: usize,
    /// When the drain ends, once it has begun.
    drain_end: Option<Duration>,
    /// The orders to invalidate all items that were carried out.
    invalidated: u64,
    /// This worker has finished its connections.
    drained: bool,
    /// The last pass has done work that no memory shows. There may be more: the next one is whole.
    goes_on: bool,
    /// A front end needs the time in every pass.
    keeps_time: bool,
}

/// Whether a pass found work, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WorkFound {
    Nothing,
    /// Work that an event announced.
    ByEvents,
    /// Work that a front end found by polling memory.
    InMemory,
}

impl Worker {
    /// Serves until the server stops.
    pub(crate) fn run(mut self) {
        // `last_in_memory` is when the last request in memory was done with, not when it was found:
        // the gap to the next one, by which `spin` adapts, is idle time alone.
        let (mut last_work, mut last_in_memory) = (Duration::ZERO, None);
        let (mut passes, mut worked, mut awake) = (0u32, false, false);
        let partitions = Arc::clone(&self.partitions);
        let lock = partitions.of(self.index);
        let is_alone = partitions.len() == 1;
        let mut kept = is_alone.then(|| lock.keep());
        let mut walk = WorkerCrawl::default();
        let mut start = self.start(&partitions);
        loop {
            let looks_at_all = !awake || passes.is_multiple_of(WHOLE_EVERY);
            // A batch of another worker does not wait for the next whole pass: its clients wait for
            // it.
            let whole = looks_at_all || self.state.goes_on || !self.cross_core.is_quiet();
            if whole || worked || self.state.keeps_time {
                start = self.start(&partitions);
            }
            let now = start.now;
            if worked {
                // The pass before this one found the work; `now` is the first time read after it.
                last_in_memory = Some(now);
            }
            let own = Own::new(kept.as_mut(), lock);
            let found = self.pass((start, whole), own, &partitions, &mut walk);
            if found != WorkFound::Nothing {
                last_work = now;
            }
            if self.shutdown.is_set() && self.has_stopped(now) {
                return;
            }
            worked = found == WorkFound::InMemory;
            let since = last_in_memory.map(|last| now.saturating_sub(last));
            if let (true, Some(since)) = (worked, since) {
                // `since` is the gap before the work of this pass, because `last_in_memory` is set
                // by the pass after that found it.
                self.spin.learn(since);
            }
            let watches_memory = since.is_some_and(|since| since < self.spin.get());
            passes = passes.wrapping_add(1);
            awake = watches_memory || worked;
            if awake && whole {
                // Passes that are not whole follow.
                self.state.keeps_time = self.fronts.iter().any(|front| front.keeps_time());
            }
            let keeps = awake || is_alone;
            // Only at a change: a lock that is kept costs nothing a pass.
            if keeps != kept.is_some() {
                kept = keeps.then(|| lock.keep());
            }
            if awake && !passes.is_multiple_of(WHOLE_EVERY) {
                continue;
            }
            // Work that arrived since the last whole pass may not have signalled the wakeup descriptor,
            // so the worker sleeps only after a whole pass.
            if awake
                || !whole
                || found != WorkFound::Nothing
                || now.saturating_sub(last_work) < self.spin.base()
            {
                // No wait: this poll only collects the events of sockets, and returns at once.
                self.check(Duration::ZERO);
            } else {
                self.sleep(&walk);
            }
        }
    }

    /// Reads the clock and the memory limit for a pass.
    fn start(&self, partitions: &Partitions) -> PassStart {
        let now = self.timer.now();
        PassStart {
            now,
            clock: self.timer.clock(now),
            unused: self.context.tunables.memory.unused() / partitions.len(),
        }
    }

    /// Runs one pass: first the forwarded batches of other workers, then every front end. One that is
    /// not `whole` is for requests in memory alone.
    fn pass(
        &mut self,
        (mut start, whole): (PassStart, bool),
        mut own: Own<'_>,
        partitions: &Partitions,
        walk: &mut WorkerCrawl,
    ) -> WorkFound {
        let mut found = WorkFound::Nothing;
        if whole {
            found = self.tend(&mut start, &mut own, walk);
            // What a step or a batch began may go on, and nothing in memory would show it.
            self.state.goes_on = found != WorkFound::Nothing;
        }
        let mut pass = Pass {
            start,
            timer: &self.timer,
            whole,
            goes_on: &mut self.state.goes_on,
            own,
            partitions,
            cross_core: &mut self.cross_core,
            counters: &mut self.counters,
            registry: self.poll.registry(),
        };
        for front in &mut self.fronts {
            if (whole || front.polls_memory()) && front.pass(&mut pass) == Activity::Busy {
                let kind = if front.polls_memory() {
                    WorkFound::InMemory
                } else {
                    // A socket or a queue may hold more than one turn has served.
                    *pass.goes_on = true;
                    WorkFound::ByEvents
                };
                found = found.max(kind);
            }
        }
        // Once, at the end: requests of all front ends to one worker share a batch, and each peer
        // is woken at most once a pass.
        self.cross_core.depart();
        found
    }

    /// Does what is due in the partition besides requests: steps towards the memory limit, and of a
    /// crawl, and the forwarded batches of other workers. Returns whether there was any of it; a
    /// worker with more to do does not sleep.
    fn tend(
        &mut self,
        start: &mut PassStart,
        own: &mut Own<'_>,
        walk: &mut WorkerCrawl,
    ) -> WorkFound {
        let mut found = WorkFound::Nothing;
        let now = start.now;
        let (mut partition, lowers_memory) = own.begin(*start);
        if partition.unused() != self.state.unused {
            self.state.unused = partition.unused();
            // Of a higher limit the first step has made the room.
            self.permits
                .resize(self.index, partition.store.staged_max());
        }
        // Several orders since the last pass are carried out by one flush, which comes after the batches: what was on
        // its way to this worker when the order was given is invalidated, too.
        let orders = self.context.tunables.invalidation.orders();
        let is_ordered = orders != self.state.invalidated;
        let crawls = self.crawl(walk, &mut partition, now);
        if lowers_memory || crawls {
            found = WorkFound::ByEvents;
        }
        // Bounded: peers that send without a pause do not keep this worker's own clients waiting. Before a flush, by
        // what can be on its way.
        let most = if is_ordered {
            BATCHES.max(BATCHES_PER_PAIR * self.context.settings.workers)
        } else {
            BATCHES
        };
        for _ in 0..most {
            let Some((peer, mut batch)) = self.cross_core.arrived() else {
                break;
            };
            found = WorkFound::ByEvents;
            self.execute_command(peer, &mut batch, now, &mut partition);
            // The command may have changed it.
            start.clock = self.timer.clock(now);
            self.cross_core.give_back(peer, batch);
        }
        if is_ordered {
            self.state.invalidated = orders;
            let second = start.clock.second;
            partition.flush(second, second);
            self.context.tunables.invalidation.done(orders);
        }
        found
    }

    /// Takes a step of the crawl that is under way; returns whether it goes on.
    fn crawl(&self, walk: &mut WorkerCrawl, partition: &mut Partition, now: Duration) -> bool {
        let Context {
            tunables, settings, ..
        } = &*self.context;
        let at = (partition.clock().second, now);
        let store = &mut partition.store;
        walk.step(&tunables.crawler, store, at, settings.workers)
    }

    /// Carries out the command of a forwarded batch from worker `peer`.
    fn execute_command(
        &mut self,
        peer: usize,
        batch: &mut ForwardBatch,
        now: Duration,
        partition: &mut Partition,
    ) {
        // The partition's clock and not this pass's own: a pass of another worker that began later
        // may have set it on.
        let clock = partition.clock();
        match batch.command {
            WorkerCommand::Execute => {
                self.cross_core
                    .execute((peer, batch), partition, &mut self.counters)
            }
            WorkerCommand::Flush(at) => partition.flush(clock.second, at),
            // Each worker has a copy of the clock, so each is sent the change.
            WorkerCommand::Warp(warp) => {
                self.timer.warp(warp, now);
                partition.set_clock(now, self.timer.clock(now));
                let zero = self.timer.second_zero();
                partition.store.set_readers_clock(zero);
            }
            WorkerCommand::Reset => {
                self.counters.reset();
                self.polling.reset();
                for front in &mut self.fronts {
                    // The front end keeps histograms or does not: a reset empties them, and leaves
                    // that as it is.
                    front.latencies().map(std::mem::take);
                }
                partition.reset();
            }
            WorkerCommand::Dump(mut dump) => {
                let out = batch.text_mut();
                match dump.connection() {
                    None => dump.step(&mut partition.store, clock, out),
                    Some(from) => {
                        let mut fronts = self.fronts.iter();
                        let next = fronts.find_map(|f| f.connections(clock.second, from, out));
                        dump.showed(next);
                    }
                }
                batch.command = WorkerCommand::Dump(dump);
            }
            WorkerCommand::Detail(on) => partition.detail(on),
            WorkerCommand::Prefixes => batch.prefixes = partition.counted().cloned().map(Box::new),
            WorkerCommand::Count { hot } => {
                let mut snapshot = self.snapshot(partition);
                if hot {
                    snapshot.hot = partition.hot.top(clock);
                }
                batch.snapshot = Some(Box::new(snapshot));
            }
        }
    }

    /// Returns all counters of this worker and its partition.
    fn snapshot(&mut self, partition: &Partition) -> Snapshot {
        let store = &partition.store;
        let mut snapshot = Snapshot {
            counters: self.counters,
            polling: self.polling,
            store: store.counters(),
            offload: partition.offload_counters(),
            slots: store.slots() as u64,
            age: store.age(partition.clock().second),
            transports: Vec::new(),
            latencies: Vec::new(),
            hot: Vec::new(),
            worker: self.index,
        };
        snapshot.counters.log_worker_written = partition.event_queue.written;
        snapshot.counters.log_worker_dropped = partition.event_queue.dropped;
        for front in &mut self.fronts {
            let transport = front.transport();
            if let Some(histograms) = front.latencies() {
                let histograms = Box::new(histograms.clone());
                snapshot.latencies.push(TransportLatency {
                    transport,
                    histograms,
                });
            }
            let count = |(what, count)| TransportCount {
                transport,
                what,
                count,
            };
            snapshot
                .transports
                .extend(front.counts().into_iter().map(count));
        }
        snapshot
    }

    /// Polls the sockets for at most `spin` and passes their events to the front ends.
    fn check(&mut self, spin: Duration) {
        readiness::wait(&mut self.poll, &mut self.events, Some(spin));
        for event in &self.events {
            let (front, local) = Tokens::split(event.token());
            if let Some(front) = self.fronts.get_mut(front) {
                front.ready(local, event);
            }
        }
    }

    /// Sleeps until an event arrives, unless work has already arrived.
    fn sleep(&mut self, walk: &WorkerCrawl) {
        // The flag is raised before the queues are checked: work pushed after the check finds the
        // flag and rings (see `parking`).
        self.wakeup.flag().raise();
        // A shutdown signals each worker once, maybe before this pass: it must not be slept through before the
        // drain has begun.
        let mut may_sleep = self.cross_core.is_quiet()
            && !(self.shutdown.is_set() && self.state.drain_end.is_none());
        for front in &mut self.fronts {
            // `&=` and not `&&`: each front end is armed, because each is disarmed below.
            may_sleep &= front.arm();
        }
        // A poll of no time is none: `herdwick top` shows how often the kernel has to wake a worker.
        self.polling.sleeps += u64::from(may_sleep);
        let ticks = self.fronts.iter().filter_map(|front| front.tick());
        let pause = walk.longest_sleep(&self.context.tunables.crawler);
        let longest = ticks.chain(pause).min().unwrap_or(TICK);
        self.check(if may_sleep { longest } else { Duration::ZERO });
        // After the poll: a producer that still sees the flag writes one wakeup too many, which
        // only ends the next poll early.
        self.wakeup.flag().lower();
        for front in &mut self.fronts {
            front.disarm();
        }
    }

    /// Drains the front ends. Returns whether the worker may end: when all workers have drained,
    /// because until then others may need this partition, or when `DRAIN` has passed.
    fn has_stopped(&mut self, now: Duration) -> bool {
        // The first call begins the drain, later ones only wait for its end.
        let end = *self.state.drain_end.get_or_insert_with(|| {
            for front in &mut self.fronts {
                front.drain();
            }
            now + DRAIN
        });
        if !self.state.drained && self.fronts.iter().all(|front| front.is_drained()) {
            self.state.drained = true;
            self.shutdown.one_drained();
        }
        // A connection here may have requests in another partition, and others may have some in
        // this one: no worker ends alone before `DRAIN` has passed.
        self.shutdown.all_drained() || now >= end
    }
}
