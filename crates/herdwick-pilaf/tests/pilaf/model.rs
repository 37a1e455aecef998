//! Random operations against a plain map, growth included.

use herdwick_check::{MapAnswer, MapCall, MapClients, MapLoad, count};
use herdwick_conformance::seeded::Faults;
use herdwick_fabric::Device;
use herdwick_pilaf::ServerOptions;

use crate::fixture::{Kept, PASS, World, seeded, server_options, shm};

impl<D: Device> MapClients for World<D> {
    type Answer = Kept;

    fn clients(&self) -> usize {
        self.clients.len()
    }

    fn call(&mut self, client: usize, key: &[u8], call: &MapCall, token: u64) -> bool {
        let machine = &mut self.clients[client].1.client;
        let begun = match call {
            MapCall::Get => machine.get(key, token),
            MapCall::Put(value) => machine.put(key, value, token),
            MapCall::Delete => machine.delete(key, token),
        };
        begun.is_ok()
    }

    fn pass(&mut self) -> Vec<(usize, u64, Kept)> {
        Self::pass(self)
    }

    fn own(answer: MapAnswer) -> Kept {
        match answer {
            MapAnswer::Value(value) => Kept::Value(value),
            MapAnswer::Missing => Kept::Missing,
            MapAnswer::Done => Kept::Done,
            MapAnswer::Full => Kept::Full,
        }
    }
}

/// Runs operations on so many keys, of 1 to 1,024 bytes; returns how many keys are stored in the end.
fn against_a_map<D: Device>(world: &mut World<D>, seed: u64, operations: u64, keys: u64) -> usize {
    let load = MapLoad {
        seed,
        operations,
        keys,
        key_bytes_max: 1024,
        value_bytes_max: [64 << 10, 5000, 100],
    };
    let map = load.run(world);
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
        network.set_faults(Faults::storm());
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
