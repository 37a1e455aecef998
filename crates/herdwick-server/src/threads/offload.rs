//! The thread that keeps the secondary store up to date (docs/hkvs.md): a client of that store with the right to
//! write it. While there is no connection, the workers go on alone.

use std::{collections::HashMap, sync::Arc, time::Duration};

use herdwick::{
    Address, Answer, Fallback, Key, LeaseRefusal, Mode, Op, Options, Put, Session, StoreId, Ticket,
};
use herdwick_hkvs::{CONNECT_EVERY, SyncAnswer, SyncEnd, SyncOp, SyncToken, Syncer};
use mio::{Events, Poll};

use crate::{
    runtime::{
        offload::OffloadLink,
        readiness::{self, EVENTS},
        shutdown::Shutdown,
        time::ServerClock,
    },
    telemetry::offload::OffloadCounters,
};

/// Pause before the second attempt to connect; it doubles with each that fails ...
const PAUSE: Duration = Duration::from_millis(100);
/// ... up to this: a secondary store that is back is used after a second.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Longest sleep: a client of Clover calls its metadata server now and then.
const TICK: Duration = Duration::from_millis(20);
/// How long the secondary store may take for an operation, and to connect.
const DEADLINE: Duration = Duration::from_secs(1);
/// Requests in flight.
const WINDOW: usize = 64;

/// The thread.
pub(crate) struct OffloadThread {
    pub(crate) address: Address,
    pub(crate) options: Options,
    /// Of each worker.
    pub(crate) ends: Vec<SyncEnd>,
    /// Slots of each.
    pub(crate) slots: usize,
    pub(crate) link: Arc<OffloadLink>,
    pub(crate) poll: Poll,
    pub(crate) timer: ServerClock,
    pub(crate) counters: Arc<OffloadCounters>,
}

/// A thread that runs.
struct Running {
    thread: OffloadThread,
    shutdown: Arc<Shutdown>,
    events: Events,
    syncer: Syncer,
    /// The number of the last connection.
    epoch: u64,
    attempts: Attempts,
    /// The operations under way.
    tokens: HashMap<Ticket, SyncToken>,
    answers: Vec<(SyncToken, SyncAnswer)>,
}

/// When connections may begin.
#[derive(Debug)]
struct Attempts {
    /// The next one.
    next: Duration,
    /// How long to wait after the next attempt that fails.
    pause: Duration,
}

impl Attempts {
    fn new() -> Self {
        Self {
            next: Duration::ZERO,
            pause: PAUSE,
        }
    }

    /// Returns how long to wait for the next attempt.
    fn left(&self, now: Duration) -> Duration {
        self.next.saturating_sub(now)
    }

    fn failed(&mut self, now: Duration) {
        self.next = now + self.pause;
        self.pause = PAUSE_MAX.min(self.pause * 2);
    }

    /// Notes that a connection has begun. The numbers of connections come again, so the next one may not follow at
    /// once.
    fn connected(&mut self, now: Duration) {
        *self = Self {
            next: now + CONNECT_EVERY,
            pause: PAUSE,
        };
    }
}

impl OffloadThread {
    /// Returns the options of its sessions.
    pub(crate) fn options(secret: herdwick::Secret) -> Options {
        Options {
            deadline: DEADLINE,
            window: WINDOW,
            secret: Some(secret),
            ..Options::default()
        }
    }

    /// Runs until the server stops.
    pub(crate) fn run(self, shutdown: Arc<Shutdown>) {
        let mut running = Running {
            syncer: Syncer::new(self.ends.len(), self.slots),
            thread: self,
            shutdown,
            events: Events::with_capacity(EVENTS),
            epoch: 0,
            attempts: Attempts::new(),
            tokens: HashMap::new(),
            answers: Vec::new(),
        };
        while !running.shutdown.is_set() {
            running.idle();
            if let Some((session, store)) = running.connect() {
                running.follow(session, store);
            }
        }
    }
}

impl Running {
    /// Takes the changes of workers that go on alone until the next attempt.
    fn idle(&mut self) {
        while !self.shutdown.is_set() {
            self.take_changes();
            let left = self.attempts.left(self.thread.timer.now());
            if left.is_zero() {
                return;
            }
            // The end of the server does not wake this thread.
            self.sleep(left.min(PAUSE));
        }
    }

    /// Connects, if that is possible.
    fn connect(&mut self) -> Option<(Session, StoreId)> {
        let OffloadThread {
            address,
            options,
            counters,
            timer,
            ..
        } = &self.thread;
        let session = Session::dial(address, options);
        let refused = session.as_ref().is_ok_and(is_refused);
        let begun = session.ok().and_then(|session| {
            let store = session.began_store()?;
            Some((session, store))
        });
        match refused {
            true => counters.secret_refused(),
            false if begun.is_none() => counters.unreachable(),
            false => {}
        }
        match begun {
            Some(_) => self.attempts.connected(timer.now()),
            None => self.attempts.failed(timer.now()),
        }
        begun
    }

