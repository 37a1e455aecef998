//! Random operations against a plain map, while entries are recycled and versions wrap.

use std::time::Duration;

use herdwick_check::{Map, MapAnswer, MapCall, MapClients, MapLoad, count, length};
use herdwick_clover::layout::CLASSES;
use herdwick_conformance::seeded::{Faults, SeededNetwork};
use herdwick_fabric::Port;

use crate::fixture::{Fabric, Kept, Roce, Shm, World, geometry, key};

impl<F: Fabric> MapClients for World<F> {
    type Answer = Kept;

    fn clients(&self) -> usize {
        self.clients.len()
    }

    fn call(&mut self, client: usize, key: &[u8], call: &MapCall, token: u64) -> bool {
        let (now, machine) = (self.now, &mut self.clients[client].end.client);
        let begun = match call {
            MapCall::Get => machine.get(key, token),
            MapCall::Put(value) => machine.put(key, value, token, now),
            MapCall::Delete => machine.delete(key, token, now),
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

/// Operations on so many keys, of 1 to 250 bytes.
fn load(seed: u64, operations: u64, keys: u64) -> MapLoad {
    MapLoad {
        seed,
        operations,
        keys,
        key_bytes_max: 250,
        value_bytes_max: [1500, 400, 60],
    }
}

/// Runs such operations. Returns what is stored in the end.
fn against_a_map<F: Fabric>(world: &mut World<F>, seed: u64, operations: u64, keys: u64) -> Map {
    load(seed, operations, keys).run(world)
}

/// Every key is found, and deleted ones are forgotten.
fn settles<F: Fabric>(world: &mut World<F>, map: &Map, keys: u64) {
    for n in 0..keys {
        let name = load(0, 0, keys).key(n);
        let expected = map
            .get(&name)
            .map_or(Kept::Missing, |v| Kept::Value(v.clone()));
        assert!(world.get(0, &name) == expected, "key {n}");
    }
    let mut passes = 0;
    while world.server.server().keys() != map.len() {
        world.pass();
        passes += 1;
        assert!(
            passes < 200_000,
            "{} of {}",
            world.server.server().keys(),
            map.len()
        );
    }
    let counters = world.server.server().counters();
    assert_eq!(
        (counters.corrupt, counters.bad_claim, counters.bad_unknown),
        (0, 0, 0)
    );
    conserves(world, map.len());
}

/// No entry is lost: one is in use for each key, and when no client has a free list all others are free.
fn conserves<F: Fabric>(world: &mut World<F>, keys: usize) {
    let entries = world.geometry.count() as usize;
    for _ in 0..200_000 {
        let server = world.server.server();
        let free: usize = (0..CLASSES).map(|class| server.free_entries(class)).sum();
        if free + keys == entries {
            return;
        }
        world.pass();
    }
    panic!("{keys} keys of {entries} entries, but fewer are free");
}

#[test]
fn operations_over_shared_memory_match_a_map_and_no_data_node_runs() {
    let operations = count("HERDWICK_CLOVER_OPERATIONS", length(10_000, 30_000));
    for nodes in [1, 2, 3] {
        let mut world = World::new(Shm, (nodes, 3), geometry(1000, 700, 1 << 14));
        world.nodes_run = false;
        let map = against_a_map(&mut world, 1, operations, 400);
        settles(&mut world, &map, 400);
        let counters = world.server.server().counters();
        assert!(counters.recycled > operations / 8, "{counters:?}");
    }
}

#[test]
fn operations_on_a_network_that_tears_and_loses_match_a_map() {
    for seed in 0..4 {
        let network = SeededNetwork::new(seed);
        let nodes = 1 + seed as usize % 2;
        let mut world = World::new(network, (nodes, 2), geometry(200, 300, 1 << 14));
        world.fabric.set_faults(Faults::storm());
        let map = against_a_map(&mut world, seed, 1500, 60);
        settles(&mut world, &map, 60);
    }
}

#[test]
fn operations_over_roce_match_a_map() {
    let mut world = World::new(Roce, (2, 2), geometry(200, 300, 1 << 14));
    let map = against_a_map(&mut world, 1, 3000, 60);
    settles(&mut world, &map, 60);
}

#[test]
fn versions_wrap_and_readers_are_right() {
    for (seed, versions) in [(1, 2), (2, 3), (3, 5)] {
        let mut world = World::new(Shm, (1, 3), geometry(64, 200, versions));
        let map = against_a_map(&mut world, seed, 20_000, 20);
        settles(&mut world, &map, 20);
        assert!(world.server.server().counters().wraps > 100);
        let flushes: u64 = (world.clients.iter())
            .map(|member| member.end.client.counters().flushes)
            .sum();
        assert!(flushes > 10);
    }
}

#[test]
fn a_full_store_says_so_and_keeps_what_it_has() {
    // Fewer entries than keys, and fewer slots.
    for (slots, entries) in [(1000, 150), (40, 1000)] {
        let mut world = World::new(Shm, (1, 1), geometry(slots, entries, 100));
        world.clients[0].end.client.get(b"x", 0).unwrap();
        world.answer();
        let mut full = 0;
        let mut stored = Vec::new();
        for n in 0..300 {
            match world.put(0, &key(n), b"value") {
                Kept::Done => stored.push(n),
                Kept::Full => full += 1,
                other => panic!("{other:?}"),
            }
            if full > 3 {
                break;
            }
        }
        assert!(full > 3 && stored.len() >= 39, "{full} {}", stored.len());
        for n in &stored {
            assert_eq!(world.get(0, &key(*n)), Kept::Value(b"value".to_vec()));
        }
        // A DELETE makes room, where there is no entry for a tombstone either.
        let keys = world.server.server().keys();
        assert_eq!(world.delete(0, &key(stored[0])), Kept::Done);
        assert_eq!(world.get(0, &key(stored[0])), Kept::Missing);
        while world.server.server().keys() == keys {
            world.pass();
        }
        assert_eq!(world.put(0, b"new", b"value"), Kept::Done);
        assert_eq!(world.get(0, b"new"), Kept::Value(b"value".to_vec()));
        let client = world.clients[0].end.client.counters();
        let by_server = world.server.server().counters().deletes;
        assert_eq!(
            (client.deletes, by_server),
            match slots {
                40 => (0, 0),
                _ => (1, 1),
            }
        );
        assert_eq!(world.delete(0, &key(stored[0])), Kept::Missing);
    }
}

/// Memory that has large entries alone has them for small values and for tombstones too.
#[test]
fn a_size_class_without_entries_is_served_by_the_next() {
    let mut geometry = geometry(64, 0, 100);
    geometry.entries[3] = 40;
    let mut world = World::new(Shm, (2, 1), geometry);
    for round in 0..50 {
        let value = vec![round; 5];
        assert_eq!(world.put(0, b"k", &value), Kept::Done);
        assert_eq!(world.get(0, b"k"), Kept::Value(value));
        assert_eq!(world.delete(0, b"k"), Kept::Done);
        assert_eq!(world.get(0, b"k"), Kept::Missing);
    }
    assert_eq!(world.server.server().counters().deletes, 0);
}

/// DELETEs that the server does, beside PUTs and GETs of the same keys by others.
#[test]
fn a_store_without_entries_to_spare_matches_a_map() {
    for seed in 0..3 {
        let mut world = World::new(
            SeededNetwork::new(seed),
            (1 + seed as usize % 2, 3),
            geometry(64, 20, 5),
        );
        world.client_options.entry_wait = Duration::from_micros(200);
        (0..3).for_each(|_| drop(world.remove(0)));
        (0..3).for_each(|_| world.join());
        world.fabric.set_faults(Faults::storm());
        let map = against_a_map(&mut world, seed, 3000, 40);
        let counters = world.server.server().counters();
        assert!(
            counters.deletes > 50 && counters.empty_takes > 50,
            "{counters:?}"
        );
        settles(&mut world, &map, 40);
    }
}

/// Answers of requests that end while they are posted are in flight until they are handed over.
#[test]
fn answers_are_counted_when_they_are_handed_over() {
    let mut world = World::new(Shm, (1, 1), geometry(8, 2, 100));
    for n in 0..2 {
        assert_eq!(world.put(0, &key(n), b"x"), Kept::Done);
    }
    let now = world.now;
    let client = &mut world.clients[0].end.client;
    (0..3).for_each(|user| client.put(&key(9), b"x", user, now).unwrap());
    let (mut answers, mut ended) = (0, 0);
    while world.clients[0].end.client.in_flight() > 0 {
        world.now += world.client_options.entry_wait / 3;
        world.server.port.progress(world.now);
        world.server.node_port.progress(world.now);
        world.server.pass(world.now);
        let (now, end) = (world.now, &mut world.clients[0].end);
        end.client.post(&mut end.port, now);
        end.port.progress(now);
        ended += end
            .client
            .poll(&mut end.port, now, &mut |_, _| answers += 1);
    }
    assert_eq!((answers, ended), (3, 3));
}

/// A server that stalls is asked for entries once, not at each publication; and what a client takes and
/// does not use comes back.
#[test]
fn a_stall_of_the_server_costs_no_entries() {
    let mut world = World::new(SeededNetwork::new(1), (1, 2), geometry(8, 600, 100));
    let now = world.now;
    (world.clients[0].end.client.put(&key(1), b"x", 0, now)).unwrap();
    for _ in 0..20 {
        world.now += Duration::from_micros(21);
        let (now, end) = (world.now, &mut world.clients[0].end);
        end.client.post(&mut end.port, now);
        end.port.progress(now);
    }
    assert_eq!(world.answer(), Kept::Done);
    let out = 600 - world.server.server().free_entries(0);
    assert!(out <= 65, "{out}");
    // The value is in one entry, and all others are free again.
    for _ in 0..40_000 {
        world.pass();
    }
    assert_eq!(world.server.server().free_entries(0), 599);
    let counters = world.server.server().counters();
    assert_eq!(
        (counters.given, counters.bad_claim),
        (counters.taken - 1, 0)
    );
}
