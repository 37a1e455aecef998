//! Frames captured from `rdma_rxe` of Linux 6.1: each is parsed and encoded again, and all its bits
//! are the same.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use herdwick_roce::{
    icrc::{self, IpId, Route, Run},
    packet::{Aeth, AtomicAckEth, BTH_BYTES, Bth, Class, Head, Immediate, Packet},
};

const SEVENS: &str = "7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b\
                      7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b";

fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let frames = [
        ("RC_ACK", "450000308da64000401199020a0900010a090002c12112b7001c00001100ffff0000001100108f441f000001dd61d44a".to_owned()),
        ("RC_READ_REQ", "4500003c1b3f400040110b5e0a0900020a090001c21112b7002800000c00ffff00000017801093be000055b1af4020000000082200000bb8779f66cc".to_owned()),
        ("RC_FETCH_ADD", "450000481e7d4000401108140a0900020a090001c24012b7003400001400ffff0000001880b96535000055f81e965000000009e4000000000000000100000000000000006102eb73".to_owned()),
        ("RC_ATOMIC_ACK", "45000038a23d4000401184630a0900010a090002c24012b7002400001200ffff0000001800b965351f0000013440f1e414d15815816ab3d1".to_owned()),
        ("RC_WRITE_ONLY", "4500005c26f440004011ff880a0900020a090001c27112b7004800000a00ffff0000001980358ad800005623e958c00000000a8600000020c68d5ba5bf5aea00b3bc38822f002f6af2f260bd51d59e1f0073d3685a3a532042d6b690".to_owned()),
        ("UC_SEND_ONLY", format!("4500006c0d564000401119170a0900020a090001c14412b7005800002400ffff00000012001bcec9{SEVENS}524e2d44")),
        ("UD_SEND_ONLY", format!("45000074100d4000401116580a0900020a090001d07812b7006000006400ffff000000130077271c1111111100000013{SEVENS}b37b5e9b")),
    ];
    frames.map(|(name, hex)| (name, bytes(&hex))).to_vec()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().collect();
    let pairs = digits.chunks(2).map(String::from_iter);
    pairs
        .map(|pair| u8::from_str_radix(&pair, 16).expect("hex"))
        .collect()
}

/// Removes the IPv4 and UDP headers; returns the route, the identification, and the packet from its
/// BTH on.
fn unwrap_ip(frame: &[u8]) -> (Route, u16, &[u8]) {
    let (ip, rest) = frame.split_at(20);
    let (udp, packet) = rest.split_at(8);
    let address = |at: usize| {
        let octets: [u8; 4] = ip[at..at + 4].try_into().expect("four bytes");
        IpAddr::V4(Ipv4Addr::from(octets))
    };
    let port = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
    let route = Route {
        source: SocketAddr::new(address(12), port(0)),
        destination: SocketAddr::new(address(16), port(2)),
        dont_fragment: ip[6] & 0x40 != 0,
    };
    (route, u16::from_be_bytes([ip[4], ip[5]]), packet)
}

/// Encodes a packet from its parsed form.
fn rewrite(read: &Packet<'_>, len: usize) -> Vec<u8> {
    let mut out = vec![0xee; len];
    let bth = Bth::new(
        read.bth.opcode(),
        read.bth.dest(),
        read.bth.psn(),
        read.bth.flags(),
    );
    let mut head = Head::new(&mut out, &bth);
    if let Some(deth) = read.deth() {
        head = head.and(&deth);
    }
    if let Some(reth) = read.reth() {
        head = head.and(&reth);
    }
    if let Some(atomic) = read.atomic() {
        head = head.and(&atomic);
    }
    if let Some(aeth) = read.aeth() {
        head = head.and(&Aeth::new(aeth.syndrome(), aeth.msn()));
    }
    if let Some(original) = read.original() {
        head = head.and(&AtomicAckEth {
            original: original.into(),
        });
    }
    if let Some(imm) = read.imm() {
        head = head.and(&Immediate { value: imm.into() });
    }
    head.payload(read.payload.len())
        .copy_from_slice(read.payload);
    out
}

