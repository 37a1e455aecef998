//! What the network does under faults, how it counts them, and what its hash covers.

mod common;

use std::time::Duration;

use common::{BYTES, End, connect, pair, queue_pair};
use herdwick_fabric::{Completion, CqSpec, Device, Payload, Port, SendOp, Status, Transport};
use herdwick_sim::{FaultCounts, Faults, RETRY_DEADLINE, SeededNetwork};

fn linked(network: &SeededNetwork, transport: Transport) -> [End; 2] {
    pair([(); 2].map(|()| network.device()), transport)
}

fn read(a: &mut End, b: &End, offset: usize, len: usize) {
    let from = b.remote().offset(offset as u64);
    let into = a.local(len);
    a.post(a.qp, SendOp::Read { into, from });
}

fn write(a: &mut End, b: &End, payload: &[u8]) {
    let (payload, to) = (Payload::Inline(payload), b.remote());
    let imm = None;
    a.post(a.qp, SendOp::Write { payload, to, imm });
}

/// The counts after `messages` WRITEs of a word over UC under these faults.
fn counts(faults: Faults, messages: usize) -> FaultCounts {
    let network = SeededNetwork::new(5);
    let [mut a, b] = linked(&network, Transport::Uc);
    network.set_faults(faults);
    let mut out = [Completion::BLANK; 32];
    for _ in 0..messages {
        write(&mut a, &b, &[1; 8]);
        network.step();
        a.port.poll(a.cq, &mut out);
    }
    network.run(Duration::from_secs(1));
    network.fault_counts()
}

#[test]
fn faults_without_an_effect_are_not_counted() {
    let strays = Faults {
        reorder_per_mille: 1000,
        reorder_window: Duration::from_micros(1),
        ..Faults::default()
    };
    assert_eq!(counts(strays.clone(), 1).reordered, 0, "none to overtake");
    let many = counts(strays, 100).reordered;
    assert!((1..100).contains(&many), "{many}: the first overtakes none");
    let twice = Faults {
        duplicate_per_mille: 1000,
        ..Faults::default()
    };
    assert_eq!(counts(twice.clone(), 10).duplicated, 10);
    let and_lost = Faults {
        drop_per_mille: 1000,
        ..twice
    };
    assert_eq!(counts(and_lost, 10).duplicated, 0, "neither arrives");
}

#[test]
fn a_read_of_one_word_is_not_torn() {
    let torn = |len| {
        let network = SeededNetwork::new(5);
        let [mut a, b] = linked(&network, Transport::Rc);
        network.set_faults(Faults {
            tear_reads: Duration::from_micros(1),
            ..Faults::default()
        });
        for _ in 0..10 {
            read(&mut a, &b, 0, len);
        }
        network.run(Duration::from_millis(1));
        network.fault_counts().torn
    };
    assert_eq!(torn(8), 0);
    assert!((1..=10).contains(&torn(BYTES)));
}

/// A request on another completion queue than the overrun one is repeated, and fails in its time.
#[test]
fn an_overrun_leaves_other_queues_alone() {
    let network = SeededNetwork::new(5);
    let [mut a, mut b] = linked(&network, Transport::Rc);
    let cq = a.device.create_cq(&mut a.port, &CqSpec { depth: 64 });
    let cq = cq.unwrap();
    let ours = queue_pair(&a.device, &mut a.port, (a.pd, cq, Transport::Rc));
    let theirs = queue_pair(&b.device, &mut b.port, (b.pd, b.cq, Transport::Rc));
    connect([&mut a, &mut b], [ours, theirs]);
    network.set_faults(Faults {
        drop_per_mille: 1000,
        ..Faults::default()
    });
    let (payload, to) = (Payload::Inline(&[1; 8]), b.remote());
    a.post(
        ours,
        SendOp::Write {
            payload,
            to,
            imm: None,
        },
    );
    network.step();
    network.overrun(a.port.party(), 0);
    network.run(2 * RETRY_DEADLINE + Duration::from_millis(10));
    let mut out = [Completion::BLANK; 4];
    assert_eq!(a.port.poll(cq, &mut out), 1);
    assert_eq!(out[0].status, Status::RetryExceeded);
}

/// What a killed process sent does not arrive, also when its port is dropped.
#[test]
fn nothing_of_the_killed_arrives() {
    let landed = |kills: bool| {
        let network = SeededNetwork::new(5);
        let [mut a, b] = linked(&network, Transport::Uc);
        network.set_faults(Faults {
            delay_min: Duration::from_micros(5),
            delay_max: Duration::from_micros(5),
            ..Faults::default()
        });
        write(&mut a, &b, &[9; 8]);
        network.step();
        if kills {
            network.stop(a.port.party());
        }
        drop(a);
        network.run(Duration::from_millis(1));
        let mut seen = [0; 8];
        b.port.region(b.region).unwrap().read_bytes(0, &mut seen);
        seen == [9; 8]
    };
    assert!(
        landed(false),
        "what was sent arrives though its port is closed"
    );
    assert!(!landed(true));
}

/// The hash covers what a request does, not only when it arrives.
#[test]
fn hashes_of_other_addresses_and_lengths_differ() {
    let hash = |offset, len| {
        let network = SeededNetwork::new(5);
        let [mut a, b] = linked(&network, Transport::Rc);
        read(&mut a, &b, offset, len);
        network.run(Duration::from_millis(1));
        network.trace()
    };
    assert_eq!(hash(0, 8), hash(0, 8));
    assert_ne!(hash(0, 8), hash(8, 8), "another address");
    assert_ne!(hash(0, 8), hash(0, 16), "another length");
}
