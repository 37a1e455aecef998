//! A worker: one thread that polls its fronts and its cross-core queues, executes what they carry
//! on its partition, and sleeps when there is no work.

use std::{sync::Arc, time::Duration};

use herdwick_mica::Clock;
use mio::{Events, Poll};

use crate::{
    context::Context,
    counters::{Snapshot, TransportCount, WorkerCounters},
    cross_core::CrossCore,
    forward::{ForwardBatch, Order},
    front::{Activity, Front, Pass, Tokens},
    parking::WakeupFd,
    partition::Partition,
    readiness,
    spin::AdaptiveSpin,
    stats::PollCounters,
    stopping::Stopping,
    time::Timer,
};

/// While work was recently found in memory, the sockets are polled only once in this many passes: a
/// poll of the sockets takes longer than a request.
const SOCKET_PASSES: u32 = 16;
/// Longest sleep of a worker, so that it notices timeouts.
const TICK: Duration = Duration::from_secs(1);
/// Time from the start of the shutdown after which unfinished connections are cut.
const DRAIN: Duration = Duration::from_secs(2);
/// Readiness taken from the kernel at a time.
pub(crate) const EVENTS: usize = 256;
/// Forwarded batches executed between two polls of the fronts.
const BATCHES: usize = 16;

/// One thread, one partition and its transports.
pub(crate) struct Worker {
    pub(crate) context: Arc<Context>,
    /// The bytes that the memory limit of the last pass left unused, in all partitions.
    pub(crate) unused: usize,
    pub(crate) partition: Partition,
    pub(crate) fronts: Vec<Box<dyn Front + Send>>,
    pub(crate) cross_core: CrossCore,
    pub(crate) poll: Poll,
    pub(crate) events: Events,
    pub(crate) wakeup: WakeupFd,
    pub(crate) timer: Timer,
    /// How long to poll for work before a sleep.
    pub(crate) spin: AdaptiveSpin,
    pub(crate) stopping: Arc<Stopping>,
    pub(crate) counters: WorkerCounters,
    pub(crate) polling: PollCounters,
    /// This worker's index.
    pub(crate) index: usize,
    /// When the drain ends, once it has begun.
    pub(crate) drain_end: Option<Duration>,
    /// This worker has finished its connections.
    pub(crate) drained: bool,
}

/// Whether a pass found work, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    Nothing,
    /// Work that an event announced.
    ByEvents,
    /// Work that a front found by polling memory.
    InMemory,
}

impl Worker {
    /// Serves until the server stops.
    pub(crate) fn run(mut self) {
        let (mut last_work, mut last_in_memory) = (Duration::ZERO, None);
        let (mut passes, mut worked) = (0u32, false);
        loop {
            let now = self.timer.now();
            if worked {
                last_in_memory = Some(now);
            }
            let found = self.pass(now);
            if found != Found::Nothing {
                last_work = now;
            }
            if self.stopping.is_set() && self.has_stopped(now) {
                return;
            }
            worked = found == Found::InMemory;
            let since = last_in_memory.map(|last| now.saturating_sub(last));
            if let (true, Some(since)) = (worked, since) {
                self.spin.learn(since);
            }
            let watches_memory = since.is_some_and(|since| since < self.spin.get());
            passes = passes.wrapping_add(1);
            let awake = watches_memory || worked;
            if awake && !passes.is_multiple_of(SOCKET_PASSES) {
                continue;
            }
            if awake || found != Found::Nothing || now.saturating_sub(last_work) < self.spin.base()
            {
                self.check(Duration::ZERO);
            } else {
                self.sleep();
            }
        }
    }

    /// Runs one pass: first the forwarded batches of other workers, then every front.
    fn pass(&mut self, now: Duration) -> Found {
        let clock = self.timer.clock(now);
        self.partition.journal.begin(now);
        let mut found = self.keep_limit();
        for _ in 0..BATCHES {
            let Some((peer, mut batch)) = self.cross_core.arrived() else {
                break;
            };
            found = Found::ByEvents;
            self.obey(peer, &mut batch, now);
            self.cross_core.give_back(peer, batch);
        }
        let mut pass = Pass {
            now,
            clock,
            store: &mut self.partition,
            cross_core: &mut self.cross_core,
            counters: &mut self.counters,
            registry: self.poll.registry(),
        };
        for front in &mut self.fronts {
            if front.pass(&mut pass) == Activity::Busy {
                let kind = if front.polls_memory() {
                    Found::InMemory
                } else {
                    Found::ByEvents
                };
                found = found.max(kind);
            }
        }
        self.cross_core.depart();
        found
    }

