//! Packets that arrive as one GRO batch have the same effects as the same packets one by one.

use std::net::SocketAddr;

use herdwick_fabric::{Access, Payload, RegionId, SendOp, Transport};
use herdwick_roce::{
    Arrival, Config,
    icrc::{self, IpId, Route},
};

use crate::{
    link::{A, B, World},
    unreliable::{pattern, signaled},
};

/// Two equal worlds: B receives single packets in one, batches in the other.
struct Twins([World; 2]);

/// All observable effects of packets on an engine.
#[derive(Debug, PartialEq)]
struct Seen {
    counters: String,
    memory: Vec<(RegionId, Vec<u8>)>,
    writes: Vec<(RegionId, usize, usize)>,
    done: Vec<String>,
    answers: Vec<Vec<u8>>,
}

fn see(world: &mut World) -> Seen {
    let answers = world.caught(B);
    let side = &mut world.sides[B];
    side.collect();
    Seen {
        counters: format!("{:?}", side.engine.counters()),
        memory: side.bank.regions.clone().into_iter().collect(),
        writes: side.bank.log.clone(),
        done: side
            .done
            .drain(..)
            .map(|done| format!("{done:?}"))
            .collect(),
        answers,
    }
}

impl Twins {
    fn new() -> Self {
        Self::with(&Config::default())
    }

    fn with(config: &Config) -> Self {
        Self([0, 1].map(|_| World::new(1, config)))
    }

    /// Does the same in both worlds and checks that the results are equal.
    fn both<T: PartialEq + std::fmt::Debug>(&mut self, what: impl Fn(&mut World) -> T) -> T {
        let [one, other] = self.0.each_mut().map(what);
        assert_eq!(one, other);
        one
    }

    /// Delivers `packets` from `from` to B; `spoil` may change each after it is sealed. All but the
    /// last have equal lengths.
    fn give(&mut self, from: SocketAddr, packets: &[Vec<u8>], spoil: impl Fn(usize, &mut Vec<u8>)) {
        let to = self.0[0].sides[B].addr;
        let route = Route {
            source: from,
            destination: to,
            dont_fragment: true,
        };
        let mut packets = packets.to_vec();
        for (id, packet) in packets.iter_mut().enumerate() {
            icrc::seal(packet, &route, id as u16);
            spoil(id, packet);
        }
        let mut arrival = Arrival {
            from,
            to,
            bytes: &[],
            ip_id: IpId::Unknown,
            tos: 0,
        };
        let [one_by_one, at_once] = &mut self.0;
        for (id, packet) in (0..).zip(&packets) {
            (arrival.bytes, arrival.ip_id) = (packet, IpId::Hint(id));
            let (now, side) = (one_by_one.now, &mut one_by_one.sides[B]);
            let (bank, outbox) = (&mut side.bank, &mut side.outbox);
            side.engine.handle_packet(now, &arrival, bank, outbox);
        }
        let batch = packets.concat();
        (arrival.bytes, arrival.ip_id) = (&batch, IpId::Unknown);
        let (now, side) = (at_once.now, &mut at_once.sides[B]);
        let (bank, outbox) = (&mut side.bank, &mut side.outbox);
        side.engine
            .handle_batch(now, &arrival, packets[0].len(), bank, outbox);
    }

    /// Checks that both sides B saw the same, and returns it.
    fn seen(&mut self) -> Seen {
        self.both(see)
    }
}

/// Returns the packets of `count` WRITEs of 64 bytes and a shorter one.
fn writes(world: &mut World, transport: Transport, count: usize) -> Vec<Vec<u8>> {
    let qps = world.connected(transport);
    let region = world.sides[B].region(Access::WRITE);
    let at = world.sides[B].remote(region);
    let mut packets = Vec::new();
    for n in 0..=count {
        let bytes = pattern(if n < count { 64 } else { 20 }, n as u8);
        let write = SendOp::Write {
            payload: Payload::Inline(&bytes),
            to: at.offset(64 * n as u64),
            imm: None,
        };
        world.sides[A].post(qps[A], &[signaled(n as u64, write)]);
        world.sides[A].collect();
        packets.extend(world.caught(A));
    }
    packets
}

#[test]
fn gso_batch_of_writes_matches_single_packets() {
    // Identifications above 127 are not in the table.
    for count in [1, 5, 63, 140] {
        let mut twins = Twins::new();
        let packets = twins.both(|world| writes(world, Transport::Uc, count));
        assert_eq!(packets.len(), count + 1);
        let from = twins.0[0].sides[A].addr;
        twins.give(from, &packets, |_, _| {});
        assert_eq!(twins.seen().writes.len(), count + 1, "all are right");
    }
}

#[test]
fn bad_packet_in_a_gso_batch_affects_no_other() {
    let mut twins = Twins::new();
    let mut packets = twins.both(|world| writes(world, Transport::Uc, 20));
    // Another queue pair, congestion bits, and an undefined version.
    packets[3][7] ^= 0x55;
    packets[4][4] = 0x40;
    packets[5][1] |= 0x0f;
    let from = twins.0[0].sides[A].addr;
    twins.give(from, &packets, |id, packet| match id {
        7 => packet[30] ^= 1,
        8 => *packet.last_mut().unwrap() ^= 1,
        20 => packet.truncate(9),
        _ => {}
    });
    let seen = twins.seen();
    assert_eq!(seen.writes.len(), 21 - 5, "{}", seen.counters);
    let stranger = SocketAddr::from(([10, 9, 0, 77], 49152));
    twins.give(stranger, &packets, |_, _| {});
    assert_eq!(twins.seen().writes.len(), 21 - 5);
}

#[test]
fn gso_batch_icrc_is_skipped_if_check_icrc_is_off() {
    let config = Config {
        check_icrc: false,
        ..Config::default()
    };
    let mut twins = Twins::with(&config);
    let packets = twins.both(|world| writes(world, Transport::Uc, 20));
    let from = twins.0[0].sides[A].addr;
    twins.give(from, &packets, |_, packet| *packet.last_mut().unwrap() ^= 1);
    assert_eq!(twins.seen().writes.len(), 21);
}

#[test]
fn rc_gso_batch_gets_the_replies_of_single_packets() {
    let mut twins = Twins::new();
    let packets = twins.both(|world| writes(world, Transport::Rc, 20));
    let from = twins.0[0].sides[A].addr;
    // One packet is missing, and those after it are sent again.
    twins.give(from, &[&packets[..9], &packets[10..]].concat(), |_, _| {});
    twins.both(|world| world.run(2));
    twins.give(from, &packets[9..], |_, _| {});
    twins.both(|world| world.run(2));
    assert_eq!(twins.seen().writes.len(), 21);
}

#[test]
fn ud_gso_batches_are_accepted_from_any_route() {
    let mut twins = Twins::new();
    let packets = twins.both(|world| {
        let (qps, to) = world.datagrams();
        (0..60).for_each(|wr_id| world.sides[B].recv(qps[B], wr_id));
        for n in 0..10 {
            let send = SendOp::Send {
                payload: Payload::Inline(&pattern(40, n)),
                imm: Some(n.into()),
                to: Some(to),
            };
            world.sides[A].post(qps[A], &[signaled(n.into(), send)]);
        }
        world.caught(A)
    });
    for from in ["10.9.0.1:1", "[2001:db8::1]:1", "10.9.0.1:2", "10.9.0.1:1"] {
        twins.give(from.parse().unwrap(), &packets, |_, _| {});
    }
    assert_eq!(twins.seen().done.len(), 40);
}