    /// Replicates until the connection is lost.
    fn follow(&mut self, mut session: Session, store: StoreId) {
        self.epoch += 1;
        // The epoch before the link: a worker that sees the link sends changes of this epoch.
        self.syncer.begin(self.epoch);
        self.thread.counters.connected(true);
        self.thread.link.set(self.epoch, store);
        while !self.shutdown.is_set() && self.step(&mut session).is_some() {}
        // The reverse: workers stop first, and what they have sent comes back as lost.
        self.thread.link.unset();
        self.thread.counters.connected(false);
        self.tokens.clear();
        for (worker, change) in self.syncer.abandon() {
            // There is room for all changes.
            let _ = self.thread.ends[worker].back.push(change);
        }
    }

    /// One round: takes changes, begins operations, takes answers. `None`: the connection is lost.
    fn step(&mut self, session: &mut Session) -> Option<()> {
        let now = self.thread.timer.now();
        self.take_changes();
        self.begin(session, now);
        session.flush(now);
        self.take_answers(session, now)?;
        if session.broken().is_some() {
            return None;
        }
        if !self.tokens.is_empty() {
            session.wait(now);
        } else if self.syncer.is_idle() {
            self.sleep(TICK);
        }
        Some(())
    }

    fn take_changes(&mut self) {
        for (worker, end) in self.thread.ends.iter_mut().enumerate() {
            while let Some(change) = end.changes.pop() {
                if let Some(change) = self.syncer.accept(worker, change) {
                    let _ = end.back.push(change);
                }
            }
        }
    }

    fn begin(&mut self, session: &mut Session, now: Duration) {
        while let Some((token, op)) = self.syncer.next_op() {
            let (key, op) = match op {
                SyncOp::Store { key, record } => (key, Op::Store(Mode::Set, Put::new(record))),
                SyncOp::Delete { key } => (key, Op::Delete),
            };
            // No such key is admitted.
            let Ok(key) = Key::new(key) else {
                self.syncer.begun();
                self.answers.push((token, SyncAnswer::Refused));
                continue;
            };
            // The window is full: the operation stays the next one.
            let Some(ticket) = session.submit(now, key, &op) else {
                return;
            };
            self.syncer.begun();
            self.tokens.insert(ticket, token);
        }
    }

    fn take_answers(&mut self, session: &mut Session, now: Duration) -> Option<()> {
        let Self {
            tokens, answers, ..
        } = self;
        let mut lost = false;
        session.poll(now, &mut |ticket, answer| {
            let Some(token) = tokens.remove(&ticket) else {
                return;
            };
            match answer {
                // A key to be deleted that is not there is as good as deleted.
                Answer::Done | Answer::Miss => answers.push((token, SyncAnswer::Done)),
                Answer::Refused(_) if token.stores() => {
                    answers.push((token, SyncAnswer::Refused));
                }
                // What cannot be deleted must not stay: another connection begins with an empty store.
                _ => lost = true,
            }
        });
        for (token, answer) in self.answers.drain(..) {
            if let Some((worker, change)) = self.syncer.answered(token, answer) {
                let delay = change.age(self.thread.timer.now());
                self.thread.counters.delayed(delay);
                let _ = self.thread.ends[worker].back.push(change);
            }
        }
        (!lost).then_some(())
    }

    /// Sleeps until a worker has sent a change, for `limit` at most.
    fn sleep(&mut self, limit: Duration) {
        let OffloadThread {
            poll, link, ends, ..
        } = &mut self.thread;
        // As a worker does (`parking`): raised before the queues are looked at for the last time.
        link.wakeup.flag().raise();
        let is_quiet = ends.iter_mut().all(|end| end.changes.is_empty());
        let limit = match is_quiet && !self.shutdown.is_set() {
            true => limit,
            false => Duration::ZERO,
        };
        readiness::wait(poll, &mut self.events, Some(limit));
        link.wakeup.flag().lower();
    }
}

/// Returns whether what stands there is no secondary store, or was shown another secret than its own.
fn is_refused(session: &Session) -> bool {
    let token = Fallback::Refused(LeaseRefusal::Token);
    let missed = session.missed();
    missed.is_some_and(|why| *why == token || *why == Fallback::NotSecondary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rarer_until_one_succeeds_and_connections_do_not_follow_at_once() {
        let mut attempts = Attempts::new();
        let mut now = Duration::from_secs(7);
        assert_eq!(
            attempts.left(now),
            Duration::ZERO,
            "the first is made at once"
        );
        for _ in 0..2 {
            for pause in [100, 200, 400, 800, 1000, 1000, 1000] {
                attempts.failed(now);
                let left = attempts.left(now);
                assert_eq!(left, Duration::from_millis(pause));
                assert_eq!(attempts.left(now + left), Duration::ZERO);
                now += left;
            }
            attempts.connected(now);
            assert_eq!(attempts.left(now), CONNECT_EVERY);
            // One that is lost after that is followed by another at once.
            now += CONNECT_EVERY;
            assert_eq!(attempts.left(now), Duration::ZERO);
        }
    }
}