    /// Takes a step towards the memory limit. A worker with more to do does not sleep.
    fn keep_limit(&mut self) -> Found {
        let unused = self.context.tunables.memory.unused();
        let store = &mut self.partition.store;
        if unused != self.unused {
            self.unused = unused;
            store.leave_unused(unused / self.context.settings.workers);
        }
        if store.adjust() {
            Found::ByEvents
        } else {
            Found::Nothing
        }
    }

    /// Carries out the order of a forwarded batch from worker `peer`.
    fn obey(&mut self, peer: usize, batch: &mut ForwardBatch, now: Duration) {
        let clock = self.timer.clock(now);
        match batch.order {
            Order::Execute => {
                let (store, counters) = (&mut self.partition, &mut self.counters);
                self.cross_core
                    .execute((peer, batch), store, clock, counters);
            }
            Order::Flush(at) => self.partition.store.flush(clock.second, at),
            Order::Warp(warp) => self.timer.warp(warp, now),
            Order::Reset => {
                self.counters.reset();
                self.polling.reset();
                self.partition.reset();
            }
            Order::Dump(mut dump) => {
                let out = batch.text_mut();
                match dump.connection() {
                    None => dump.step(&mut self.partition.store, clock, out),
                    Some(from) => {
                        let mut fronts = self.fronts.iter();
                        let next = fronts.find_map(|f| f.connections(clock.second, from, out));
                        dump.showed(next);
                    }
                }
                batch.order = Order::Dump(dump);
            }
            Order::Detail(on) => self.partition.detail(on),
            Order::Prefixes => batch.prefixes = self.partition.counted().cloned().map(Box::new),
            Order::Count { hot } => {
                let mut snapshot = self.snapshot(clock);
                if hot {
                    snapshot.hot = self.partition.hot.top(clock);
                }
                batch.snapshot = Some(Box::new(snapshot));
            }
        }
    }

    /// Returns all counters of this worker.
    fn snapshot(&self, clock: Clock) -> Snapshot {
        let store = &self.partition.store;
        let mut snapshot = Snapshot {
            counters: self.counters,
            polling: self.polling,
            store: store.counters(),
            slots: store.slots() as u64,
            age: store.age(clock.second),
            transports: Vec::new(),
            hot: Vec::new(),
            worker: self.index,
        };
        snapshot.counters.log_worker_written = self.partition.journal.written;
        snapshot.counters.log_worker_dropped = self.partition.journal.dropped;
        for front in &self.fronts {
            let transport = front.transport();
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

    /// Polls the sockets for at most `spin` and passes their events to the fronts.
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
    fn sleep(&mut self) {
        // The flag is raised before the queues are checked: work pushed after the check finds the
        // flag and rings (see `parking`).
        self.wakeup.flag().raise();
        let mut may_sleep =
            self.cross_core.is_quiet() && !(self.stopping.is_set() && self.drain_end.is_none());
        for front in &mut self.fronts {
            may_sleep &= front.arm();
        }
        self.polling.sleeps += u64::from(may_sleep);
        let ticks = self.fronts.iter().filter_map(|front| front.tick());
        let longest = ticks.min().unwrap_or(TICK);
        self.check(if may_sleep { longest } else { Duration::ZERO });
        self.wakeup.flag().lower();
        for front in &mut self.fronts {
            front.disarm();
        }
    }

    /// Drains the fronts. Returns whether the worker may end: when all workers have drained,
    /// because until then others may need this partition, or when `DRAIN` has passed.
    fn has_stopped(&mut self, now: Duration) -> bool {
        let end = *self.drain_end.get_or_insert_with(|| {
            for front in &mut self.fronts {
                front.drain();
            }
            now + DRAIN
        });
        if !self.drained && self.fronts.iter().all(|front| front.is_drained()) {
            self.drained = true;
            self.stopping.one_drained();
        }
        self.stopping.all_drained() || now >= end
    }
}
