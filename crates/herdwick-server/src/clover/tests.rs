//! Tests of the front end of a secondary store whose primary has gone; the test is the worker.

use std::{
    any::Any,
    sync::{Arc, mpsc},
};

use herdwick_herd::hello::{Claim, Token};
use herdwick_mica::StoreConfig;
use herdwick_request::{Clock, Second};
use mio::{Poll, Waker};

use super::*;
use crate::{
    herd::{fabrics::OpenFabrics, lease::command_channel},
    runtime::{
        cross_core::CrossCore,
        parking::WakeupFd,
        partition::PassStart,
        partition_lock::{Own, Partitions},
        store::Store,
    },
    settings::config::Config,
    telemetry::{snapshot::WorkerCounters, watch::EventQueue},
};

const HASH_KEY: HashKey = HashKey([1, 2]);
const SECRET: Secret = Secret([7; 16]);
const BYTES: usize = 32 << 20;

/// The front end, and what a worker has besides.
struct Fixture {
    front: CloverFront,
    partitions: Partitions,
    cross_core: CrossCore,
    counters: WorkerCounters,
    poll: Poll,
    timer: ServerClock,
    /// The lease manager's ends of the channels.
    _manager: Box<dyn Any>,
}

impl Fixture {
    fn new() -> Self {
        let poll = Poll::new().unwrap();
        let (commands, receiver) = command_channel();
        let (answers, answered) = mpsc::channel();
        let manager = Poll::new().unwrap();
        let end = WorkerEnd {
            commands: receiver,
            answers,
            manager: Arc::new(Waker::new(manager.registry(), mio::Token(0)).unwrap()),
        };
        let fabrics = OpenFabrics::open(&mut Config::local(), 1).unwrap();
        let fabric = herdwick_providers::Fabric::local().next().unwrap();
        let config = CloverConfig {
            bytes: BYTES,
            clients_max: 4,
            hash_key: HASH_KEY,
            secret: SECRET,
            secondary: Some(SECRET),
            end,
        };
        let timer = ServerClock::start();
        let front = CloverFront::open(fabrics.device(fabric).unwrap(), config, timer).unwrap();
        let store = StoreConfig {
            memory_bytes: 2 << 20,
            item_bytes_max: 64 << 10,
            hash_key: HASH_KEY,
        };
        let events = EventQueue::new(Arc::default()).0;
        let partitions = Partitions::new(
            vec![Store::new(&store).unwrap()],
            vec![events],
            0,
            Vec::new(),
        );
        let wakeup = WakeupFd::new(Waker::new(poll.registry(), mio::Token(usize::MAX)).unwrap());
        let (mut cross_cores, _) = CrossCore::connect(&[wakeup], None);
        Self {
            front,
            partitions,
            cross_core: cross_cores.pop().unwrap(),
            counters: WorkerCounters::default(),
            poll,
            timer,
            _manager: Box::new((commands, answered)),
        }
    }

    fn pass(&mut self, now: Duration) -> Activity {
        let mut pass = Pass {
            start: PassStart {
                now,
                clock: Clock {
                    epoch_unix: 0,
                    second: Second(2),
                },
                unused: 0,
            },
            timer: &self.timer,
            whole: true,
            goes_on: &mut false,
            own: Own::Shared(self.partitions.of(0)),
            partitions: &self.partitions,
            cross_core: &mut self.cross_core,
            counters: &mut self.counters,
            registry: self.poll.registry(),
        };
        self.front.pass(&mut pass)
    }

    /// Makes passes until no thread opens memory.
    fn pass_until_opened(&mut self, now: Duration) {
        self.pass(now);
        while matches!(self.front.emptying, Emptying::Opens(_)) {
            self.pass(now);
            thread::yield_now();
        }
    }

    /// A primary comes, and what becomes of its claim.
    fn claim(&mut self) -> Admission {
        let token = Token([3; 16]);
        let [window, reply_bytes_max] = SECRET.proof(&token.0);
        let claim = Claim {
            token,
            window,
            reply_bytes_max,
            reads: false,
        };
        self.secondary().admit(LeaseId(1), &claim)
    }

    /// A primary has come and gone.
    fn abandon(&mut self) {
        assert_eq!(self.claim(), Admission::Admit(Right::Write));
        self.secondary().connecting(LeaseId(1));
        assert!(self.secondary().ended(LeaseId(1)));
    }

    fn secondary(&mut self) -> &mut Secondary {
        self.front.secondary.as_mut().unwrap()
    }

    fn failed(&self) -> u64 {
        let counts = self.front.counts();
        let mut named = counts
            .iter()
            .filter(|(name, _)| *name == "clover_reopens_failed");
        named.next().unwrap().1
    }
}

#[test]
fn a_worker_does_other_work_between_the_steps_in_which_the_memory_is_emptied() {
    let mut fixture = Fixture::new();
    fixture.abandon();
    let mut passes = 0;
    while fixture.front.is_abandoned() {
        let activity = fixture.pass(Duration::from_secs(1));
        if fixture.front.begins() {
            // Nothing waits for an event, and after each the worker looks for other work.
            assert_eq!(activity, Activity::Busy);
            assert!(!fixture.front.arm());
            passes += 1;
        }
        thread::yield_now();
    }
    assert!(passes > 10, "{passes}");
    assert_eq!(fixture.failed(), 0);
    fixture.abandon();
}

#[test]
fn emptying_that_fails_is_repeated_after_a_second_without_any_event() {
    let mut fixture = Fixture::new();
    fixture.abandon();
    fixture.front.parts.bytes = 0;
    let begun = Duration::from_secs(5);
    for (after, failed) in [(0, 1), (999, 1), (1000, 2), (1999, 2)] {
        fixture.pass_until_opened(begun + Duration::from_millis(after));
        assert_eq!(fixture.failed(), failed, "after {after} ms");
        assert_eq!(fixture.claim(), Admission::Later);
        assert_eq!(fixture.front.tick(), Some(TICK), "the worker wakes up");
    }
    fixture.front.parts.bytes = BYTES;
    let now = begun + Duration::from_millis(2000);
    fixture.pass_until_opened(now);
    // The metadata server does not begin in time.
    assert!(fixture.front.begins());
    fixture.pass(now + START);
    assert_eq!(fixture.failed(), 3);
    let now = now + START + PAUSE;
    while fixture.front.is_abandoned() {
        fixture.pass(now);
    }
    assert_eq!((fixture.failed(), fixture.front.tick()), (3, None));
    fixture.abandon();
}
