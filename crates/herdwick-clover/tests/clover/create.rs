//! A key that is being created: what one client has read of it, no other misses, and no other server.

use std::time::Duration;

use herdwick_conformance::seeded::{Faults, PartyId, SeededNetwork};

use crate::fixture::{Kept, World, geometry, key};

const VALUE: &[u8] = b"created";

/// Client 0 has a cursor of a key that client 1 has deleted, so it knows the only slot.
fn deleted(seed: u64, nodes: usize) -> World<SeededNetwork> {
    let mut world = World::new(SeededNetwork::new(seed), (nodes, 3), geometry(1, 64, 16));
    assert_eq!(world.put(1, &key(1), b"first"), Kept::Done);
    assert_eq!(world.get(0, &key(1)), Kept::Value(b"first".to_vec()));
    assert_eq!(world.delete(1, &key(1)), Kept::Done);
    while world.server.server().keys() > 0 {
        world.pass();
    }
    world.fabric.set_faults(Faults {
        delay_min: Duration::from_nanos(200),
        delay_max: Duration::from_micros(9),
        ..Faults::default()
    });
    world
}

/// Packets from one port to another are lost.
type Cut = (PartyId, PartyId);

/// Client 1 creates the key; after so many passes packets are lost, and client 0 READs it. Returns
/// whether it found the value, and whether client 1 got the reply before that it is stored.
fn found(world: &mut World<SeededNetwork>, passes: u64, cut: Cut) -> (bool, bool) {
    let now = world.now;
    let creator = &mut world.clients[1].end.client;
    creator.put(&key(1), VALUE, 1, now).unwrap();
    let mut stored = false;
    for _ in 0..passes {
        stored |= !world.pass().is_empty();
    }
    world.fabric.cut(cut.0, cut.1);
    world.clients[0].end.client.get(&key(1), 0).unwrap();
    for _ in 0..60 {
        for (client, _, kept) in world.pass() {
            stored |= client == 1;
            if client == 0 {
                return (kept == Kept::Value(VALUE.to_vec()), stored);
            }
        }
    }
    (false, stored)
}

/// Runs `check` on worlds in which the value was found, with whether it was stored by then.
fn check_found(
    nodes: usize,
    cut: impl Fn(&World<SeededNetwork>) -> Cut,
    mut check: impl FnMut(&mut World<SeededNetwork>, Cut, bool),
) {
    for seed in 0..12 {
        for passes in (0..80).step_by(2) {
            let mut world = deleted(seed, nodes);
            let cut = cut(&world);
            if let (true, stored) = found(&mut world, passes, cut) {
                check(&mut world, cut, stored);
            }
        }
    }
}

fn answered(world: &mut World<SeededNetwork>, client: usize) -> Kept {
    for _ in 0..100_000 {
        let answers = world.pass();
        if let Some((_, _, kept)) = answers.into_iter().find(|(index, ..)| *index == client) {
            return kept;
        }
    }
    panic!("no answer");
}

/// The server does not learn that the shortcut is written.
#[test]
fn what_one_client_found_another_finds() {
    let acknowledgements = |world: &World<SeededNetwork>| {
        let server = world.server.node_port.party();
        (world.nodes[0].port.party(), server)
    };
    let mut found_early = 0;
    check_found(1, acknowledgements, |world, (from, to), stored| {
        found_early += u64::from(!stored);
        world.clients[2].end.client.get(&key(1), 2).unwrap();
        let early: Vec<_> = (0..60).flat_map(|_| world.pass()).collect();
        let found = |kept: &Kept| *kept == Kept::Value(VALUE.to_vec());
        assert!(early.iter().all(|(_, _, kept)| found(kept)), "{early:?}");
        world.fabric.heal(from, to);
        assert!(!early.is_empty() || found(&answered(world, 2)));
    });
    assert!(found_early > 4, "{found_early}");
}

/// The second node gets no shortcut, and the first one fails.
#[test]
fn what_a_client_found_is_on_all_nodes() {
    let requests = |world: &World<SeededNetwork>| {
        let server = world.server.node_port.party();
        (server, world.nodes[1].port.party())
    };
    let mut checked = 0;
    check_found(2, requests, |world, (from, to), _| {
        checked += 1;
        world.nodes.remove(0);
        world.fabric.heal(from, to);
        world.restart();
        world.join();
        world.clients[0].end.client.get(&key(1), 2).unwrap();
        assert_eq!(answered(world, 0), Kept::Value(VALUE.to_vec()));
    });
    assert!(checked > 4, "{checked}");
}
