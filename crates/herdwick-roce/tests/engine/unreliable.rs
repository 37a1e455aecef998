//! UC and UD: messages, completions, drops, and queues that are full.

use herdwick_fabric::{
    Access, Local, Opcode, Payload, PostError, QpId, RegionId, SendOp, SendWr, Status, Transport,
};
use herdwick_roce::{Config, DATAGRAM_HEADER_BYTES, Drop};

use crate::link::{A, B, DEPTH, Faults, World};

pub(crate) fn signaled(wr_id: u64, op: SendOp<'_>) -> SendWr<'_> {
    SendWr {
        wr_id,
        op,
        signaled: true,
        solicited: false,
        fence: false,
    }
}

pub(crate) fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|i| (i * 7) as u8 ^ salt).collect()
}

fn dropped(world: &World, side: usize, reason: Drop) -> u64 {
    world.sides[side].engine.counters().dropped(reason)
}

/// Copies `bytes` to the region from which A sends payloads.
fn outgoing(world: &mut World, bytes: &[u8]) -> Local {
    let region = world.sides[A].inbox;
    let memory = world.sides[A].bank.regions.get_mut(&region);
    memory.expect("registered")[..bytes.len()].copy_from_slice(bytes);
    Local {
        region,
        offset: 0,
        len: bytes.len(),
    }
}

fn writer(world: &mut World) -> ([QpId; 2], RegionId) {
    let qps = world.connected(Transport::Uc);
    (qps, world.sides[B].region(Access::WRITE))
}

#[test]
fn writes_of_every_size_reach_their_address() {
    let mut world = World::new(1, &Config::default());
    let (qps, region) = writer(&mut world);
    let at = world.sides[B].remote(region);
    let mut model = world.sides[B].bank.regions[&region].clone();
    for (salt, len) in [0, 1, 7, 64, 255, 256, 257, 512, 1000, 5000]
        .into_iter()
        .enumerate()
    {
        let bytes = pattern(len, salt as u8);
        let payload = Payload::Region(outgoing(&mut world, &bytes));
        let to = at.offset(100 * salt as u64 + 3);
        world.sides[A].post(
            qps[A],
            &[signaled(
                9,
                SendOp::Write {
                    payload,
                    to,
                    imm: None,
                },
            )],
        );
        let done = world.next(A);
        assert_eq!(
            (done.wr_id, done.status, done.opcode),
            (9, Status::Success, Opcode::Write)
        );
        world.run(10);
        model[100 * salt + 3..][..len].copy_from_slice(&bytes);
        assert!(world.sides[B].bank.regions[&region] == model, "{len} bytes");
    }
    assert_eq!(world.sent[B], 0, "UC answers nothing");
}

#[test]
fn sends_arrive_inline_or_in_buffers_with_immediates() {
    let mut world = World::new(1, &Config::default());
    let qps = world.connected(Transport::Uc);
    for (len, imm) in [
        (0, None),
        (56, Some(7)),
        (57, Some(8)),
        (300, None),
        (1024, Some(9)),
    ] {
        let bytes = pattern(len, 1);
        world.sides[B].recv(qps[B], 3);
        let payload = Payload::Region(outgoing(&mut world, &bytes));
        world.sides[A].post(
            qps[A],
            &[signaled(
                1,
                SendOp::Send {
                    payload,
                    imm,
                    to: None,
                },
            )],
        );
        let got = world.next(B);
        assert_eq!(
            (got.wr_id, got.status, got.opcode),
            (3, Status::Success, Opcode::Recv)
        );
        assert_eq!(
            (got.byte_len as usize, got.imm, got.source),
            (len, imm, None)
        );
        let mut found = vec![0; len];
        match got.inline {
            Some(inline) => inline.copy_to(&mut found),
            None => {
                let inbox = world.sides[B].inbox;
                found.copy_from_slice(&world.sides[B].bank.regions[&inbox][3 * 1024..][..len]);
            }
        }
        assert_eq!(found, bytes);
        assert_eq!(got.inline.is_some(), len <= 56);
    }
}

#[test]
fn write_with_immediate_consumes_a_recv_only_at_its_last_packet() {
    let mut world = World::new(1, &Config::default());
    let (qps, region) = writer(&mut world);
    let to = world.sides[B].remote(region);
    let bytes = pattern(700, 5);
    let payload = Payload::Region(outgoing(&mut world, &bytes));
    world.sides[B].recv(qps[B], 3);
    let op = SendOp::Write {
        payload,
        to,
        imm: Some(77),
    };
    world.sides[A].post(qps[A], &[signaled(1, op)]);
    let got = world.next(B);
    assert_eq!(
        (got.opcode, got.imm, got.byte_len),
        (Opcode::RecvWithImm, Some(77), 700)
    );
    assert_eq!(world.sides[B].bank.regions[&region][..700], bytes);
}

