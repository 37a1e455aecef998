//! Histories of a few keys that many clients change, with parties killed at every step: linearizable.

use std::collections::BTreeMap;

use herdwick_check::{Action, Operation, Register, Rng, check, count, length};
use herdwick_conformance::seeded::{Faults, SeededNetwork};

use crate::fixture::{Kept, World, geometry, key};

const KEYS: u64 = 3;

/// What happened, by key, and what is in flight.
#[derive(Default)]
struct History {
    ended: BTreeMap<u64, Vec<Operation>>,
    /// By client and number: the key, and the operation as far as it is known.
    open: BTreeMap<(usize, u64), (u64, Operation)>,
    next: u64,
}

/// A value that names the operation that stored it: its number, padded to a length that changes.
fn value(n: u64) -> Vec<u8> {
    let mut value = n.to_le_bytes().to_vec();
    value.resize(8 + (n as usize * 37) % 120, n as u8);
    value
}

fn number(value: &[u8]) -> u64 {
    let n = value
        .first_chunk::<8>()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes));
    assert_eq!(value, self::value(n), "a torn or foreign value");
    n
}

impl History {
    /// Begins an operation of a client, which calls itself `client` in the history.
    fn begin(
        &mut self,
        world: &mut World<SeededNetwork>,
        (index, client): (usize, usize),
        draw: &mut Rng,
    ) {
        let (n, of, now) = (self.next + 1, draw.below(KEYS), world.now);
        let machine = &mut world.clients[index].end.client;
        let (begun, action) = match draw.below(10) {
            0..=4 => (machine.get(&key(of), n), Action::Get { value: None }),
            5..=8 => {
                let begun = machine.put(&key(of), &value(n), n, now);
                (
                    begun,
                    Action::Put {
                        value: n,
                        done: None,
                    },
                )
            }
            _ => (
                machine.delete(&key(of), n, now),
                Action::Delete { done: None },
            ),
        };
        if begun.is_ok() {
            self.next = n;
            let called = now.as_nanos() as u64;
            let operation = Operation {
                client,
                called,
                answered: None,
                action,
            };
            self.open.insert((index, n), (of, operation));
        }
    }

    /// Notes an answer.
    fn answer(&mut self, world: &World<SeededNetwork>, (index, n, kept): (usize, u64, Kept)) {
        let (of, mut operation) = self.open.remove(&(index, n)).expect("asked once");
        operation.answered = Some(world.now.as_nanos() as u64);
        let done = kept == Kept::Done;
        operation.action = match (operation.action, &kept) {
            (_, Kept::Failed(_)) => return self.unknown(of, operation),
            (Action::Get { .. }, Kept::Value(value)) => Action::Get {
                value: Some(number(value)),
            },
            (Action::Get { .. }, Kept::Missing) => Action::Get { value: None },
            (Action::Put { value, .. }, Kept::Done | Kept::Full) => Action::Put {
                value,
                done: Some(done),
            },
            (Action::Delete { .. }, Kept::Done | Kept::Missing) => {
                Action::Delete { done: Some(done) }
            }
            // It has no effect.
            (_, Kept::Full | Kept::Contended) => return,
            (action, kept) => panic!("{action:?}: {kept:?}"),
        };
        self.ended.entry(of).or_default().push(operation);
    }

    fn unknown(&mut self, of: u64, operation: Operation) {
        if !matches!(operation.action, Action::Get { .. }) {
            let operation = Operation {
                answered: None,
                ..operation
            };
            self.ended.entry(of).or_default().push(operation);
        }
    }

    /// A client is gone: what it had in flight is unknown, and the clients behind it move up.
    fn lose(&mut self, index: usize) {
        for ((client, n), (of, operation)) in std::mem::take(&mut self.open) {
            if client == index {
                self.unknown(of, operation);
            } else {
                let client = client - usize::from(client > index);
                self.open.insert((client, n), (of, operation));
            }
        }
    }

    fn check(&mut self, what: &str) {
        for (of, history) in &self.ended {
            if let Err(violation) = check(Register::KEEPS, history) {
                panic!("{what}, key {of}: {violation}");
            }
        }
    }
}

/// One pass, in which each client begins an operation if fewer than `most` of its own are in flight. What
/// is in flight when a party dies has an unknown outcome, and each doubles what the check has to try.
fn step(world: &mut World<SeededNetwork>, history: &mut History, draw: &mut Rng, most: usize) {
    for index in 0..world.clients.len() {
        let open = history
            .open
            .keys()
            .filter(|(client, _)| *client == index)
            .count();
        if open < most {
            history.begin(world, (index, index), draw);
        }
    }
    for answer in world.pass() {
        history.answer(world, answer);
    }
}

/// Runs until so many operations have begun and all are answered.
fn run(world: &mut World<SeededNetwork>, history: &mut History, draw: &mut Rng, operations: u64) {
    let end = history.next + operations;
    for _ in 0..200_000 {
        let most = if history.next < end { 3 } else { 0 };
        step(world, history, draw, most);
        if history.next >= end && history.open.is_empty() {
            return;
        }
    }
    panic!("{} operations are not answered", history.open.len());
}

