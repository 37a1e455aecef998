//! Random schedules of random operations over a random network: every answer is the one that a
//! plain map would give, every request has one outcome, every slot comes back.
//!
//! A failing run prints its seed last; `run(seed)` replays it.

use std::time::Duration;

use herdwick_conformance::seeded::Faults;
use herdwick_herd::{Answer, Outcome, Refused, RequestPath, wire::ReplyStatus};
use herdwick_mica::{Delete, Get, Mode, Op, Put};

use crate::{
    model::Model,
    rig::{Rig, request},
};

/// Keys of each client; each has at most one request outstanding, so that their order is known.
const KEYS: usize = 24;
const OPERATIONS: usize = 400;

/// What one client knows of one of its keys.
struct Key {
    name: Vec<u8>,
    /// Value, flags and version, if it is there.
    stored: Option<(Vec<u8>, u32, u64)>,
    outstanding: Option<Doing>,
    /// An outcome was unknown: what is stored cannot be told any more.
    retired: bool,
}

#[derive(Clone, Debug)]
enum Doing {
    Get,
    Put(Mode, Vec<u8>, u32, Option<u64>),
    Delete(Option<u64>),
}

impl Doing {
    fn draw(chance: &mut Chance, stored: Option<&(Vec<u8>, u32, u64)>) -> Self {
        let version = stored.map_or(9, |stored| stored.2);
        let compare = match chance.below(6) {
            0 => Some(version),
            1 => Some(version ^ 1),
            _ => None,
        };
        let mode = match chance.below(8) {
            0..=2 => return Self::Get,
            3 => return Self::Delete(compare),
            4 => Mode::Add,
            5 => Mode::Replace,
            6 if stored.is_none_or(|stored| stored.0.len() < 400) => Mode::Append,
            _ => Mode::Set,
        };
        let len = [0, 5, 24, 32, 33, 60, 200, 500][chance.below(8)];
        let value = (0..len).map(|_| chance.next() as u8).collect();
        Self::Put(mode, value, chance.below(3) as u32, compare)
    }

    fn op(&self) -> Op<'_> {
        match self {
            Self::Get => Op::Get(Get::default()),
            Self::Put(mode, value, flags, compare) => Op::Put(Put {
                mode: *mode,
                value,
                flags: *flags,
                compare: *compare,
                ..Put::default()
            }),
            Self::Delete(compare) => Op::Delete(Delete {
                compare: *compare,
                ..Delete::default()
            }),
        }
    }

    fn compare(&self) -> Option<u64> {
        match self {
            Self::Get => None,
            Self::Put(_, _, _, compare) | Self::Delete(compare) => *compare,
        }
    }
}

impl Key {
    /// Checks an answer against what a map would say, and follows it.
    fn follow(&mut self, doing: &Doing, answer: &Answer<'_>) {
        let stored = self.stored.take();
        let version = stored.as_ref().map(|stored| stored.2);
        let expected = match (doing, &stored, doing.compare()) {
            (_, None, Some(_)) => ReplyStatus::NotFound,
            (_, Some(stored), Some(version)) if stored.2 != version => ReplyStatus::Exists,
            (Doing::Get | Doing::Delete(_), None, _) => ReplyStatus::NotFound,
            (Doing::Put(Mode::Add, ..), Some(_), _) => ReplyStatus::NotStored,
            (Doing::Put(Mode::Replace | Mode::Append, ..), None, _) => ReplyStatus::NotStored,
            _ => ReplyStatus::Done,
        };
        assert_eq!(answer.status, expected, "{doing:?} of {stored:?}");
        if expected != ReplyStatus::Done {
            self.stored = stored;
            return;
        }
        self.stored = match (doing, stored) {
            (Doing::Get, Some((value, flags, _))) => {
                assert_eq!((answer.value, answer.flags()), (&value[..], flags));
                assert_eq!(answer.number, version);
                Some((value, flags, version.unwrap()))
            }
            (Doing::Put(Mode::Append, more, ..), Some((value, flags, _))) => {
                Some(([&value[..], more].concat(), flags, answer.number.unwrap()))
            }
            (Doing::Put(_, value, flags, _), _) => {
                Some((value.clone(), *flags, answer.number.unwrap()))
            }
            _ => None,
        };
    }
}

/// Numbers from a seed (splitmix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A network. Late arrivals and torn ones do not come together: a line that arrives late, and
    /// then word by word, over the next request in its slot, is beyond what a slot survives.
    fn faults(&mut self) -> Faults {
        let micros =
            |most: usize, chance: &mut Self| Duration::from_micros(chance.below(most + 1) as u64);
        let delay_max = micros(5, self);
        let mut faults = Faults {
            drop_per_mille: [0, 0, 20, 100, 300][self.below(5)],
            delay_max,
            ..Faults::default()
        };
        if self.below(2) == 0 {
            faults.tear = micros(3, self);
        } else {
            faults.duplicate_per_mille = [0, 50, 200][self.below(3)];
            faults.reorder_per_mille = [0, 50, 200][self.below(3)];
            faults.reorder_window = micros(200, self);
        }
        faults
    }
}

