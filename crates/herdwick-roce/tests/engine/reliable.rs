//! RC over good and bad links: every verb, losses, duplicates, refusals, timeouts.

use std::collections::BTreeMap;

use herdwick_fabric::{
    Access, Completion, Local, Opcode, Payload, PostError, QpId, QpState, RegionId, Remote, Rkey,
    SendOp, Status, Transport,
};
use herdwick_roce::{Config, Drop, RD_ATOMIC_MAX, Retry};

use crate::{
    link::{A, B, Faults, REGION, World},
    unreliable::{pattern, signaled},
};

/// A connection, and a region on B with every right.
struct Pair {
    world: World,
    qps: [QpId; 2],
    region: RegionId,
    at: Remote,
}

fn pair(seed: u64, config: &Config) -> Pair {
    Pair::new(World::new(seed, config))
}

impl Pair {
    fn new(mut world: World) -> Self {
        let qps = world.connected(Transport::Rc);
        let region = world.sides[B].region(Access::ALL);
        let at = world.sides[B].remote(region);
        Self {
            world,
            qps,
            region,
            at,
        }
    }

    fn post(&mut self, wr_id: u64, op: SendOp<'_>) {
        self.world.sides[A].post(self.qps[A], &[signaled(wr_id, op)]);
    }

    fn perform(&mut self, op: SendOp<'_>) -> Completion {
        self.post(1, op);
        let done = self.world.next(A);
        assert_eq!((done.wr_id, done.status), (1, Status::Success));
        done
    }

    /// A range on A for payloads and results.
    fn local(&self, offset: usize, len: usize) -> Local {
        Local {
            region: self.world.sides[A].inbox,
            offset,
            len,
        }
    }

    fn memory(&mut self, side: usize, region: RegionId) -> &mut [u8] {
        let bank = &mut self.world.sides[side].bank;
        bank.regions.get_mut(&region).expect("registered")
    }

    fn fill(&mut self, offset: usize, bytes: &[u8]) -> Payload<'static> {
        let region = self.world.sides[A].inbox;
        self.memory(A, region)[offset..offset + bytes.len()].copy_from_slice(bytes);
        Payload::Region(self.local(offset, bytes.len()))
    }

    fn word(&mut self, side: usize, region: RegionId, offset: usize) -> u64 {
        let word = &self.memory(side, region)[offset..offset + 8];
        u64::from_le_bytes(word.try_into().expect("eight bytes"))
    }
}

