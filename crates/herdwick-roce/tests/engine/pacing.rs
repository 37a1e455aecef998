//! Connections slow down after congestion notifications, and recover.

use herdwick_fabric::{Access, Local, Payload, SendOp, Status, Transport};
use herdwick_roce::{Config, Drop};

use crate::{
    link::{A, B, World},
    unreliable::signaled,
};

fn ecn() -> Config {
    Config {
        ecn: true,
        ..Config::default()
    }
}

/// Returns how many passes of 5 us a hundred WRITEs of 16 KiB take.
fn passes(world: &mut World, transport: Transport, mark: impl Fn(&mut World, u64)) -> u64 {
    let qps = world.connected(transport);
    let region = world.sides[B].region(Access::WRITE);
    let to = world.sides[B].remote(region);
    let payload = Payload::Region(Local {
        region: world.sides[A].inbox,
        offset: 0,
        len: 16 << 10,
    });
    let op = SendOp::Write {
        payload,
        to,
        imm: None,
    };
    let start = world.now;
    for id in 0..100 {
        mark(world, id);
        world.sides[A].post(qps[A], &[signaled(id, op)]);
        assert_eq!(world.next(A).status, Status::Success);
    }
    (world.now - start).as_micros() as u64 / 5
}

#[test]
fn cnps_reduce_the_rate_and_it_recovers() {
    for transport in [Transport::Uc, Transport::Rc] {
        let mut world = World::new(1, &ecn());
        let free = passes(&mut world, transport, |_, _| {});
        // Packets are marked CE for a while.
        let marked = passes(&mut world, transport, |world, id| {
            world.tos = if (10..50).contains(&id) { 3 } else { 0 };
        });
        assert!(
            2 * marked > 3 * free,
            "{transport:?}: {marked} after {free}"
        );
        assert!(world.sides[A].engine.counters().connections.cnps > 0);
        world.run(60_000);
        let after = passes(&mut world, transport, |_, _| {});
        assert!(after <= free + 2, "{transport:?}: {after}, not {free}");
    }
}

#[test]
fn cnps_are_dropped_without_ecn() {
    let mut world = World::new(1, &Config::default());
    let free = passes(&mut world, Transport::Uc, |_, _| {});
    // The packets are marked all the same, and B sends CNPs.
    world.tos = 3;
    let marked = passes(&mut world, Transport::Uc, |_, _| {});
    assert_eq!(marked, free);
    let counters = world.sides[A].engine.counters();
    assert_eq!(counters.connections.cnps, 0);
    assert!(counters.dropped(Drop::UnexpectedCnp) > 0);
}

#[test]
fn unpaced_queue_pair_ignores_congestion() {
    let config = Config {
        pace: false,
        ..ecn()
    };
    let mut world = World::new(1, &config);
    let free = passes(&mut world, Transport::Uc, |_, _| {});
    world.tos = 3;
    let marked = passes(&mut world, Transport::Uc, |_, _| {});
    assert_eq!(marked, free);
}

#[test]
fn paced_packets_have_a_deadline_to_resume() {
    let mut world = World::new(1, &ecn());
    passes(&mut world, Transport::Uc, |_, _| {});
    world.tos = 3;
    passes(&mut world, Transport::Uc, |_, _| {});
    let qps = world.connected(Transport::Uc);
    let region = world.sides[B].region(Access::WRITE);
    let to = world.sides[B].remote(region);
    let payload = Payload::Region(Local {
        region: world.sides[A].inbox,
        offset: 0,
        len: 60_000,
    });
    let op = SendOp::Write {
        payload,
        to,
        imm: None,
    };
    world.sides[A].post(qps[A], &[signaled(1, op)]);
    let side = &mut world.sides[A];
    let short = side
        .engine
        .poll_transmit(world.now, &side.bank, &mut side.outbox);
    assert!(!short, "there is room for packets");
    let next = side.engine.poll_timeout().expect("something waits");
    assert!(next > world.now, "no earlier deadline");
    assert_eq!(world.next(A).status, Status::Success);
}