/// Plays the schedule of `seed`; returns the network's trace.
fn run(seed: u64) -> u64 {
    eprintln!("seed {seed}");
    let mut chance = Chance(seed);
    let workers = 1 + chance.below(3);
    let window = 1 << chance.below(6);
    // A reliable connection that loses too much ends, and with it the schedule.
    let path = [RequestPath::UcWrite, RequestPath::UdSend][seed as usize % 2];
    let mut rig = Rig::over(path, seed, window, vec![Model::default(); workers]);
    let clients = 1 + chance.below(3);
    for client in 0..clients {
        rig.join(1 + client as u16);
    }
    rig.faults(chance.faults());
    let stops = chance.below(4) == 0;
    if stops {
        let party = rig.clients[0].party();
        rig.network.stop_after(party, chance.below(2000) as u64);
    }
    let mut keys: Vec<Vec<Key>> = (0..clients).map(keys_of).collect();
    let mut left = OPERATIONS;
    let mut unknown = 0;
    while left > 0 || keys.iter().flatten().any(|key| key.outstanding.is_some()) {
        for (client, keys) in keys.iter_mut().enumerate() {
            left -= submit_some(&mut rig, client, keys, &mut chance, left);
        }
        // Workers and clients do not poll in lockstep.
        for _ in 0..chance.below(3) {
            rig.advance();
            rig.serve();
        }
        rig.step(&mut |client, token, outcome| {
            let key = &mut keys[client][token as usize];
            let doing = key
                .outstanding
                .take()
                .expect("one outcome for each request");
            match outcome {
                Outcome::Answered(answer) if !key.retired => key.follow(&doing, &answer),
                Outcome::Answered(_) | Outcome::Timeout => {}
                Outcome::Unknown => {
                    key.retired = true;
                    unknown += 1;
                }
            }
        });
    }
    let trace = rig.network.trace();
    settle(&mut rig, usize::from(stops));
    if !stops {
        check_versions(&rig, unknown, &keys);
    }
    trace
}

fn keys_of(client: usize) -> Vec<Key> {
    let names = (0..KEYS).map(|key| {
        let padding = "-".repeat([0, 3, 40, 200][key % 4]);
        format!("client {client} key {key} {padding}").into_bytes()
    });
    let key = |name| Key {
        name,
        stored: None,
        outstanding: None,
        retired: false,
    };
    names.map(key).collect()
}

/// Submits on some idle keys; how many operations that were.
fn submit_some(
    rig: &mut Rig<Model>,
    client: usize,
    keys: &mut [Key],
    chance: &mut Chance,
    left: usize,
) -> usize {
    let mut submitted = 0;
    for _ in 0..chance.below(6).min(left) {
        let token = chance.below(KEYS);
        let key = &mut keys[token];
        if key.outstanding.is_some() {
            continue;
        }
        let doing = Doing::draw(chance, key.stored.as_ref());
        let request = request(&key.name, doing.op());
        match rig.clients[client].side.submit(&request, token as u64) {
            Ok(_) => {
                key.outstanding = Some(doing);
                submitted += 1;
            }
            // A stopped client's slots stay taken; its schedule must end all the same.
            Err(Refused::Full) => submitted += usize::from(chance.below(8) == 0),
            Err(refused) => panic!("{refused}"),
        }
    }
    submitted
}

/// With the faults over, every slot of every client that lives comes back, and nothing was short.
fn settle(rig: &mut Rig<Model>, stopped: usize) {
    rig.faults(Faults::default());
    for _ in 0..20_000 {
        rig.step(&mut |_, _, outcome| panic!("an outcome for nothing: {outcome:?}"));
        if rig.clients[stopped..]
            .iter()
            .all(|client| client.side.in_flight() == 0)
        {
            break;
        }
    }
    for client in &rig.clients[stopped..] {
        let counters = client.side.counters();
        assert_eq!(client.side.in_flight(), 0, "{counters:?}");
        assert_eq!(counters.recvs_short, 0);
        assert_eq!(counters.malformed_replies, 0);
        assert_eq!(counters.stale_epoch, 0);
        assert_eq!(counters.slots_lost, 0);
        assert_eq!(counters.failed_completions, 0);
    }
}

/// No mutation but those of unknown outcome is stored without having been acknowledged.
fn check_versions(rig: &Rig<Model>, unknown: u64, keys: &[Vec<Key>]) {
    for key in keys.iter().flatten().filter(|key| !key.retired) {
        let mut workers = rig.workers.iter();
        let found = workers.find_map(|worker| worker.exec.items.get(&key.name));
        let found = found.map(|stored| (stored.value.clone(), stored.flags, stored.version));
        assert_eq!(found, key.stored, "{}", String::from_utf8_lossy(&key.name));
    }
    let retired = keys.iter().flatten().filter(|key| key.retired).count() as u64;
    assert!(retired <= unknown);
}

#[test]
fn every_schedule_answers_as_a_map_would() {
    for seed in 0..400 {
        run(seed);
    }
}

#[test]
fn a_seed_replays_its_schedule() {
    for seed in [3, 14, 159] {
        assert_eq!(run(seed), run(seed));
    }
}
