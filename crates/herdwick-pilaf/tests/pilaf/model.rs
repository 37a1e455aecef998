//! Random operations against a plain map, growth included.

use std::collections::{BTreeMap, BTreeSet};

use herdwick_check::{Rng, count};
use herdwick_fabric::Device;
use herdwick_pilaf::ServerOptions;

use crate::fixture::{Kept, PASS, World, key, seeded, server_options, shm, storm};

/// What was asked of a key.
enum Asked {
    Get,
    Put(Vec<u8>),
    Delete,
}

fn value(draw: &mut Rng) -> Vec<u8> {
    let len = match draw.below(40) {
        0 => draw.below(64 << 10) + 1,
        1..=5 => draw.below(5000),
        6 => 0,
        _ => draw.below(100),
    };
    let byte = draw.below(256) as u8;
    (0..len).map(|i| byte.wrapping_add(i as u8)).collect()
}

/// Keys of 1 to 1,024 bytes.
fn name(n: u64) -> Vec<u8> {
    match n % 50 {
        0 => vec![n as u8; 1024],
        1 => vec![n as u8],
        _ => key(n),
    }
}

/// Runs operations of several clients on keys that nobody else asks for meanwhile; returns how many
/// keys are stored in the end.
fn against_a_map<D: Device>(world: &mut World<D>, seed: u64, operations: u64, keys: u64) -> usize {
    let (mut draw, mut map) = (Rng::new(seed), BTreeMap::<Vec<u8>, Vec<u8>>::new());
    let mut asked: BTreeMap<(usize, u64), (Vec<u8>, Asked)> = BTreeMap::new();
    let (mut busy, mut begun, mut ended) = (BTreeSet::new(), 0, 0);
    while ended < operations {
        for client in 0..world.clients.len() {
            let name = name(draw.below(keys));
            if begun == operations || busy.contains(&name) {
                continue;
            }
            let machine = &mut world.clients[client].1.client;
            let (what, refused) = match draw.below(10) {
                0..=3 => (Asked::Get, machine.get(&name, begun)),
                4..=8 => {
                    let value = value(&mut draw);
                    let refused = machine.put(&name, &value, begun);
                    (Asked::Put(value), refused)
                }
                _ => (Asked::Delete, machine.delete(&name, begun)),
            };
            if refused.is_ok() {
                busy.insert(name.clone());
                asked.insert((client, begun), (name, what));
                begun += 1;
            }
        }
        for (client, user, answer) in world.pass() {
            let (name, what) = asked.remove(&(client, user)).expect("asked once");
            busy.remove(&name);
            ended += 1;
            let expected = match what {
                Asked::Get => map
                    .get(&name)
                    .map_or(Kept::Missing, |v| Kept::Value(v.clone())),
                Asked::Put(value) if answer == Kept::Done => {
                    map.insert(name, value);
                    Kept::Done
                }
                Asked::Put(_) => Kept::Full,
                Asked::Delete => map.remove(&name).map_or(Kept::Missing, |_| Kept::Done),
            };
            let failed = world.clients[client].1.client.failed();
            assert!(
                answer == expected,
                "operation {user}: {answer:.80?} {failed:?}"
            );
        }
    }
    assert_eq!(world.server.server().store().keys(), map.len());
    map.len()
}

fn growing() -> ServerOptions {
    ServerOptions {
        buckets_max: 1 << 16,
        lag: 100_000 * PASS,
        extent_bytes: 64 << 20,
        ..server_options(16)
    }
}

#[test]
fn operations_over_shared_memory_match_a_map_while_the_table_grows() {
    let operations = count("HERDWICK_PILAF_OPERATIONS", 30_000);
    let mut world = shm(2, growing());
    let keys = against_a_map(&mut world, 1, operations, 4000);
    let server = world.server.server();
    assert!(keys > 3000 && server.store().buckets() >= 4096);
    assert!(server.counters().growths >= 8);
    assert_eq!(server.counters().clients_failed, 0);
    let moved: u64 = world
        .clients
        .iter()
        .map(|(_, end)| end.client.counters().moved)
        .sum();
    assert!(moved > 0, "no client noticed");
}

#[test]
fn operations_on_a_network_that_tears_and_loses_match_a_map() {
    for seed in 0..3 {
        let (network, mut world) = seeded(seed, 2, growing());
        network.set_faults(storm());
        against_a_map(&mut world, seed, 800, 200);
        assert_eq!(world.server.server().counters().clients_failed, 0);
    }
}

#[test]
fn a_full_store_says_so_and_keeps_what_it_has() {
    let options = ServerOptions {
        extent_bytes: 1 << 20,
        ..server_options(64)
    };
    let mut world = shm(1, options);
    // More keys than buckets, and more bytes than extents.
    assert!(against_a_map(&mut world, 3, 6000, 200) <= 64);
    assert!(world.server.server().counters().full > 100);
}
