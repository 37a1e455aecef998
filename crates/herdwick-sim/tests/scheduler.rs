//! Processes on virtual cores: one pass at a time, and each takes its time.

mod common;

use std::time::Duration;

use common::{End, pair};
use herdwick_fabric::{Completion, Payload, Port, Remote, SendOp, Transport};
use herdwick_sim::{PartyId, Process, Profile, Scheduler, SeededNetwork, Step};

const MICROSECOND: Duration = Duration::from_micros(1);

/// Two parties, each on a host of its own.
fn hosts() -> (SeededNetwork, [End; 2]) {
    let apt = Profile::named("apt").unwrap();
    let network = SeededNetwork::of(1, &apt);
    let devices = [(); 2].map(|()| network.device_at(network.host(&apt)));
    (network, pair(devices, Transport::Uc))
}

/// Idle until 5 us, then busy for 10 us at a time. It notes when its passes begin.
struct Busy {
    end: End,
    passes: Vec<Duration>,
}

impl Process for Busy {
    fn party(&self) -> PartyId {
        self.end.port.party()
    }

    fn step(&mut self, now: Duration) -> Step {
        self.passes.push(now);
        let starts = 5 * MICROSECOND;
        Step {
            moved: now >= starts,
            cost_ns: if now < starts { 10.0 } else { 10_000.0 },
            deadline: Some(starts),
        }
    }
}

/// Posts a WRITE at 6 us.
struct Writer {
    end: End,
    to: Remote,
    at: Duration,
    posts: usize,
}

impl Process for Writer {
    fn party(&self) -> PartyId {
        self.end.port.party()
    }

    fn step(&mut self, now: Duration) -> Step {
        let mut out = [Completion::BLANK; 32];
        self.end.port.poll(self.end.cq, &mut out);
        let posts = self.posts > 0 && now >= self.at;
        if posts {
            self.posts -= 1;
            let (payload, to) = (Payload::Inline(&[1; 8]), self.to);
            let qp = self.end.qp;
            self.end.post(
                qp,
                SendOp::Write {
                    payload,
                    to,
                    imm: None,
                },
            );
        }
        Step {
            moved: posts,
            cost_ns: 0.0,
            deadline: (now < self.at).then_some(self.at),
        }
    }
}

/// A WRITE that arrives while a process is busy waits for the end of the pass.
#[test]
fn passes_of_a_core_do_not_overlap() {
    let (network, [busy, writer]) = hosts();
    let to = busy.remote();
    let mut busy = Busy {
        end: busy,
        passes: Vec::new(),
    };
    let mut writer = Writer {
        end: writer,
        to,
        at: 6 * MICROSECOND,
        posts: 1,
    };
    let mut scheduler = Scheduler::new(&network, vec![&mut busy, &mut writer]);
    scheduler.run(40 * MICROSECOND);
    let busy_for = scheduler.busy(0);
    assert_eq!(busy_for, 35 * MICROSECOND, "not what is done later");
    let late: Vec<_> = busy
        .passes
        .iter()
        .filter(|at| **at >= 5 * MICROSECOND)
        .collect();
    assert!(late.len() >= 3, "{late:?}");
    for two in late.windows(2) {
        assert!(*two[1] - *two[0] >= 10 * MICROSECOND, "{late:?}");
    }
}

/// Another scheduler goes on where the last one ended.
#[test]
fn busy_cores_stay_busy_from_one_scheduler_to_the_next() {
    let (network, [busy, _]) = hosts();
    let mut busy = Busy {
        end: busy,
        passes: Vec::new(),
    };
    for end in 1..40 {
        Scheduler::new(&network, vec![&mut busy]).run(end * MICROSECOND);
    }
    let late = busy.passes.iter().filter(|at| **at >= 5 * MICROSECOND);
    assert_eq!(late.count(), 4, "{:?}", busy.passes);
}

/// A slow core is slow at all that it does, posts included.
#[test]
fn a_slow_core_posts_slowly() {
    let busy = |times| {
        let (network, [end, other]) = hosts();
        network.slow(end.port.party(), times);
        let mut writer = Writer {
            to: other.remote(),
            end,
            at: Duration::ZERO,
            posts: 20,
        };
        let mut scheduler = Scheduler::new(&network, vec![&mut writer]);
        scheduler.run(Duration::from_millis(1));
        scheduler.busy(0)
    };
    assert!(busy(1) >= 20 * Duration::from_nanos(150), "{:?}", busy(1));
    assert!(busy(10) >= 9 * busy(1), "{:?}, {:?}", busy(1), busy(10));
}