#[test]
fn captured_frames_round_trip_bit_for_bit() {
    for (name, frame) in frames() {
        let (route, ip_id, packet) = unwrap_ip(&frame);
        let read = Packet::parse(&packet[..packet.len() - 4]);
        let read = read.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let mut again = rewrite(&read, packet.len());
        icrc::seal(&mut again, &route, ip_id);
        assert_eq!(again, packet, "{name}");
    }
}

#[test]
fn captured_fields_match_what_was_sent() {
    let read = |index: usize| {
        let (name, frame) = frames().swap_remove(index);
        let packet = unwrap_ip(&frame).2.to_vec().leak();
        (
            name,
            Packet::parse(&packet[..packet.len() - 4]).expect("is a packet"),
        )
    };
    let (_, ack) = read(0);
    assert_eq!((ack.bth.dest(), ack.bth.psn().get()), (0x11, 0x10_8f44));
    assert_eq!(ack.aeth().expect("has one").msn(), 1);
    let (_, request) = read(1);
    let reth = request.reth().expect("has one");
    assert_eq!(
        (reth.addr.get(), reth.rkey.get(), reth.len.get()),
        (0x55b1_af40_2000, 0x822, 3000)
    );
    assert!(request.bth.flags().ack_request);
    let (_, atomic) = read(2);
    let eth = atomic.atomic().expect("has one");
    assert_eq!(
        (eth.rkey.get(), eth.swap_or_add.get(), eth.compare.get()),
        (0x9e4, 1, 0)
    );
    let (_, answer) = read(3);
    assert_eq!(answer.original(), Some(0x3440_f1e4_14d1_5815));
    let (_, datagram) = read(6);
    let deth = datagram.deth().expect("has one");
    assert_eq!((deth.qkey.get(), deth.source.get()), (0x1111_1111, 0x13));
    assert_eq!(
        (datagram.op.class, datagram.payload),
        (Class::Ud, &[0x7b; 64][..])
    );
}

#[test]
fn unknown_ip_identification_is_solved_from_the_icrc() {
    for (name, frame) in frames() {
        let (route, ip_id, packet) = unwrap_ip(&frame);
        assert_ne!(ip_id, 0, "{name}: rxe counts");
        assert_eq!(
            icrc::check(packet, &route, IpId::Known(ip_id)),
            Some(ip_id),
            "{name}"
        );
        assert_eq!(
            icrc::check(packet, &route, IpId::Known(ip_id ^ 1)),
            None,
            "{name}"
        );
        assert_eq!(
            icrc::check(packet, &route, IpId::Unknown),
            Some(ip_id),
            "{name}"
        );
        assert_eq!(
            icrc::check(packet, &route, IpId::Hint(7)),
            Some(ip_id),
            "{name}"
        );
    }
}

#[test]
fn icrc_detects_any_changed_bit_that_routers_leave_alone() {
    for (name, frame) in frames() {
        let (route, ip_id, packet) = unwrap_ip(&frame);
        for bit in 0..packet.len() * 8 {
            let mut changed = packet.to_vec();
            changed[bit / 8] ^= 0x80 >> (bit % 8);
            let masked = bit / 8 == 4;
            let good = icrc::check(&changed, &route, IpId::Known(ip_id)).is_some();
            assert_eq!(good, masked, "{name}: bit {bit}");
        }
        let mut other = route;
        other.source.set_port(route.source.port() ^ 1);
        assert_eq!(
            icrc::check(packet, &other, IpId::Known(ip_id)),
            None,
            "{name}"
        );
    }
}

/// One route over IPv4 and one over IPv6.
fn routes() -> [Route; 2] {
    let v4 = Route {
        source: "10.0.0.1:49152".parse().expect("is an address"),
        destination: "10.0.0.2:4791".parse().expect("is an address"),
        dont_fragment: true,
    };
    let v6 = Route {
        source: SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 49152),
        destination: SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 4791),
        dont_fragment: true,
    };
    [v4, v6]
}

