//! Malformed packets.

use std::net::SocketAddr;

use herdwick_roce::Drop;

use crate::{
    Siege,
    common::{
        packet::{Packet, Way, op},
        stage::{FRIEND, MTU, STRANGER, VICTIM},
    },
};

/// A 64-byte WRITE over UC, valid unless a test changes it.
fn write(siege: &Siege) -> Packet {
    let (addr, rkey) = siege.key(siege.write);
    let qpn = siege.qpn(siege.stage.victim.uc);
    Packet::new(op::UC | op::WRITE_ONLY, qpn, siege.stage.next_uc)
        .reth(addr, rkey, 64)
        .payload(&[7; 64])
}

#[test]
fn u01_fewer_bytes_than_a_header_are_dropped() {
    let mut siege = Siege::new();
    let bytes = write(&siege).sealed(&Way::new(FRIEND, VICTIM));
    for len in 0..16 {
        siege.dropped_bytes(FRIEND, &bytes[..len]);
        siege.dropped_bytes(STRANGER, &bytes[..len]);
    }
    siege.survives();
}

/// Returns the bytes of the headers after the BTH, for every defined opcode (IBTA, table 38).
fn headers(opcode: u8) -> usize {
    let (datagram, operation) = (opcode >> 5 == 3, opcode & 0x1f);
    let own = match operation {
        0x03 | 0x05 | 0x09 | 0x11 | 0x0d | 0x0f | 0x10 => 4,
        0x06 | 0x0a | 0x0c => 16,
        0x0b => 20,
        0x12 => 12,
        0x13 | 0x14 => 28,
        _ => 0,
    };
    own + if datagram { 8 } else { 0 }
}

#[test]
fn u02_opcodes_without_their_headers_are_dropped() {
    let mut siege = Siege::new();
    let victim = &siege.stage.victim;
    let queues = [
        (op::RC, victim.rc),
        (op::UC, victim.uc),
        (op::UD, victim.ud),
    ];
    for (class, qp) in queues {
        let (qpn, psn) = (siege.qpn(qp), siege.stage.next_rc);
        for operation in 0..0x1f {
            for len in (0..headers(class | operation)).step_by(4) {
                let mut packet = Packet::new(class | operation, qpn, psn);
                packet.headers = vec![0; len];
                siege.dropped(FRIEND, &packet);
            }
        }
    }
    siege.survives();
}

#[test]
fn u03_packet_with_less_payload_than_pad_is_dropped() {
    let mut siege = Siege::new();
    let (uc, ud) = (siege.stage.victim.uc, siege.stage.victim.ud);
    let packets = [
        Packet::new(op::UC | op::SEND_ONLY, siege.qpn(uc), siege.stage.next_uc),
        Packet::new(op::UD | op::SEND_ONLY, siege.qpn(ud), 0).deth(0, 0),
    ];
    for mut packet in packets {
        for pad in 1..4 {
            packet.second = Some(pad << 4);
            siege.dropped(FRIEND, &packet);
        }
    }
    siege.survives();
}

#[test]
fn u04_flipped_bits_that_the_icrc_covers_are_detected() {
    let mut siege = Siege::new();
    let bytes = write(&siege).sealed(&Way::new(FRIEND, VICTIM));
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if bit / 8 != 4 {
            siege.dropped_bytes(FRIEND, &flipped);
        }
    }
    let elsewhere = write(&siege).sealed(&Way::new(STRANGER, VICTIM));
    siege.dropped_bytes(FRIEND, &elsewhere);
    siege.survives();
}

/// FECN, BECN and reserved bits: a WRITE has the same effect as without them.
#[test]
fn u04_bits_that_the_icrc_does_not_cover_have_no_effect() {
    let mut siege = Siege::new();
    let bytes = write(&siege).sealed(&Way::new(FRIEND, VICTIM));
    for bit in 0..8 {
        let mut flipped = bytes.clone();
        flipped[4] ^= 1 << bit;
        let region = siege.write;
        siege.stage.victim.memory.of_mut(region).fill(0);
        let mut wanted = siege.memory();
        wanted.of_mut(region)[..64].fill(7);
        assert!(siege.stage.hand(FRIEND, &flipped).is_empty());
        assert!(siege.stage.victim.memory == wanted);
    }
    siege.survives();
}

#[test]
fn u05_packets_of_other_versions_and_partitions_are_dropped() {
    let mut siege = Siege::new();
    for version in 1..16 {
        let mut packet = write(&siege);
        packet.second = Some(version);
        siege.dropped_for(FRIEND, &packet, Drop::Version);
    }
    for pkey in [0, 1, 0x1234, 0x8000, 0xfffe] {
        let mut packet = write(&siege);
        packet.pkey = pkey;
        siege.dropped_for(FRIEND, &packet, Drop::Partition);
    }
    siege.survives();
}

#[test]
fn u14_packets_of_a_wrong_size_are_dropped() {
    let mut siege = Siege::new();
    let qpn = siege.qpn(siege.stage.victim.uc);
    let (addr, rkey) = siege.key(siege.write);
    let psn = siege.stage.next_uc;
    let long = vec![9; MTU + 4];
    let of = |operation| Packet::new(op::UC | operation, qpn, psn);
    let len = u32::try_from(long.len()).unwrap();
    siege.dropped(FRIEND, &of(op::SEND_ONLY).payload(&long));
    siege.dropped(FRIEND, &of(op::SEND_FIRST).payload(&long));
    siege.dropped(
        FRIEND,
        &of(op::WRITE_ONLY).reth(addr, rkey, len).payload(&long),
    );
    for short in [0, 4, MTU - 4] {
        let part = &long[..short];
        siege.dropped(FRIEND, &of(op::SEND_FIRST).payload(part));
        siege.dropped(
            FRIEND,
            &of(op::WRITE_FIRST).reth(addr, rkey, 4000).payload(part),
        );
    }
    siege.survives();
}

#[test]
fn u21_other_address_families_and_longest_datagrams_are_dropped() {
    /// Maximum payload of an IPv4 UDP datagram.
    const LONGEST: usize = 65_507;
    let mut siege = Siege::new();
    let mut packet = write(&siege);
    packet.payload = vec![9; LONGEST - 12 - 16 - 4 - 3];
    siege.dropped(FRIEND, &packet);
    let endpoint = siege
        .stage
        .victim
        .engine
        .endpoint(siege.stage.victim.ud)
        .unwrap();
    let datagram = Packet::new(op::UD | op::SEND_ONLY, endpoint.qpn.0, 0).deth(endpoint.qkey, 5);
    siege.dropped(
        STRANGER,
        &datagram.payload(&vec![9; LONGEST - 12 - 8 - 4 - 3]),
    );
    siege.dropped_bytes(STRANGER, &vec![0xff; LONGEST]);

    // The connection is to an IPv4 address.
    let (from, to): (SocketAddr, SocketAddr) =
        ("[::5]:4791".parse().unwrap(), "[::1]:4791".parse().unwrap());
    let bytes = write(&siege).sealed(&Way::new(from, to));
    siege.dropped_bytes(from, &bytes);
    siege.survives();
}
