//! The reader over the seeded fabric: chains of cells that a writer changes meanwhile, hostile
//! pointers, limits, and links that fail.

use std::{collections::BTreeMap, time::Duration};

use herdwick_conformance::seeded::{Faults, SeededDevice, SeededNetwork, SeededPort};
use herdwick_fabric::{
    Access, Capabilities, CqSpec, Device, Port, PortLimits, QpSpec, RegionId, RegionSpec, Remote,
    Scope, Status, Transport,
};
use herdwick_mem::Span;
use herdwick_read::{
    Begin, Doubt, Fetch, Fetched, Judge, Outcome, Reader, ReaderError, ReaderOptions, Step, Verdict,
};

/// A cell: the sum of the other words, the next cell (0: none), and six words of value.
const CELL: usize = 64;
const CELLS: usize = 64;
/// A pointer to nowhere, and one that asks for more than fits.
const NOWHERE: u64 = 1 << 40;
const ENDLESS: u64 = 1 << 41;

/// What a lookup looks for: the cell, and how many were followed.
#[derive(Debug, PartialEq, Eq)]
struct Chain {
    first: u64,
    hops: u32,
}

/// Follows cells to the last one. An option skips the check of their sums.
struct Cells {
    table: Remote,
    checks: bool,
}

impl Cells {
    fn step(&self, cell: u64) -> Step {
        let len = if cell == ENDLESS { 1 << 20 } else { CELL };
        let from = self.table.offset((cell % ENDLESS) * CELL as u64);
        Step::one(Fetch { from, len })
    }
}

impl Judge for Cells {
    type Lookup = Chain;

    fn judge(&mut self, chain: &mut Chain, read: &Fetched<'_>) -> Verdict {
        let words: Vec<u64> = read
            .part(0)
            .chunks(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        if self.checks && words[0] != sum(&words[1..]) {
            return Verdict::Torn;
        }
        chain.hops += 1;
        match words[1] {
            0 if words[2] == 0 => Verdict::Missing,
            0 => Verdict::Found(read.within(0, 16..CELL)),
            next => Verdict::Follow(self.step(next)),
        }
    }
}

fn sum(words: &[u64]) -> u64 {
    words.iter().fold(7, |sum, word| {
        (sum ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23)
    })
}

/// A server's memory of cells, and a reader of it.
struct World {
    network: SeededNetwork,
    here: SeededDevice,
    port: SeededPort,
    peer: SeededPort,
    region: RegionId,
    span: Span,
    judge: Cells,
    reader: Reader<Chain>,
    now: Duration,
    ended: Vec<(Chain, Result<Vec<u64>, End>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Missing,
    Unsure(Doubt),
    Failed(Status),
}

fn options() -> ReaderOptions {
    ReaderOptions {
        lookups: 16,
        outstanding: 8,
        step_bytes: 256,
        steps: 40,
        retries: 200,
        ..ReaderOptions::default()
    }
}

impl World {
    fn new(seed: u64, capabilities: Capabilities, options: &ReaderOptions) -> Self {
        let network = SeededNetwork::with_capabilities(seed, capabilities);
        let (here, there) = (network.device(), network.device());
        let mut port = here.open_port(&PortLimits::default()).unwrap();
        let pd = here.create_pd(&mut port).unwrap();
        let reader = Reader::create(&here, &mut port, pd, options).unwrap();
        let mut peer = there.open_port(&PortLimits::default()).unwrap();
        let peer_pd = there.create_pd(&mut peer).unwrap();
        let cq = there.create_cq(&mut peer, &CqSpec { depth: 4 }).unwrap();
        let spec = QpSpec {
            pd: peer_pd,
            transport: Transport::Rc,
            send_cq: cq,
            recv_cq: cq,
            send_depth: 2,
            recv_depth: 0,
        };
        let qp = there.create_qp(&mut peer, &spec).unwrap();
        let spec = RegionSpec {
            len: CELLS * CELL,
            access: Access::READ,
            scope: Scope::Pd,
        };
        let region = there.allocate_region(&mut peer, peer_pd, &spec).unwrap();
        let end = there.endpoint(&peer, qp).unwrap();
        here.connect(&mut port, reader.qp(), &end).unwrap();
        let end = here.endpoint(&port, reader.qp()).unwrap();
        there.connect(&mut peer, qp, &end).unwrap();
        let judge = Cells {
            table: there.remote(&peer, region).unwrap(),
            checks: true,
        };
        let span = peer.region(region).unwrap().clone();
        Self {
            network,
            here,
            port,
            peer,
            region,
            span,
            judge,
            reader,
            now: Duration::ZERO,
            ended: Vec::new(),
        }
    }

    fn calm() -> Self {
        Self::new(1, SeededNetwork::capabilities(), &options())
    }

    /// Stores a cell whose six words of value are `value`.
    fn store(&self, cell: u64, next: u64, value: u64) {
        let mut words = [value; 8];
        words[1] = next;
        words[0] = sum(&words[1..]);
        self.span.write_words(cell as usize * CELL / 8, &words);
    }