#[test]
fn packets_without_send_room_are_sent_later_in_order() {
    let mut world = World::new(1, &Config::default());
    let qps = world.connected(Transport::Uc);
    (0..30).for_each(|id| world.sides[B].recv(qps[B], id));
    world.sides[A].outbox.room = 3;
    for id in 0..30u64 {
        let bytes = id.to_le_bytes();
        let op = SendOp::Send {
            payload: Payload::Inline(&bytes),
            imm: None,
            to: None,
        };
        world.sides[A].post(qps[A], &[signaled(id, op)]);
    }
    for id in 0..30 {
        assert_eq!(world.next(A).wr_id, id);
        let got = world.next(B);
        assert_eq!(got.inline.expect("small").words()[0], id);
    }
    assert!(world.sides[A].engine.counters().connections.no_room > 0);
}

#[test]
fn full_send_queue_refuses_and_later_completions_free_unsignaled_slots() {
    let mut world = World::new(1, &Config::default());
    let (qps, region) = writer(&mut world);
    let to = world.sides[B].remote(region);
    let op = SendOp::Write {
        payload: Payload::Words(&[1]),
        to,
        imm: None,
    };
    let quiet = SendWr {
        signaled: false,
        ..signaled(0, op)
    };
    for round in 0..5 {
        world.sides[A].post(qps[A], &[quiet; DEPTH - 1]);
        world.sides[A].post(qps[A], &[signaled(round, op)]);
        let side = &mut world.sides[A];
        let full = side
            .engine
            .post_send(qps[A], &[quiet], &side.bank, &mut side.outbox);
        assert_eq!(full, Err(PostError::Full));
        assert_eq!(world.next(A).wr_id, round);
    }
}

#[test]
fn datagrams_report_their_source_and_are_stored_after_a_grh() {
    let mut world = World::new(1, &Config::default());
    let (qps, to) = world.datagrams();
    for len in [0, 56, 57, 900] {
        let bytes = pattern(len, 9);
        let payload = Payload::Region(outgoing(&mut world, &bytes));
        world.sides[B].recv(qps[B], 2);
        let op = SendOp::Send {
            payload,
            imm: Some(5),
            to: Some(to),
        };
        world.sides[A].post(qps[A], &[signaled(1, op)]);
        let got = world.next(B);
        let sender = world.sides[A].engine.endpoint(qps[A]).expect("known").qpn;
        assert_eq!(got.source.expect("a datagram").qpn, sender);
        assert_eq!((got.byte_len as usize, got.imm), (len, Some(5)));
        let inbox = world.sides[B].inbox;
        let buffer = &world.sides[B].bank.regions[&inbox][2048..];
        if len > 56 {
            assert_eq!(buffer[DATAGRAM_HEADER_BYTES..][..len], bytes);
            assert_eq!(buffer[20..22], [0x45, 0]);
            assert_eq!(buffer[32..40], [10, 9, 0, 1, 10, 9, 0, 2]);
        } else {
            assert!(buffer[..1024].iter().all(|byte| *byte == 0), "untouched");
        }
    }
}

#[test]
fn datagram_needs_the_qkey_a_recv_and_room() {
    let mut world = World::new(1, &Config::default());
    let (qps, to) = world.datagrams();
    let send = |world: &mut World, len: usize| {
        let bytes = vec![1; len];
        let payload = Payload::Region(outgoing(world, &bytes));
        let op = SendOp::Send {
            payload,
            imm: None,
            to: Some(to),
        };
        world.sides[A].post(qps[A], &[signaled(1, op)]);
        world.run(10);
    };
    send(&mut world, 8);
    assert_eq!(dropped(&world, B, Drop::NoRecv), 1);
    world.sides[B].recv(qps[B], 0);
    send(&mut world, 1024 - DATAGRAM_HEADER_BYTES + 1);
    assert_eq!(dropped(&world, B, Drop::ShortBuffer), 1);
    world.filter = Some(Box::new(|_, packet| {
        packet[12] ^= 1;
        true
    }));
    send(&mut world, 8);
    assert_eq!(dropped(&world, B, Drop::Qkey), 1);
    assert!(world.sides[B].done.is_empty(), "the RECV is still there");
    world.filter = None;
    send(&mut world, 8);
    assert_eq!(world.next(B).wr_id, 0);
}