#[test]
fn identification_is_solved_at_every_length_and_absent_in_ipv6() {
    let [v4, v6] = routes();
    // IPv6 has no such bit.
    let v6 = Route {
        dont_fragment: false,
        ..v6
    };
    for len in (BTH_BYTES + 4..5000).step_by(4) {
        let mut packet: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
        let id = (len * 31) as u16;
        icrc::seal(&mut packet, &v4, id);
        assert_eq!(
            icrc::check(&packet, &v4, IpId::Unknown),
            Some(id),
            "{len} bytes"
        );
        icrc::seal(&mut packet, &v6, id);
        assert!(icrc::check(&packet, &v6, IpId::Unknown).is_some());
        packet[len - 1] ^= 1;
        assert_eq!(icrc::check(&packet, &v6, IpId::Unknown), None);
    }
    assert_eq!(icrc::check(&[0; BTH_BYTES + 3], &v4, IpId::Unknown), None);
}

#[test]
fn icrcs_of_a_run_match_those_of_single_packets() {
    let [v4, v6] = routes();
    let mut run = Run::new();
    for len in [16, 96, 96, 80, 1084, 4172, 96] {
        for (route, id) in [v4, v6, v4]
            .into_iter()
            .zip([0, 1, 63, 127, 128, 40_000].into_iter().cycle().skip(len))
        {
            for congested in [0, 0x80] {
                let mut packet: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
                packet[4] = congested;
                let mut alone = packet.clone();
                icrc::seal(&mut alone, &route, id);
                run.seal(&mut packet, &route, id);
                assert_eq!(packet, alone, "{len} bytes, {id}");
                let mut batch = [alone.clone(), alone[..len.max(20) - 4].to_vec()].concat();
                run.seal_batch(&mut batch, len, &route);
                for (id, packet) in (0..).zip(batch.chunks(len)) {
                    assert_eq!(icrc::check(packet, &route, IpId::Known(id)), Some(id));
                }
                run.follow(&route);
                assert!(run.check(&packet, IpId::Hint(id)).is_some());
                assert_eq!(
                    run.check(&packet, IpId::Hint(id ^ 1)),
                    icrc::check(&packet, &route, IpId::Hint(id ^ 1)),
                );
                for other in [v4, v6] {
                    run.follow(&other);
                    assert_eq!(
                        run.check(&packet, IpId::Hint(id)),
                        icrc::check(&packet, &other, IpId::Hint(id)),
                    );
                }
                packet[len - 5] ^= 4;
                assert_eq!(run.check(&packet, IpId::Hint(id)), None);
            }
        }
    }
    assert_eq!(run.check(&[0; BTH_BYTES + 3], IpId::Hint(0)), None);
}

#[test]
fn icrcs_of_a_gso_batch_match_those_of_single_packets() {
    let routes = routes();
    let mut run = Run::new();
    // Identifications above 127 are not in the table; the last packet of each batch is shorter.
    for (len, count, congested) in [
        (96, 1, 9),
        (76, 9, 5),
        (16, 12, 99),
        (1084, 6, 0),
        (96, 140, 7),
    ] {
        for route in routes {
            let mut batch: Vec<u8> = (0..len * count + 16).map(|i| (i * 7 % 251) as u8).collect();
            for (id, packet) in batch.chunks_mut(len).enumerate() {
                packet[4] = u8::from(id == congested) << 6;
            }
            let mut alone = batch.clone();
            for (id, packet) in (0..).zip(alone.chunks_mut(len)) {
                icrc::seal(packet, &route, id);
            }
            run.seal_batch(&mut batch, len, &route);
            assert_eq!(batch, alone, "{count} packets of {len} bytes");
        }
    }
}

#[test]
fn short_and_malformed_bytes_are_refused() {
    for (name, frame) in frames() {
        let (_, _, packet) = unwrap_ip(&frame);
        let whole = &packet[..packet.len() - 4];
        for cut in 0..whole.len() {
            let headers = whole.len() - Packet::parse(whole).expect(name).payload.len();
            let parsed = Packet::parse(&whole[..cut]);
            let sound = cut >= headers && (cut - headers).is_multiple_of(4);
            assert_eq!(parsed.is_ok(), sound, "{name}: {cut} bytes");
        }
    }
}
