//! Tests of a front end over shared memory; the test plays the lease manager.

use std::sync::{Arc, mpsc};

use herdwick_herd::RequestPath;
use herdwick_shm::{PdSize, ShmDevice};
use mio::{Poll, Token, Waker};

use super::*;
use crate::{herd::lease::command_channel, settings::latency::Latency};

/// Only a failing test reaches this bound.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A command takes as long as the operating system needs: a pass that took all of them would delay
/// the clients it serves by as many claims as there are.
#[test]
fn pass_executes_one_command_and_the_worker_stays_awake_for_the_rest() {
    const COMMANDS: u64 = 5;
    let poll = Poll::new().unwrap();
    let (to_front, commands) = command_channel();
    let (answers, from_front) = mpsc::channel();
    let config = HerdConfig {
        worker: 0,
        workers: 1,
        leases_max: 8,
        spin: Duration::ZERO,
        reply_bytes_max: 4096,
        store: None,
        latency: Latency::default(),
        end: WorkerEnd {
            commands,
            answers,
            manager: Arc::new(Waker::new(poll.registry(), Token(0)).unwrap()),
        },
    };
    let device = ShmDevice::host(PdSize::NONE);
    let mut front = HerdFront::new("shm", device, config).unwrap();
    let terms = Terms {
        epoch: 1,
        window: 8,
        reply_bytes_max: 4096,
        path: RequestPath::UcWrite,
        reads: false,
        host: None,
        claim: herdwick_herd::hello::Claim {
            token: herdwick_herd::hello::Token([0; 16]),
            window: 8,
            reply_bytes_max: 4096,
            reads: false,
        },
    };
    for id in 0..COMMANDS {
        to_front.send(LeaseCommand::Grant(LeaseId(id), terms));
    }
    for id in 0..COMMANDS {
        assert!(!front.arm(), "work is pending");
        assert!(front.take_command());
        let answered: Vec<_> = from_front.try_iter().collect();
        assert!(
            matches!(&answered[..], [(0, LeaseAnswer::Granted(LeaseId(of), Some(_)))] if *of == id),
            "{answered:?}"
        );
    }
    assert!(front.arm() && !front.take_command());
    for id in 0..COMMANDS {
        to_front.send(LeaseCommand::Revoke(LeaseId(id)));
        assert!(front.take_command());
    }
    // The thread that releases the memory answers, when the memory is released.
    for _ in 0..COMMANDS {
        let answer = from_front.recv_timeout(TIMEOUT).unwrap();
        assert!(matches!(answer, (0, LeaseAnswer::Revoked(_))), "{answer:?}");
    }
    let counts = front.counts();
    assert!(counts.contains(&("leases_unreleased", 0)), "{counts:?}");
    assert!(front.held.is_empty());
}