#[test]
fn uc_accepts_the_next_message_at_any_psn_after_a_gap() {
    let mut world = World::new(1, &Config::default());
    let (qps, region) = writer(&mut world);
    let to = world.sides[B].remote(region);
    let long = pattern(1000, 3);
    let payload = Payload::Region(outgoing(&mut world, &long));
    // The second packet of four is lost: the third and fourth are dropped.
    let mut count = 0;
    world.filter = Some(Box::new(move |_, _| {
        count += 1;
        count != 2
    }));
    let op = SendOp::Write {
        payload,
        to,
        imm: None,
    };
    world.sides[A].post(qps[A], &[signaled(1, op)]);
    world.run(10);
    let landed = &world.sides[B].bank.regions[&region];
    assert_eq!(landed[..256], long[..256]);
    assert!(landed[256..].iter().all(|byte| *byte == 0));
    assert_eq!(dropped(&world, B, Drop::Sequence), 2);
    let op = SendOp::Write {
        payload: Payload::Words(&[42]),
        to,
        imm: None,
    };
    world.sides[A].post(qps[A], &[signaled(1, op)]);
    world.run(10);
    assert_eq!(
        world.sides[B].bank.regions[&region][..8],
        42u64.to_le_bytes()
    );
}

#[test]
fn recv_of_an_incomplete_message_is_reused_for_the_next() {
    let mut world = World::new(1, &Config::default());
    let qps = world.connected(Transport::Uc);
    world.sides[B].recv(qps[B], 5);
    let payload = Payload::Region(outgoing(&mut world, &pattern(600, 3)));
    let mut count = 0;
    world.filter = Some(Box::new(move |_, _| {
        count += 1;
        count != 3
    }));
    let long = SendOp::Send {
        payload,
        imm: None,
        to: None,
    };
    let short = SendOp::Send {
        payload: Payload::Words(&[6]),
        imm: None,
        to: None,
    };
    world.sides[A].post(qps[A], &[signaled(1, long), signaled(2, short)]);
    let got = world.next(B);
    assert_eq!((got.wr_id, got.byte_len), (5, 8));
    assert_eq!(dropped(&world, B, Drop::Partial), 1);
}

#[test]
fn requests_without_rights_are_dropped_and_counted() {
    let mut world = World::new(1, &Config::default());
    let qps = world.connected(Transport::Uc);
    let region = world.sides[B].region(Access::WRITE);
    let at = world.sides[B].remote(region);
    let closed = world.sides[B].region(Access::READ);
    let closed = world.sides[B].remote(closed);
    let wrong = herdwick_fabric::Remote {
        rkey: herdwick_fabric::Rkey(at.rkey.0 ^ 1),
        ..at
    };
    let cases = [
        (wrong, Drop::Rkey),
        (closed, Drop::Right),
        (at.offset(crate::link::REGION as u64 - 7), Drop::Range),
        (at.offset(u64::MAX), Drop::Range),
    ];
    for (to, reason) in cases {
        let op = SendOp::Write {
            payload: Payload::Words(&[1]),
            to,
            imm: None,
        };
        world.sides[A].post(qps[A], &[signaled(1, op)]);
        assert_eq!(
            world.next(A).status,
            Status::Success,
            "UC does not report the loss"
        );
        let before = dropped(&world, B, reason);
        world.run(10);
        assert_eq!(dropped(&world, B, reason), before + 1);
    }
    assert!(
        world.sides[B].bank.regions[&region]
            .iter()
            .all(|byte| *byte == 0)
    );
}

#[test]
fn lossy_link_delivers_whole_messages_or_none() {
    for seed in 0..50 {
        let mut world = World::new(seed, &Config::default());
        let qps = world.connected(Transport::Uc);
        world.faults = Faults {
            drop: 100,
            duplicate: 50,
            reorder: 100,
            corrupt: 50,
        };
        (0..64).for_each(|id| world.sides[B].recv(qps[B], id));
        for round in 0..64u8 {
            let bytes = pattern(200 + usize::from(round) * 10, round);
            let payload = Payload::Region(outgoing(&mut world, &bytes));
            let op = SendOp::Send {
                payload,
                imm: Some(round.into()),
                to: None,
            };
            world.sides[A].post(qps[A], &[signaled(1, op)]);
            world.run(50);
            world.sides[A].done.clear();
            let inbox = world.sides[B].inbox;
            while let Some(got) = world.sides[B].done.pop_front() {
                assert_eq!(got.status, Status::Success);
                let sent = got.imm.expect("always") as u8;
                let len = got.byte_len as usize;
                assert_eq!(len, 200 + usize::from(sent) * 10);
                let buffer = got.wr_id as usize * 1024;
                let found = &world.sides[B].bank.regions[&inbox][buffer..buffer + len];
                assert_eq!(found, pattern(len, sent));
            }
        }
    }
}
