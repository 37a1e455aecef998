//! Packets for queue pairs that do not accept them.

use herdwick_fabric::Transport;
use herdwick_roce::Drop;

use crate::{
    Siege,
    common::{
        packet::{Packet, op},
        stage::{FRIEND, MTU, REGION, STRANGER},
    },
};

/// Number of messages that begin and never end.
const UNFINISHED: usize = 100_000;
/// A PSN distance beyond all packets in flight.
const AHEAD: u32 = 5000;

/// Returns one packet of every opcode, with enough headers for each.
fn every_opcode(qpn: u32, psn: u32) -> impl Iterator<Item = Packet> {
    (0..=255).map(move |opcode| {
        let mut packet = Packet::new(opcode, qpn, psn).ack();
        packet.headers = vec![0; 40];
        packet
    })
}

#[test]
fn u06_absent_and_unready_queue_pairs_send_no_reply() {
    let mut siege = Siege::new();
    let victim = &mut siege.stage.victim;
    let made = victim.queue_pair(Transport::Rc);
    let failed = victim.queue_pair(Transport::Uc);
    victim.engine.fail_qp(failed).unwrap();
    let mut absent = vec![0, 1, 2, 0xff_fffe, 0xff_ffff];
    let live = [victim.rc, victim.uc, victim.ud, made, failed].map(|qp| victim.qpn(qp));
    absent.extend(live.map(|qpn| qpn ^ 0x10_0000));
    absent.retain(|qpn| !live.contains(qpn));
    absent.extend([victim.qpn(made), victim.qpn(failed)]);
    for qpn in absent {
        for packet in every_opcode(qpn, 0) {
            siege.ignored(FRIEND, &packet);
            siege.ignored(STRANGER, &packet);
        }
    }
    siege.survives();
}

#[test]
fn u07_connection_accepts_packets_from_its_peer_only() {
    let mut siege = Siege::new();
    let (addr, rkey) = siege.key(siege.write);
    let victim = &siege.stage.victim;
    let queues = [
        (op::RC, siege.qpn(victim.rc), siege.stage.next_rc),
        (op::UC, siege.qpn(victim.uc), siege.stage.next_uc),
    ];
    for (class, qpn, psn) in queues {
        let of = |operation| Packet::new(class | operation, qpn, psn).ack();
        let write = of(op::WRITE_ONLY).reth(addr, rkey, 64).payload(&[7; 64]);
        siege.dropped_for(STRANGER, &write, Drop::Source);
        let send = of(op::SEND_ONLY).payload(&[7; 64]);
        siege.dropped_for(STRANGER, &send, Drop::Source);
    }
    siege.survives();
}

#[test]
fn u08_wrong_qkey_is_refused() {
    let mut siege = Siege::new();
    let endpoint = siege
        .stage
        .victim
        .engine
        .endpoint(siege.stage.victim.ud)
        .unwrap();
    for bit in 0..32 {
        let packet = Packet::new(op::UD | op::SEND_ONLY, endpoint.qpn.0, 0);
        let packet = packet.deth(endpoint.qkey ^ 1 << bit, 5).payload(&[7; 64]);
        siege.dropped_for(STRANGER, &packet, Drop::Qkey);
        siege.dropped_for(FRIEND, &packet, Drop::Qkey);
    }
    assert!(siege.stage.victim.poll().is_empty());
    siege.survives();
}

/// As the specification demands, the first packet of a message is accepted after a loss. An
/// attacker who forges the peer's address and knows the queue pair and the rkey can write; keyed
/// peers refuse it.
#[test]
fn u09_uc_write_out_of_sequence_is_accepted_only_from_the_peer() {
    let mut siege = Siege::new();
    let (addr, rkey) = siege.key(siege.write);
    let qpn = siege.qpn(siege.stage.victim.uc);
    let packet = Packet::new(op::UC | op::WRITE_ONLY, qpn, siege.stage.next_uc ^ 0x5555);
    let packet = packet.reth(addr, rkey, 64).payload(&[7; 64]);
    siege.dropped_for(STRANGER, &packet, Drop::Source);
    let way = crate::Way::new(FRIEND, crate::VICTIM);
    assert!(siege.stage.hand(FRIEND, &packet.sealed(&way)).is_empty());
    assert_eq!(siege.stage.victim.memory.of(siege.write)[..64], [7; 64]);
    siege.survives();
}

#[test]
fn u13_messages_without_first_or_last_packet_are_dropped() {
    let mut siege = Siege::new();
    let qpn = siege.qpn(siege.stage.victim.uc);
    let (addr, rkey) = siege.key(siege.write);
    let psn = siege.stage.next_uc;
    let whole = [9; MTU];
    let of = |operation, psn| Packet::new(op::UC | operation, qpn, psn).payload(&whole);
    for operation in [
        op::SEND_MIDDLE,
        op::SEND_LAST,
        op::WRITE_MIDDLE,
        op::WRITE_LAST,
    ] {
        siege.dropped(FRIEND, &of(operation, psn));
    }
    // Messages that begin and never end: each replaces the one before, and none is executed.
    let way = crate::Way::new(FRIEND, crate::VICTIM);
    let send = of(op::SEND_FIRST, psn).sealed(&way);
    let mut write = Packet::new(op::UC | op::WRITE_FIRST, qpn, psn);
    write = write.reth(addr, rkey, REGION as u32).payload(&whole);
    let write = write.sealed(&way);
    for _ in 0..UNFINISHED {
        assert!(siege.stage.hand(FRIEND, &send).is_empty());
        assert!(siege.stage.hand(FRIEND, &write).is_empty());
    }
    // The middle of a SEND does not continue a WRITE.
    siege.dropped(FRIEND, &of(op::SEND_MIDDLE, psn + 1));
    siege.dropped(FRIEND, &of(op::WRITE_LAST, psn + 2));
    assert!(siege.stage.victim.poll().is_empty());
    siege.survives();
}

#[test]
fn u15_opcodes_of_other_transports_are_dropped() {
    let mut siege = Siege::new();
    let victim = &siege.stage.victim;
    let queues = [
        (op::RC, victim.rc),
        (op::UC, victim.uc),
        (op::UD, victim.ud),
    ];
    for (class, qp) in queues {
        let qpn = siege.qpn(qp);
        for packet in every_opcode(qpn, siege.stage.next_rc.wrapping_add(AHEAD)) {
            if packet.opcode & 0xe0 != class && packet.opcode != op::CNP {
                siege.dropped(FRIEND, &packet);
            }
        }
    }
    assert!(siege.stage.victim.poll().is_empty());
    siege.survives();
}