fn write(payload: Payload<'_>, to: Remote) -> SendOp<'_> {
    SendOp::Write {
        payload,
        to,
        imm: None,
    }
}

fn send(payload: Payload<'_>) -> SendOp<'_> {
    SendOp::Send {
        payload,
        imm: None,
        to: None,
    }
}

#[test]
fn every_verb_works_at_every_size() {
    let mut pair = pair(1, &Config::default());
    for (salt, len) in [0usize, 1, 64, 255, 256, 257, 600, 10_000]
        .into_iter()
        .enumerate()
    {
        let bytes = pattern(len, salt as u8);
        let payload = pair.fill(0, &bytes);
        pair.perform(write(payload, pair.at.offset(5)));
        let region = pair.region;
        assert_eq!(pair.memory(B, region)[5..5 + len], bytes);
        let into = pair.local(20_000, len);
        let from = pair.at.offset(5);
        assert_eq!(
            pair.perform(SendOp::Read { into, from }).opcode,
            Opcode::Read
        );
        let inbox = into.region;
        assert_eq!(pair.memory(A, inbox)[20_000..20_000 + len], bytes);
        if len <= 1024 {
            pair.world.sides[B].recv(pair.qps[B], 7);
            pair.perform(send(payload));
            let got = pair.world.next(B);
            assert_eq!((got.wr_id, got.byte_len as usize), (7, len));
        }
    }
    let into = pair.local(8, 8);
    let at = pair.at.offset(64 * 1024 - 8);
    let region = pair.region;
    pair.perform(SendOp::FetchAdd { into, at, add: 5 });
    assert_eq!(pair.word(A, into.region, 8), 0);
    pair.perform(SendOp::CompareSwap {
        into,
        at,
        expected: 5,
        new: 9,
    });
    assert_eq!(pair.word(A, into.region, 8), 5);
    pair.perform(SendOp::CompareSwap {
        into,
        at,
        expected: 5,
        new: 1,
    });
    assert_eq!(pair.word(A, into.region, 8), 9);
    assert_eq!(pair.word(B, region, REGION - 8), 9);
    let retransmitted = pair.world.sides[A]
        .engine
        .counters()
        .connections
        .retransmitted;
    assert_eq!(retransmitted, 0, "nothing was lost");
}

#[test]
fn one_acknowledgement_completes_a_batch() {
    let mut pair = pair(1, &Config::default());
    for id in 0..32 {
        pair.post(id, write(Payload::Words(&[id]), pair.at));
    }
    for id in 0..32 {
        assert_eq!(pair.world.next(A).wr_id, id);
    }
    assert_eq!((pair.world.sent[A], pair.world.sent[B]), (32, 1));
}

/// Random requests from A to B; B's memory and A's results are checked at the end.
fn storm(seed: u64, faults: Faults, messages: u64) {
    let mut pair = pair(seed, &Config::default());
    pair.world.faults = faults;
    storm_over(pair, seed, messages);
}

pub(crate) fn keyed_storm(seed: u64, faults: Faults, messages: u64) {
    let mut world = World::new(seed, &Config::default());
    world.keyed = true;
    let mut pair = Pair::new(world);
    pair.world.faults = faults;
    storm_over(pair, seed, messages);
}

fn storm_over(mut pair: Pair, seed: u64, messages: u64) {
    let (mut posted, mut ended, mut received, mut sent) = (0, 0, 0, Vec::new());
    let counter = pair.at.offset(0);
    let mut adds = 0;
    // The destination and the expected value of each FETCH_ADD's result.
    let mut originals = BTreeMap::new();
    (0..64).for_each(|id| pair.world.sides[B].recv(pair.qps[B], id));
    while ended < messages {
        if posted < messages && posted - ended < 16 {
            let slot = posted as usize % 16 * 2048;
            let kind = pair.world.random(4);
            let len = pair.world.random(1000) as usize + 1;
            let into = pair.local(slot, len);
            match kind {
                0 => {
                    let bytes = pattern(len, posted as u8);
                    let payload = pair.fill(slot, &bytes);
                    sent.push(bytes);
                    pair.post(posted, send(payload));
                }
                1 => {
                    let bytes = pattern(len, posted as u8);
                    let payload = pair.fill(slot, &bytes);
                    pair.post(posted, write(payload, pair.at.offset(4096 + slot as u64)));
                }
                2 => {
                    let into = Local { len: 8, ..into };
                    originals.insert(posted, (slot, adds));
                    adds += 1;
                    pair.post(
                        posted,
                        SendOp::FetchAdd {
                            into,
                            at: counter,
                            add: 1,
                        },
                    );
                }
                _ => {
                    let from = pair.at.offset(48 * 1024);
                    pair.post(posted, SendOp::Read { into, from });
                }
            }
            posted += 1;
        }
        pair.world.step();
        while let Some(done) = pair.world.sides[A].done.pop_front() {
            assert_eq!(
                (done.wr_id, done.status),
                (ended, Status::Success),
                "seed {seed}"
            );
            if let Some((slot, original)) = originals.remove(&ended) {
                let inbox = pair.world.sides[A].inbox;
                assert_eq!(pair.word(A, inbox, slot), original, "seed {seed}");
            }
            ended += 1;
        }
        while let Some(got) = pair.world.sides[B].done.pop_front() {
            assert_eq!(got.status, Status::Success);
            let bytes: &Vec<u8> = &sent[received];
            assert_eq!(
                got.byte_len as usize,
                bytes.len(),
                "seed {seed}: in order and exactly once"
            );
            if got.inline.is_none() {
                let inbox = pair.world.sides[B].inbox;
                let at = got.wr_id as usize * 1024;
                assert_eq!(pair.memory(B, inbox)[at..at + bytes.len()], *bytes);
            }
            received += 1;
            pair.world.sides[B].recv(pair.qps[B], got.wr_id);
        }
    }
    pair.world.faults = Faults::default();
    pair.world.run(100);
    assert_eq!(received, sent.len(), "seed {seed}");
    let region = pair.region;
    assert_eq!(
        pair.word(B, region, 0),
        adds,
        "seed {seed}: each add counts once"
    );
}

#[test]
fn lossless_link_delivers_a_mixed_load() {
    storm(1, Faults::default(), 2000);
}

#[test]
fn lossy_link_delivers_every_request_once() {
    for seed in 0..40 {
        let faults = Faults {
            drop: 30,
            duplicate: 30,
            reorder: 50,
            corrupt: 20,
        };
        storm(seed, faults, 200);
    }
}

#[test]
fn very_lossy_link_is_slow_but_correct() {
    for seed in 0..8 {
        let faults = Faults {
            drop: 120,
            duplicate: 100,
            reorder: 200,
            corrupt: 50,
        };
        storm(seed, faults, 60);
    }
}

#[test]
fn write_is_stored_in_order_and_once() {
    for seed in 0..20 {
        let mut pair = pair(seed, &Config::default());
        pair.world.faults = Faults {
            drop: 50,
            duplicate: 50,
            reorder: 100,
            corrupt: 20,
        };
        for round in 0..10u8 {
            let payload = pair.fill(0, &pattern(5000, round));
            pair.perform(write(payload, pair.at));
        }
        let region = pair.region;
        let log = &pair.world.sides[B].bank.log;
        let ours = log.iter().filter(|(written, ..)| *written == region);
        let mut next = 0;
        for (_, offset, len) in ours {
            assert_eq!(*offset, next % 5000, "seed {seed}");
            next += len;
        }
        assert_eq!(next, 10 * 5000, "seed {seed}");
    }
}

#[test]
fn recv_with_freed_buffer_fails_at_both_ends() {
    for transport in [Transport::Rc, Transport::Uc] {
        let mut world = World::new(1, &Config::default());
        let qps = world.connected(transport);
        let inbox = world.sides[B].inbox;
        world.sides[B].recv(qps[B], 4);
        world.sides[B].engine.deregister(inbox).expect("ours");
        world.sides[B].bank.regions.remove(&inbox);
        let local = Local {
            region: world.sides[A].inbox,
            offset: 0,
            len: 100,
        };
        world.sides[A].post(qps[A], &[signaled(1, send(Payload::Region(local)))]);
        let got = world.next(B);
        assert_eq!((got.wr_id, got.status), (4, Status::LocalError));
        let told = world.next(A).status == Status::RemoteInvalid;
        assert_eq!(told, transport == Transport::Rc);
    }
}

#[test]
fn refused_request_fails_both_ends_with_the_reason() {
    let refusals = |pair: &Pair| {
        let wrong = Remote {
            rkey: Rkey(pair.at.rkey.0 ^ 1),
            ..pair.at
        };
        let into = pair.local(0, 8);
        [
            (
                write(Payload::Words(&[1]), wrong),
                Status::RemoteAccess,
                Drop::Rkey,
            ),
            (
                write(Payload::Words(&[1]), pair.at.offset(REGION as u64 - 7)),
                Status::RemoteAccess,
                Drop::Range,
            ),
            (
                SendOp::Read { into, from: wrong },
                Status::RemoteAccess,
                Drop::Rkey,
            ),
            (
                SendOp::FetchAdd {
                    into,
                    at: pair.at.offset(4),
                    add: 1,
                },
                Status::RemoteInvalid,
                Drop::Misaligned,
            ),
        ]
    };
    for index in 0..4 {
        let mut pair = pair(1, &Config::default());
        pair.world.sides[B].recv(pair.qps[B], 3);
        let (op, status, reason) = refusals(&pair)[index];
        let good = write(Payload::Words(&[7]), pair.at.offset(8));
        let batch = [signaled(1, good), signaled(2, op), signaled(3, good)];
        pair.world.sides[A].post(pair.qps[A], &batch);
        let ends: Vec<_> = (0..3)
            .map(|_| pair.world.next(A))
            .map(|end| (end.wr_id, end.status))
            .collect();
        assert_eq!(
            ends,
            [(1, Status::Success), (2, status), (3, Status::Flushed)]
        );
        let flushed = pair.world.next(B);
        assert_eq!((flushed.wr_id, flushed.status), (3, Status::Flushed));
        for side in [A, B] {
            let state = pair.world.sides[side].engine.qp_state(pair.qps[side]);
            assert_eq!(state.expect("known"), QpState::Error);
        }
        assert_eq!(pair.world.sides[B].engine.counters().dropped(reason), 1);
    }
}

#[test]
fn non_fatal_nak_keeps_the_responder_ready() {
    let mut world = World::new(1, &Config::default());
    let qps = [A, B].map(|side| world.sides[side].qp(Transport::Rc));
    for side in [A, B] {
        let mut peering = world.peering(1 - side, qps[1 - side]);
        peering.refusals_are_fatal = false;
        world.sides[side]
            .engine
            .connect(qps[side], &peering)
            .expect("a connection");
    }
    let to = Remote {
        rkey: Rkey(1),
        addr: 0,
    };
    world.sides[A].post(qps[A], &[signaled(1, write(Payload::Words(&[1]), to))]);
    assert_eq!(world.next(A).status, Status::RemoteAccess);
    let state = world.sides[B].engine.qp_state(qps[B]);
    assert_eq!(state.expect("known"), QpState::ReadyToSend);
}

#[test]
fn send_waits_for_a_recv_for_a_bounded_time() {
    let mut pair = pair(1, &Config::default());
    pair.post(1, send(Payload::Words(&[1])));
    pair.world.run(3000);
    assert!(pair.world.sides[A].done.is_empty());
    pair.world.sides[B].recv(pair.qps[B], 0);
    assert_eq!(pair.world.next(A).status, Status::Success);
    assert_eq!(pair.world.next(B).wr_id, 0);
    pair.post(2, send(Payload::Words(&[1])));
    assert_eq!(pair.world.next(A).status, Status::ReceiverNotReady);
    let retry = Retry {
        rnr_count: herdwick_roce::RNR_FOR_EVER,
        ..Retry::default()
    };
    let mut patient = self::pair(
        1,
        &Config {
            retry,
            ..Config::default()
        },
    );
    patient.post(1, send(Payload::Words(&[1])));
    patient.world.run(100_000);
    assert!(patient.world.sides[A].done.is_empty(), "patient for ever");
}

#[test]
fn short_recv_buffer_fails_both_ends() {
    let mut pair = pair(1, &Config::default());
    pair.world.sides[B].recv(pair.qps[B], 0);
    let payload = pair.fill(0, &[1; 1025]);
    pair.post(1, send(payload));
    assert_eq!(pair.world.next(A).status, Status::RemoteInvalid);
    assert_eq!(pair.world.next(B).status, Status::LengthError);
}

#[test]
fn requests_to_a_silent_peer_fail_after_the_configured_retries() {
    let mut pair = pair(1, &Config::default());
    pair.world.filter = Some(Box::new(|_, _| false));
    pair.post(1, write(Payload::Words(&[1]), pair.at));
    pair.post(2, write(Payload::Words(&[1]), pair.at));
    assert_eq!(pair.world.next(A).status, Status::RetryExceeded);
    assert_eq!(pair.world.next(A).status, Status::Flushed);
    let counters = pair.world.sides[A].engine.counters();
    // Only the oldest packet is retransmitted.
    assert_eq!(
        (
            counters.connections.timeouts,
            counters.connections.retransmitted
        ),
        (9, 8)
    );
    // 1 + 2 + 4 .. 256 ms.
    let waited = pair.world.now.as_millis();
    assert!((511..=512).contains(&waited), "{waited} ms");
}

#[test]
fn timeout_resends_one_packet_until_the_peer_answers() {
    let mut pair = pair(1, &Config::default());
    pair.world.sides[B].outbox.room = 0;
    for id in 0..40 {
        pair.post(id, write(Payload::Words(&[id]), pair.at.offset(8 * id)));
    }
    // Four milliseconds: the timer expires after one and after three.
    pair.world.run(800);
    assert_eq!(pair.world.sent[A], 42);
    pair.world.sides[B].outbox.room = usize::MAX;
    for id in 0..40 {
        assert_eq!(pair.world.next(A).wr_id, id);
    }
    let counters = pair.world.sides[A].engine.counters();
    assert_eq!(
        (
            counters.connections.timeouts,
            counters.connections.retransmitted
        ),
        (2, 2)
    );
}

#[test]
fn only_lost_packets_are_resent_after_a_timeout() {
    let mut pair = pair(1, &Config::default());
    let mut count = 0;
    // The last 16 of 40 are lost, and no packet follows that would reveal the gap.
    pair.world.filter = Some(Box::new(move |from, _| {
        count += u64::from(from == A);
        from == B || !(25..=40).contains(&count)
    }));
    for id in 0..40 {
        pair.post(id, write(Payload::Words(&[id]), pair.at.offset(8 * id)));
    }
    for id in 0..40 {
        assert_eq!(pair.world.next(A).wr_id, id);
    }
    let counters = pair.world.sides[A].engine.counters();
    assert_eq!(
        (
            counters.connections.timeouts,
            counters.connections.retransmitted
        ),
        (1, 16)
    );
}

#[test]
fn read_with_a_lost_response_resumes_at_the_loss() {
    let mut pair = pair(1, &Config::default());
    let region = pair.region;
    let bytes = pattern(2000, 3);
    pair.memory(B, region)[..2000].copy_from_slice(&bytes);
    let mut answers = 0;
    pair.world.filter = Some(Box::new(move |from, _| {
        answers += u64::from(from == B);
        from == A || answers != 3
    }));
    let into = pair.local(0, 2000);
    pair.perform(SendOp::Read {
        into,
        from: pair.at,
    });
    assert_eq!(pair.memory(A, into.region)[..2000], bytes);
    // Eight packets; the third is lost, and six are sent again from there.
    assert_eq!((pair.world.sent[A], pair.world.sent[B]), (2, 14));
    assert_eq!(
        pair.world.sides[B].engine.counters().connections.duplicates,
        1
    );
}

#[test]
fn repeated_atomic_is_answered_but_not_executed_again() {
    let mut pair = pair(1, &Config::default());
    let mut lost = 0;
    pair.world.filter = Some(Box::new(move |from, _| {
        lost += u64::from(from == B);
        from == A || lost > 2
    }));
    let into = pair.local(0, 8);
    let at = pair.at;
    pair.perform(SendOp::FetchAdd { into, at, add: 3 });
    assert_eq!(
        pair.word(A, into.region, 0),
        0,
        "the value of the first time"
    );
    let region = pair.region;
    assert_eq!(pair.word(B, region, 0), 3, "added exactly once");
}

#[test]
fn acknowledgement_beyond_an_unanswered_read_is_an_implied_nak() {
    let mut pair = pair(1, &Config::default());
    let mut first = true;
    // The response to the READ is lost; the ACK of the WRITE after it is not.
    pair.world.filter = Some(Box::new(move |from, _| {
        from == A || !std::mem::take(&mut first)
    }));
    let into = pair.local(0, 8);
    pair.post(
        1,
        SendOp::Read {
            into,
            from: pair.at,
        },
    );
    pair.post(2, write(Payload::Words(&[5]), pair.at.offset(8)));
    assert_eq!(pair.world.next(A).wr_id, 1);
    assert_eq!(pair.world.next(A).wr_id, 2);
    let counters = pair.world.sides[A].engine.counters();
    assert_eq!(
        (
            counters.connections.timeouts,
            counters.connections.sequence_naks
        ),
        (0, 1)
    );
}

#[test]
fn repeated_naks_of_one_gap_cause_one_retransmission() {
    let mut pair = pair(1, &Config::default());
    let mut first = true;
    pair.world.filter = Some(Box::new(move |from, _| {
        from == A || !std::mem::take(&mut first)
    }));
    let into = pair.local(0, 8);
    let from = pair.at;
    pair.post(0, SendOp::Read { into, from });
    // Each WRITE has an ACK of its own, and each ACK is past the READ.
    for id in 1..=4 {
        pair.post(id, write(Payload::Words(&[id]), pair.at.offset(8)));
        pair.world.step();
    }
    for id in 0..=4 {
        assert_eq!(pair.world.next(A).wr_id, id);
    }
    let counters = pair.world.sides[A].engine.counters();
    assert!(counters.connections.sequence_naks > 1, "several ACKs told");
    assert!(
        counters.connections.retransmitted <= 5,
        "{}",
        counters.connections.retransmitted
    );
}

#[test]
fn lost_request_causes_one_nak() {
    let mut pair = pair(1, &Config::default());
    let mut count = 0;
    pair.world.filter = Some(Box::new(move |from, _| {
        count += u64::from(from == A);
        from == B || count != 2
    }));
    for id in 0..8 {
        pair.post(id, write(Payload::Words(&[id]), pair.at.offset(8 * id)));
    }
    for id in 0..8 {
        assert_eq!(pair.world.next(A).wr_id, id);
    }
    let counters = pair.world.sides[A].engine.counters();
    assert_eq!(
        (
            counters.connections.timeouts,
            counters.connections.sequence_naks,
            counters.connections.retransmitted
        ),
        (0, 1, 7)
    );
}

#[test]
fn replies_are_accepted_only_from_the_peer_and_for_outstanding_requests() {
    let mut pair = pair(1, &Config::default());
    // Every ACK is for a packet that was never sent.
    pair.world.filter = Some(Box::new(|from, packet| {
        if from == B {
            packet[10] ^= 0x40;
        }
        true
    }));
    pair.post(1, write(Payload::Words(&[1]), pair.at));
    pair.world.run(100);
    assert!(pair.world.sides[A].done.is_empty());
    assert!(pair.world.sides[A].engine.counters().dropped(Drop::Answer) > 0);
    pair.world.filter = None;
    assert_eq!(pair.world.next(A).status, Status::Success);
}

#[test]
fn outstanding_reads_stay_within_the_peers_limit() {
    let mut world = World::new(1, &Config::default());
    let qps = [A, B].map(|side| world.sides[side].qp(Transport::Rc));
    for side in [A, B] {
        let mut peering = world.peering(1 - side, qps[1 - side]);
        peering.rd_atomic = 1;
        world.sides[side]
            .engine
            .connect(qps[side], &peering)
            .expect("a connection");
    }
    let region = world.sides[B].region(Access::ALL);
    let at = world.sides[B].remote(region);
    let into = Local {
        region: world.sides[A].inbox,
        offset: 0,
        len: 8,
    };
    for id in 0..4 {
        world.sides[A].post(
            qps[A],
            &[signaled(id, SendOp::FetchAdd { into, at, add: 1 })],
        );
    }
    world.step();
    assert_eq!(world.sent[A], 1);
    for id in 0..4 {
        assert_eq!(world.next(A).wr_id, id);
    }
}

#[test]
fn no_read_is_sent_to_a_peer_that_accepts_none() {
    let mut world = World::new(1, &Config::default());
    let qps = [A, B].map(|side| world.sides[side].qp(Transport::Rc));
    let mut peering = world.peering(B, qps[B]);
    peering.rd_atomic = 0;
    let connected = world.sides[A].engine.connect(qps[A], &peering);
    connected.expect("a connection");
    let region = world.sides[B].region(Access::ALL);
    let from = world.sides[B].remote(region);
    let into = Local {
        region: world.sides[A].inbox,
        offset: 0,
        len: 8,
    };
    let side = &mut world.sides[A];
    let asked = [
        SendOp::Read { into, from },
        SendOp::FetchAdd {
            into,
            at: from,
            add: 1,
        },
    ];
    for op in asked {
        let posted =
            side.engine
                .post_send(qps[A], &[signaled(1, op)], &side.bank, &mut side.outbox);
        assert_eq!(posted, Err(PostError::Transport(Transport::Rc)));
    }
}

/// Builds a packet from A's queue pair to B's with this opcode, and `headers` after the BTH.
fn by_hand(pair: &Pair, opcode: u8, ahead: u32, headers: &[u8]) -> Vec<u8> {
    let endpoint = |side: usize| pair.world.sides[side].engine.endpoint(pair.qps[side]);
    let psn = (endpoint(A).expect("known").psn.0 + ahead) & 0xff_ffff;
    let mut packet = vec![opcode, 0, 0xff, 0xff];
    packet.extend(endpoint(B).expect("known").qpn.0.to_be_bytes());
    packet.extend((0x8000_0000 | psn).to_be_bytes());
    packet.extend(headers);
    packet.extend([0; 4]);
    packet
}

/// Returns a RETH for the region's first eight bytes.
fn word_at(at: Remote) -> Vec<u8> {
    let (addr, rkey) = (at.addr.to_be_bytes(), at.rkey.0.to_be_bytes());
    [&addr[..], &rkey, &8_u32.to_be_bytes()].concat()
}

/// Returns opcode and syndrome of each packet that B sends next.
fn answers(pair: &mut Pair) -> Vec<(u8, u8)> {
    let side = &mut pair.world.sides[B];
    side.engine
        .poll_transmit(pair.world.now, &side.bank, &mut side.outbox);
    let caught = pair.world.caught(B);
    caught
        .iter()
        .map(|packet| (packet[0], packet[12]))
        .collect()
}

const ACKNOWLEDGE: u8 = 0x11;
const NAK_SEQUENCE: u8 = 0x60;
const NAK_INVALID: u8 = 0x61;

#[test]
fn unsupported_opcode_gets_a_nak_in_sequence() {
    // SEND with invalidate, a reserved code, FLUSH, ATOMIC WRITE.
    for opcode in [0x17, 0x1a, 0x1c, 0x1d] {
        let mut pair = pair(1, &Config::default());
        let late = by_hand(&pair, opcode, 3, &[0; 28]);
        pair.world.forge(B, &late);
        assert_eq!(answers(&mut pair), [(ACKNOWLEDGE, NAK_SEQUENCE)]);
        let next = by_hand(&pair, opcode, 0, &[0; 28]);
        pair.world.forge(B, &next);
        assert_eq!(
            answers(&mut pair),
            [(ACKNOWLEDGE, NAK_INVALID)],
            "{opcode:#x}"
        );
        let counters = pair.world.sides[B].engine.counters();
        assert_eq!(counters.dropped(Drop::Opcode), 2);
    }
    // An opcode of UC is not answered on RC.
    let mut pair = pair(1, &Config::default());
    let foreign = by_hand(&pair, 0x37, 0, &[0; 28]);
    pair.world.forge(B, &foreign);
    assert_eq!(answers(&mut pair), []);
}

#[test]
fn read_beyond_the_outstanding_limit_is_refused() {
    let mut pair = pair(1, &Config::default());
    // No packet can be sent, so every response stays queued.
    pair.world.sides[B].outbox.room = 0;
    let deep = u32::from(RD_ATOMIC_MAX);
    let asked = |pair: &Pair, ahead| by_hand(pair, 0x0c, ahead, &word_at(pair.at));
    for ahead in 0..deep {
        let read = asked(&pair, ahead);
        pair.world.forge(B, &read);
        // A duplicate takes up no room that the next request needs.
        pair.world.forge(B, &read);
    }
    let refused = asked(&pair, deep);
    pair.world.forge(B, &refused);
    pair.world.sides[B].outbox.room = usize::MAX;
    let said = answers(&mut pair);
    assert_eq!(said.len() as u32, deep + 1);
    assert_eq!(said.last(), Some(&(ACKNOWLEDGE, NAK_INVALID)));
    let counters = pair.world.sides[B].engine.counters();
    assert_eq!(counters.dropped(Drop::TooManyReads), 1);
}

#[test]
fn duplicate_request_does_not_clear_a_pending_nak() {
    let mut pair = pair(1, &Config::default());
    pair.perform(write(Payload::Words(&[1]), pair.at));
    // A packet after a gap; then the first one again, in the same pass.
    let wide = [word_at(pair.at), vec![0; 8]].concat();
    let (late, again) = (
        by_hand(&pair, 0x0a, 2, &wide),
        by_hand(&pair, 0x0a, 0, &wide),
    );
    pair.world.forge(B, &late);
    pair.world.forge(B, &again);
    assert_eq!(answers(&mut pair), [(ACKNOWLEDGE, NAK_SEQUENCE)]);
    // If the missing packet arrives first, there is no gap to report.
    let missing = by_hand(&pair, 0x0a, 1, &wide);
    pair.world.forge(B, &missing);
    pair.world.forge(B, &by_hand(&pair, 0x0a, 3, &wide));
    let next = by_hand(&pair, 0x0a, 2, &wide);
    pair.world.forge(B, &next);
    assert_eq!(answers(&mut pair), [(ACKNOWLEDGE, 0x1f)]);
}

#[test]
fn long_messages_pass_a_slow_link() {
    let mut pair = pair(1, &Config::default());
    pair.world.sides[A].outbox.room = 5;
    pair.world.sides[B].outbox.room = 5;
    let bytes = pattern(30_000, 1);
    let payload = pair.fill(0, &bytes);
    pair.perform(write(payload, pair.at));
    let into = pair.local(32_000, 30_000);
    pair.perform(SendOp::Read {
        into,
        from: pair.at,
    });
    assert_eq!(pair.memory(A, into.region)[32_000..62_000], bytes);
    assert_eq!(
        pair.world.sides[A]
            .engine
            .counters()
            .connections
            .retransmitted,
        0
    );
}
