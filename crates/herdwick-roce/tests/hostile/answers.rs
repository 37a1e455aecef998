//! Packets that request an answer: sent again, or from a forged source.

use crate::{
    Siege, VICTIM, Way,
    common::{
        chance::{Chance, many},
        packet::{Packet, op},
        stage::{FRIEND, STRANGER, Stage},
    },
};

#[test]
fn u17_repeated_requests_have_no_second_effect() {
    let mut siege = Siege::new();
    siege.stage.recorded = Some(Vec::new());
    siege.survives();
    let recorded = siege.stage.recorded.take().unwrap();
    let rc = siege.qpn(siege.stage.victim.rc);
    let to_rc = |bytes: &&Vec<u8>| bytes[5..8] == rc.to_be_bytes()[1..];
    let memory = siege.memory();
    for bytes in recorded.iter().filter(to_rc) {
        for (to, _) in siege.stage.hand(FRIEND, bytes) {
            assert_eq!(to, FRIEND);
        }
        assert!(siege.stage.hand(STRANGER, bytes).is_empty());
    }
    assert!(memory == siege.stage.victim.memory);
    assert!(siege.stage.victim.poll().is_empty());
    siege.survives();
}

#[test]
fn u17_requests_of_an_earlier_connection_are_dropped() {
    let mut before = Stage::of(17);
    before.recorded = Some(Vec::new());
    before.honest();
    let mut siege = Siege::new();
    for bytes in before.recorded.take().unwrap() {
        siege.dropped_bytes(FRIEND, &bytes);
    }
    siege.survives();
}

#[test]
fn u18_replies_are_sent_only_to_the_peer() {
    let mut siege = Siege::new();
    let (addr, rkey) = siege.key(siege.stage.victim.open);
    let rc = siege.qpn(siege.stage.victim.rc);
    let of = |operation, psn| Packet::new(op::RC | operation, rc, psn).ack();
    let next = siege.stage.next_rc;
    // A PSN already used, the next one, and one ahead.
    for psn in [next.wrapping_sub(1), next, next.wrapping_add(100)] {
        let packets = [
            of(op::READ_REQUEST, psn).reth(addr, rkey, 1024),
            of(op::FETCH_ADD, psn).atomic(addr, rkey, 1, 0),
            of(op::WRITE_ONLY, psn).reth(addr, rkey, 4).payload(&[7; 4]),
            of(op::SEND_ONLY, psn).payload(&[7; 4]),
        ];
        for packet in packets {
            siege.dropped(STRANGER, &packet);
        }
    }
    // A datagram is never answered, whatever its source.
    let endpoint = siege
        .stage
        .victim
        .engine
        .endpoint(siege.stage.victim.ud)
        .unwrap();
    let datagram = Packet::new(op::UD | op::SEND_ONLY, endpoint.qpn.0, 0).ack();
    let datagram = datagram.deth(endpoint.qkey, 5).payload(&[7; 64]);
    let bytes = datagram.sealed(&Way::new(STRANGER, VICTIM));
    for _ in 0..1000 {
        assert!(siege.stage.hand(STRANGER, &bytes).is_empty());
    }
    while let done @ [_, ..] = siege.stage.victim.poll().as_slice() {
        let ud = siege.stage.victim.ud;
        (0..done.len()).for_each(|slot| siege.stage.victim.recv(ud, slot));
    }
    siege.survives();
}

#[test]
fn u19_random_packets_have_no_effect() {
    let mut siege = Siege::new();
    let memory = siege.memory();
    let mut chance = Chance::new(19);
    let mut room = [0; 128];
    for _ in 0..many("JUNK", 100_000) {
        let len = chance.below(room.len());
        room[..len].fill_with(|| chance.next() as u8);
        for from in [STRANGER, FRIEND] {
            assert!(siege.stage.hand(from, &room[..len]).is_empty());
        }
    }
    assert!(memory == siege.stage.victim.memory);
    siege.survives();
}

#[test]
fn u20_floods_of_unsolicited_packets_are_ignored() {
    let mut siege = Siege::new();
    let mut chance = Chance::new(20);
    let rc = siege.qpn(siege.stage.victim.rc);
    for _ in 0..2000 {
        let psn = chance.next() as u32;
        let answer = Packet::new(op::ACK, rc, psn).aeth(chance.next() as u8, psn & 0xff);
        siege.ignored(STRANGER, &answer);
        siege.ignored(FRIEND, &answer);
        let read = Packet::new(op::READ_RESPONSE_ONLY, rc, psn).aeth(0x1f, 1);
        siege.ignored(FRIEND, &read.payload(&[7; 64]));
        let mut atomic = Packet::new(op::ATOMIC_ACK, rc, psn).aeth(0x1f, 1);
        atomic.headers.extend([7; 8]);
        siege.ignored(FRIEND, &atomic);
        let mut congestion = Packet::new(op::CNP, rc, 0).payload(&[0; 16]);
        congestion.fourth = 0x40;
        siege.ignored(FRIEND, &congestion);
        siege.ignored(STRANGER, &congestion);
        // Management, and multicast.
        for qpn in [1, 0xff_ffff] {
            let datagram = Packet::new(op::UD | op::SEND_ONLY, qpn, psn);
            siege.dropped(STRANGER, &datagram.deth(0x8001_0000, 1).payload(&[7; 256]));
        }
    }
    assert!(siege.stage.victim.poll().is_empty());
    siege.survives();
}

/// The ICRC does not cover the congestion marks: they cause one CNP, and only to the peer.
#[test]
fn u20_congestion_marks_cause_one_cnp_to_the_peer() {
    const CONGESTION_EXPERIENCED: u8 = 3;
    let mut siege = Siege::new();
    let qpn = siege.qpn(siege.stage.victim.uc);
    let (addr, rkey) = siege.key(siege.write);
    let packet = Packet::new(op::UC | op::WRITE_ONLY, qpn, siege.stage.next_uc);
    let packet = packet.reth(addr, rkey, 4).payload(&[7; 4]);
    siege.stage.tos = CONGESTION_EXPERIENCED;
    let mut answers = Vec::new();
    for _ in 0..1000 {
        let bytes = packet.sealed(&Way::new(STRANGER, VICTIM));
        assert!(siege.stage.hand(STRANGER, &bytes).is_empty());
        let bytes = packet.sealed(&Way::new(FRIEND, VICTIM));
        answers.extend(siege.stage.hand(FRIEND, &bytes));
    }
    siege.stage.tos = 0;
    assert_eq!(answers.len(), 1);
    assert!(
        answers
            .iter()
            .all(|(to, bytes)| *to == FRIEND && bytes[0] == op::CNP)
    );
    siege.survives();
}