/// All clients are gone with their server or a data node; another server takes over.
fn begin_anew(world: &mut World<SeededNetwork>, history: &mut History) {
    for index in (0..world.clients.len()).rev() {
        history.lose(index);
    }
    world.restart();
    for _ in 0..3 {
        world.join();
    }
}

fn world(seed: u64, nodes: usize) -> World<SeededNetwork> {
    let world = World::new(SeededNetwork::new(seed), (nodes, 3), geometry(8, 60, 4));
    world.fabric.set_faults(Faults::storm());
    world
}

/// So few entries that each is used again and again, and so few versions that they wrap all the time, so
/// that cursors come to name other uses of their memory.
#[test]
fn histories_in_which_versions_wrap_are_linearizable() {
    for seed in 0..count("HERDWICK_CLOVER_HISTORIES", length(3, 6)) {
        let geometry = geometry(8, 12, 2);
        let mut world = World::new(
            SeededNetwork::new(seed),
            (1 + seed as usize % 2, 3),
            geometry,
        );
        world.fabric.set_faults(Faults::storm());
        let (mut history, mut draw) = (History::default(), Rng::new(seed));
        for _ in 0..60 {
            // One of them stands still for a while, with what it has begun.
            world.paused = Some(draw.below(3) as usize);
            for _ in 0..draw.below(200) {
                step(&mut world, &mut history, &mut draw, 3);
            }
            world.paused = None;
            run(&mut world, &mut history, &mut draw, 3);
        }
        history.check(&format!("seed {seed}"));
        let counters = world.server.server().counters();
        assert!(counters.wraps > 40 && counters.corrupt == 0, "{counters:?}");
    }
}

#[test]
fn histories_without_deaths_are_linearizable() {
    for seed in 0..count("HERDWICK_CLOVER_HISTORIES", length(3, 6)) {
        let (mut world, mut history, mut draw) = (
            world(seed, 1 + seed as usize % 3),
            History::default(),
            Rng::new(seed),
        );
        run(&mut world, &mut history, &mut draw, 300);
        history.check(&format!("seed {seed}"));
        let counters = world.server.server().counters();
        assert!(
            counters.recycled > 0 && counters.corrupt == 0,
            "{counters:?}"
        );
    }
}

/// A client that is killed at any step of its PUTs blocks no other, and the entries that it held are used
/// again.
#[test]
fn clients_killed_at_any_step_block_nobody() {
    for steps in (0..count("HERDWICK_CLOVER_KILLS", 240)).step_by(length(6, 3)) {
        for nodes in [1, 2] {
            let (mut world, mut history, mut draw) =
                (world(steps, nodes), History::default(), Rng::new(steps));
            run(&mut world, &mut history, &mut draw, 30);
            let victim = world.clients[2].end.port.party();
            world.fabric.stop_after(victim, steps);
            // Others go on beside it.
            let others = history.next + 40;
            while history.next < others {
                step(&mut world, &mut history, &mut draw, 3);
            }
            // The caller watches sessions, and notices its end.
            world.remove(2);
            history.lose(2);
            run(&mut world, &mut history, &mut draw, 60);
            history.check(&format!("killed after {steps} steps, {nodes} nodes"));
            while world.server.server().is_reclaiming() {
                world.pass();
            }
            world.join();
            assert!(world.server.server().counters().corrupt == 0);
            run(&mut world, &mut history, &mut draw, 20);
        }
    }
}

/// A metadata server that is killed at any step of its work finds every key again.
#[test]
fn servers_killed_at_any_step_find_their_world_again() {
    for steps in (0..count("HERDWICK_CLOVER_KILLS", 240)).step_by(length(6, 3)) {
        for nodes in [1, 2] {
            let (mut world, mut history, mut draw) =
                (world(steps, nodes), History::default(), Rng::new(steps));
            run(&mut world, &mut history, &mut draw, 20);
            for round in 0..2 {
                for party in [world.server.port.party(), world.server.node_port.party()] {
                    world.fabric.stop_after(party, steps * (round + 1));
                }
                for _ in 0..40 {
                    step(&mut world, &mut history, &mut draw, 1);
                }
                begin_anew(&mut world, &mut history);
                run(&mut world, &mut history, &mut draw, 30);
            }
            history.check(&format!("killed after {steps} steps, {nodes} nodes"));
            assert!(world.server.server().counters().corrupt == 0);
        }
    }
}

/// With two data nodes either one may be lost, in the middle of anything.
#[test]
fn a_lost_data_node_is_not_missed() {
    for steps in (0..count("HERDWICK_CLOVER_KILLS", 240)).step_by(length(6, 3)) {
        let (mut world, mut history, mut draw) =
            (world(steps, 3), History::default(), Rng::new(steps));
        run(&mut world, &mut history, &mut draw, 30);
        for lost in [0, 1] {
            let party = world.nodes[lost].port.party();
            world.fabric.stop_after(party, steps);
            for _ in 0..60 {
                step(&mut world, &mut history, &mut draw, 1);
            }
            world.nodes.remove(lost);
            begin_anew(&mut world, &mut history);
            run(&mut world, &mut history, &mut draw, 40);
        }
        history.check(&format!("lost after {steps} steps"));
        assert!(world.server.server().counters().corrupt == 0);
    }
}
