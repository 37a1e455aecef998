//! Keyed connections and datagrams: authentication and replay protection.

use std::{cell::RefCell, rc::Rc};

use herdwick_fabric::{Access, Payload, QpId, RegionId, SendOp, Status, Transport};
use herdwick_roce::{Config, Drop, TRAILER_BYTES};

use crate::{
    link::{A, B, Faults, World},
    reliable::keyed_storm,
    unreliable::signaled,
};

fn world() -> World {
    let mut world = World::new(1, &Config::default());
    world.keyed = true;
    world
}

/// Records a copy of each packet that A sends.
fn tap(world: &mut World) -> Rc<RefCell<Vec<Vec<u8>>>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let tap = Rc::clone(&seen);
    world.filter = Some(Box::new(move |from, packet| {
        if from == A {
            tap.borrow_mut().push(packet.clone());
        }
        true
    }));
    seen
}

/// Posts a WRITE of `value` over a keyed UC connection; returns the packet as sent.
fn written(world: &mut World, value: u64) -> ([QpId; 2], RegionId, Vec<u8>) {
    let seen = tap(world);
    let qps = world.connected(Transport::Uc);
    let region = world.sides[B].region(Access::WRITE);
    let to = world.sides[B].remote(region);
    let words = [value];
    let payload = Payload::Words(&words);
    let op = SendOp::Write {
        payload,
        to,
        imm: None,
    };
    world.sides[A].post(qps[A], &[signaled(1, op)]);
    world.run(10);
    assert_eq!(
        world.sides[B].bank.regions[&region][..8],
        value.to_le_bytes()
    );
    let packet = seen.borrow_mut().remove(0);
    (qps, region, packet)
}

fn dropped(world: &World, reason: Drop) -> u64 {
    world.sides[B].engine.counters().dropped(reason)
}

#[test]
fn lossy_link_carries_keyed_packets() {
    for seed in 0..10 {
        let faults = Faults {
            drop: 30,
            duplicate: 30,
            reorder: 50,
            corrupt: 20,
        };
        keyed_storm(seed, faults, 200);
    }
}

#[test]
fn u17_replayed_keyed_write_is_dropped() {
    let mut world = world();
    let (qps, region, packet) = written(&mut world, 1);
    let to = world.sides[B].remote(region);
    let op = SendOp::Write {
        payload: Payload::Words(&[2]),
        to,
        imm: None,
    };
    world.sides[A].post(qps[A], &[signaled(1, op)]);
    world.run(10);
    world.forge(B, &packet);
    assert_eq!(dropped(&world, Drop::Replay), 1);
    assert_eq!(
        world.sides[B].bank.regions[&region][..8],
        2u64.to_le_bytes()
    );
}

/// Without a key, a UC queue pair accepts the first packet of a message whatever its PSN.
#[test]
fn u09_forged_keyed_write_out_of_sequence_is_dropped() {
    let mut world = world();
    let (_, region, packet) = written(&mut world, 7);
    let before = world.sides[B].bank.regions[&region].clone();
    for ahead in 1..=100 {
        let mut forged = packet.clone();
        forged[11] = forged[11].wrapping_add(ahead);
        world.forge(B, &forged);
        // A pass processes only a few wrong packets of one source.
        world.step();
    }
    assert_eq!(dropped(&world, Drop::Tag), 100);
    assert!(world.sides[B].bank.regions[&region] == before);
}

#[test]
fn any_changed_bit_of_a_keyed_packet_is_detected() {
    let mut world = world();
    let (_, region, packet) = written(&mut world, 7);
    let before = world.sides[B].bank.regions[&region].clone();
    let payload = 12 + 16;
    for bit in payload * 8..(packet.len() - 4) * 8 {
        let mut changed = packet.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        world.forge(B, &changed);
        world.step();
    }
    let expected = (packet.len() - 4 - payload) * 8;
    assert_eq!(dropped(&world, Drop::Tag), expected as u64);
    assert!(world.sides[B].bank.regions[&region] == before);
}

#[test]
fn keyed_queue_pair_drops_packets_without_trailer() {
    let mut world = world();
    let (_, region, packet) = written(&mut world, 7);
    let before = world.sides[B].bank.regions[&region].clone();
    let end = packet.len() - 4 - TRAILER_BYTES;
    world.forge(B, &[&packet[..end], &[0; 4]].concat());
    assert_eq!(dropped(&world, Drop::Tag), 1);
    world.forge(B, &[&packet[..12], &[0; 4]].concat());
    assert_eq!(dropped(&world, Drop::Short), 1);
    assert!(world.sides[B].bank.regions[&region] == before);
}

#[test]
fn keyed_ud_queue_pair_accepts_only_keyed_peers() {
    let mut world = world();
    let seen = tap(&mut world);
    let (qps, to) = world.datagrams();
    let back = world.address(B, qps[B], A, qps[A]);
    (0..4).for_each(|id| world.sides[B].recv(qps[B], id));
    let op = SendOp::Send {
        payload: Payload::Words(&[5]),
        imm: Some(1),
        to: Some(to),
    };
    world.sides[A].post(qps[A], &[signaled(1, op)]);
    assert_eq!(world.next(B).status, Status::Success);
    let packet = seen.borrow_mut().remove(0);
    world.forge(B, &packet);
    assert_eq!(dropped(&world, Drop::Replay), 1);
    // Another queue pair of the same sender shares no key with this one.
    let mut stranger = packet.clone();
    stranger[19] ^= 1;
    world.forge(B, &stranger);
    assert_eq!(dropped(&world, Drop::Unkeyed), 1);
    world.sides[B].engine.destroy_address(back).expect("ours");
    world.sides[A].post(qps[A], &[signaled(1, op)]);
    world.run(10);
    assert_eq!(
        dropped(&world, Drop::Unkeyed),
        2,
        "the key was destroyed with the address handle"
    );
}