    fn begin(&mut self, first: u64) -> Result<(), Begin<Chain>> {
        let chain = Chain { first, hops: 0 };
        self.reader.begin(chain, self.judge.step(first))
    }

    /// One pass of a client's loop.
    fn pass(&mut self) {
        self.reader.post(&mut self.port);
        self.now += Duration::from_micros(1);
        self.port.progress(self.now);
        let ended = &mut self.ended;
        self.reader
            .poll(&mut self.port, &mut self.judge, &mut |chain, outcome| {
                let words = |bytes: &[u8]| {
                    bytes
                        .chunks(8)
                        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
                        .collect()
                };
                ended.push((
                    chain,
                    match outcome {
                        Outcome::Found(value) => Ok(words(value)),
                        Outcome::Missing => Err(End::Missing),
                        Outcome::Unsure(doubt) => Err(End::Unsure(doubt)),
                        Outcome::Failed(status) => Err(End::Failed(status)),
                    },
                ));
            });
    }

    fn finish(&mut self) -> Vec<(Chain, Result<Vec<u64>, End>)> {
        for _ in 0..1_000_000 {
            if self.reader.in_flight() == 0 {
                return std::mem::take(&mut self.ended);
            }
            self.pass();
        }
        panic!("{} lookups never end", self.reader.in_flight());
    }

    fn end_of(&mut self, first: u64) -> Result<Vec<u64>, End> {
        self.begin(first).unwrap();
        let [(chain, end)] = self.finish().try_into().unwrap();
        assert_eq!(chain.first, first);
        end
    }
}

fn storm() -> Faults {
    Faults {
        drop_per_mille: 50,
        duplicate_per_mille: 50,
        reorder_per_mille: 100,
        reorder_window: Duration::from_micros(5),
        delay_min: Duration::from_nanos(200),
        delay_max: Duration::from_micros(3),
        tear_reads: Duration::from_nanos(900),
        ..Faults::default()
    }
}

/// Runs lookups of chains of 1 to 4 cells while every cell changes. Returns how many answers were not
/// one value that the last cell of the chain had during the lookup, and the number of torn steps.
fn beside_a_writer(seed: u64, capabilities: Capabilities, checks: bool) -> (usize, u64) {
    let mut world = World::new(seed, capabilities, &options());
    world.judge.checks = checks;
    world.network.set_faults(storm());
    // Chain c: cells 4c to 4c + c % 4.
    let last = |c: u64| 4 * c + c % 4;
    let store = |world: &World, version: u64| {
        for c in 0..16 {
            for cell in 4 * c..last(c) {
                world.store(cell.max(1), cell.max(1) + 1, version);
            }
            world.store(last(c).max(1), 0, version);
        }
    };
    let (mut version, mut begun, mut wrong, mut ended) = (1, BTreeMap::new(), 0, 0);
    store(&world, version);
    for pass in 0_u64.. {
        if ended >= 600 {
            break;
        }
        let first = (4 * (pass % 16)).max(1);
        if !begun.contains_key(&first) && world.begin(first).is_ok() {
            begun.insert(first, version);
        }
        world.pass();
        for (chain, end) in world.ended.drain(..) {
            ended += 1;
            let since = begun.remove(&chain.first).unwrap();
            let value = end.unwrap();
            let one = value == [value[0]; 6];
            let then = (since..=version).contains(&value[0]);
            wrong += usize::from(!one || !then);
            if checks {
                assert_eq!(chain.hops, (chain.first / 4) as u32 % 4 + 1);
            }
        }
        // Seldom enough that a READ of about 4 us is whole now and then.
        if pass % 8 == 0 {
            version += 1;
            store(&world, version);
        }
    }
    (wrong, world.reader.counters().torn)
}

#[test]
fn answers_beside_a_writer_are_whole_and_current() {
    for ordered_read in [true, false] {
        for seed in 0..8 {
            let capabilities = Capabilities {
                ordered_read,
                ..SeededNetwork::capabilities()
            };
            let (wrong, torn) = beside_a_writer(seed, capabilities, true);
            assert_eq!(wrong, 0, "seed {seed}");
            assert!(torn > 0, "nothing was torn with seed {seed}");
        }
    }
}

#[test]
fn without_its_check_a_judge_takes_mixed_values() {
    let (wrong, _) = beside_a_writer(1, SeededNetwork::capabilities(), false);
    assert!(wrong > 0);
}

/// A peer that answers nothing is given up at the deadline, and one that answers slowly is not.
#[test]
fn a_peer_that_falls_silent_is_given_up_at_the_deadline() {
    let deadline = Duration::from_micros(50);
    let mut world = World::calm();
    world.store(1, 0, 7);
    // As long as steps complete, lookups may take longer than the deadline in all.
    for _ in 0..1000 {
        // The window may be full.
        let _ = world.begin(1);
        world.pass();
        assert!(!world.reader.has_fallen_silent(deadline, world.now));
    }
    world.finish();
    assert!(!world.reader.has_fallen_silent(deadline, world.now));
    // Idleness is no silence.
    let idle = world.now + 10 * deadline;
    assert!(!world.reader.has_fallen_silent(deadline, idle));

    world.begin(1).unwrap();
    world.reader.post(&mut world.port);
    let silent = |world: &mut World, after| world.reader.has_fallen_silent(deadline, idle + after);
    assert!(!silent(&mut world, Duration::ZERO));
    assert!(!silent(&mut world, deadline));
    assert!(silent(&mut world, deadline + Duration::from_nanos(1)));
    let mut ends = Vec::new();
    let World {
        reader,
        port,
        judge,
        ..
    } = &mut world;
    reader.poll(port, judge, &mut |_, outcome| {
        ends.push(outcome == Outcome::Failed(Status::RetryExceeded));
    });
    assert_eq!(ends, [true]);
}

#[test]
fn missing_and_found_are_told_apart_and_counted() {
    let mut world = World::calm();
    world.store(1, 0, 5);
    world.store(2, 0, 0);
    assert_eq!(world.end_of(1), Ok(vec![5; 6]));
    assert_eq!(world.end_of(2), Err(End::Missing));
    let counters = world.reader.counters();
    assert_eq!((counters.found, counters.missing), (1, 1));
    assert_eq!((counters.reads, counters.read_bytes), (2, 2 * CELL as u64));
}

#[test]
fn chains_without_end_torn_cells_and_long_reads_are_given_up() {
    let mut world = World::calm();
    world.store(1, 1, 5);
    assert_eq!(world.end_of(1), Err(End::Unsure(Doubt::Steps)));
    assert_eq!(world.reader.counters().reads, 40, "the option says so");
    // The sum is never right.
    world.span.write_words(2 * CELL / 8, &[9; 8]);
    assert_eq!(world.end_of(2), Err(End::Unsure(Doubt::Retries)));
    assert_eq!(world.reader.counters().reads, 40 + 201);
    world.store(3, ENDLESS, 5);
    assert_eq!(world.end_of(3), Err(End::Unsure(Doubt::Length)));
    assert!(matches!(world.begin(ENDLESS), Err(Begin::TooLong(_))));
    world.store(4, 0, 6);
    assert_eq!(world.end_of(4), Ok(vec![6; 6]), "the window is free again");
    let counters = world.reader.counters();
    let unsure = [
        counters.unsure_steps,
        counters.unsure_retries,
        counters.unsure_length,
    ];
    assert_eq!(unsure, [1, 1, 2]);
}

#[test]
fn a_pointer_out_of_the_region_ends_every_lookup_with_its_status() {
    let mut world = World::calm();
    world.store(1, NOWHERE, 5);
    world.store(2, 0, 5);
    for first in [1, 2, 2, 2] {
        world.begin(first).unwrap();
    }
    let ended = world.finish();
    assert_eq!(ended.len(), 4);
    assert_eq!(
        ended.last().unwrap().1,
        Err(End::Failed(Status::RemoteAccess))
    );
    assert_eq!(world.reader.failed(), Some(Status::RemoteAccess));
    let refused = world.begin(2);
    assert!(matches!(
        refused,
        Err(Begin::Failed(_, Status::RemoteAccess))
    ));
    let World {
        here,
        mut port,
        reader,
        ..
    } = world;
    reader.destroy(&here, &mut port).unwrap();
}

#[test]
fn a_region_that_is_freed_and_a_peer_that_dies_end_every_lookup() {
    for freed in [true, false] {
        let mut world = World::calm();
        world.store(2, 0, 5);
        (0..16).for_each(|_| world.begin(2).unwrap());
        let chain = Chain { first: 9, hops: 0 };
        let full = world.reader.begin(chain, world.judge.step(2));
        assert!(matches!(full, Err(Begin::Full(Chain { first: 9, .. }))));
        let status = if freed {
            let there = world.network.device();
            there.free_region(&mut world.peer, world.region).unwrap();
            Status::RemoteAccess
        } else {
            world.network.stop(world.peer.party());
            Status::RetryExceeded
        };
        let ended = world.finish();
        assert_eq!(ended.len(), 16);
        assert!(
            ended
                .iter()
                .all(|(_, end)| *end == Err(End::Failed(status))),
            "{ended:?}"
        );
    }
}

#[test]
fn options_out_of_range_and_fabrics_without_read_are_refused() {
    let network = SeededNetwork::with_capabilities(
        1,
        Capabilities {
            read: false,
            ..SeededNetwork::capabilities()
        },
    );
    let device = network.device();
    let mut port = device.open_port(&PortLimits::default()).unwrap();
    let pd = device.create_pd(&mut port).unwrap();
    let refused = Reader::<Chain>::create(&device, &mut port, pd, &options());
    assert!(matches!(refused, Err(ReaderError::NoRead("seeded"))));
    for wrong in [
        ReaderOptions {
            lookups: 0,
            ..options()
        },
        ReaderOptions {
            lookups: 1025,
            ..options()
        },
        ReaderOptions {
            outstanding: 129,
            ..options()
        },
        ReaderOptions {
            step_bytes: 0,
            ..options()
        },
    ] {
        let refused = Reader::<Chain>::create(&device, &mut port, pd, &wrong);
        assert!(matches!(refused, Err(ReaderError::Option { .. })));
    }
}
