//! Random schedules of random operations over a random network, with clients that join and leave:
//! every answer is one that a plain map could give, requests for one key are answered in order,
//! every request has one outcome, every slot is freed.
//!
//! Clients join, leave with full windows, die in the middle of a request, and are revoked without
//! their consent, at any time, on every request path. Places, ids and memory of former clients are
//! reused by later ones, each lease under an epoch of its own. What was under way when a client
//! left is unknown to its successor until a read shows it.
//!
//! A failing run prints its seed last; `run(seed, Planted::Nothing)` replays it.
//!
//! The bugs that these schedules find show what they are worth. Planted in the fixture, and run
//! below: memory that is reused under the old epoch ([`Planted::OldEpoch`]). Planted by hand in the
//! machines, each found within the seeds below:
//!
//! - server, leaving: `Ring::retain` (`server/client_table.rs`) does not bring the turn back below the
//!   number of clients, so that the next pass reads behind the end
//! - server, reuse of ids: `ClientTable::remove` does not compare the generation, so that an old id
//!   detaches the client that has its place now
//! - client, leaving: `Channel::close` (`client/channel.rs`) forgets what is held back
//! - client, revocation: `Channel::cancel` (`client/timers.rs`) frees the slot of a request that timed
//!   out before its cancellation is answered
//! - client, order: `Channel::conflicts` (`client/order.rs`) finds no conflict

use std::time::Duration;

use herdwick_check::Rng;
use herdwick_conformance::seeded::{Faults, PartyId};
use herdwick_fabric::Capabilities;
use herdwick_herd::{Announce, ClientId, Refused, RequestPath, wire::ReplyStatus};
use herdwick_request::{EXPTIME_PAST, Mode};

use crate::{
    fixture::{Client, Fixture, capabilities, request},
    known::{Doing, Key},
    model::Model,
};

/// Keys of each client.
const KEYS: usize = 60;
/// Keys in use in some schedules, in which requests often wait for each other.
const KEYS_FEW: usize = 6;
const OPERATIONS: usize = 600;
/// Places, each for one client after another.
const CLIENTS_MAX: usize = 5;

/// A bug in the fixture, which a schedule has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// A lease's memory is reused under its old epoch.
    OldEpoch,
}

/// State of the client in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientState {
    Serves,
    /// The workers have ended its leases; the client learns it after this many steps.
    Revoked(usize),
    /// The client has left; the workers learn it after this many steps.
    Gone(usize),
    /// Empty for this many steps.
    Empty(usize),
}

/// Random numbers, and the faults and requests that they choose.
pub(crate) struct Chance(pub(crate) Rng);

impl Chance {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0.index(bound)
    }

    /// Generates the faults of a network. Late and torn delivery do not occur together: a line that
    /// arrives late, and then word by word, over the next request in its slot, is beyond what a
    /// slot survives.
    pub(crate) fn faults(&mut self, path: RequestPath) -> Faults {
        let micros =
            |most: usize, chance: &mut Self| Duration::from_micros(chance.below(most + 1) as u64);
        let delay_max = micros(5, self);
        // A reliable connection that loses too many packets fails.
        let drops = match path {
            RequestPath::RcWrite => [0, 0, 5, 20, 50],
            RequestPath::UcWrite | RequestPath::UdSend => [0, 0, 20, 100, 300],
        };
        let mut faults = Faults {
            drop_per_mille: drops[self.below(5)],
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

    fn doing(&mut self, key: &Key) -> Doing {
        let past = [100, EXPTIME_PAST][self.below(2)];
        if key.is_counter {
            return match self.below(8) {
                0 => Doing::Get,
                1 => Doing::Touch(past),
                2 => Doing::Delete(None),
                _ => Doing::Incr(1 + self.below(9) as u64),
            };
        }
        let stored = key.guess();
        let version = stored.and_then(|item| item.version).unwrap_or(9);
        let compare = match self.below(6) {
            0 => Some(version),
            1 => Some(version ^ 1),
            _ => None,
        };
        let mode = match self.below(9) {
            0..=2 => return Doing::Get,
            3 => return Doing::Delete(compare),
            4 => return Doing::Touch(past),
            5 => Mode::Add,
            6 => Mode::Replace,
            7 if stored.is_none_or(|item| item.value.len() < 400) => Mode::Append,
            _ => Mode::Set,
        };
        let len = [0, 5, 24, 32, 33, 60, 200, 500][self.below(8)];
        let value = (0..len).map(|_| self.0.bits() as u8).collect();
        Doing::Put(mode, value, self.below(3) as u32, compare)
    }
}

/// A running schedule.
struct Schedule {
    chance: Chance,
    planted: Planted,
    fixture: Fixture<Model>,
    states: Vec<ClientState>,
    /// The keys of each place.
    keys: Vec<Vec<Key>>,
    /// Ids of ended leases, each with its worker.
    old: Vec<(usize, ClientId)>,
    epoch: u16,
    tokens: u64,
    left: usize,
    /// Whether clients submit as many requests as they may, for many keys.
    greedy: bool,
    /// A client and a worker that the network separates, and for how many steps.
    cut: Option<(PartyId, PartyId, usize)>,
}

impl Schedule {
    fn new(seed: u64, planted: Planted) -> Self {
        let mut chance = Chance(Rng::new(seed));
        let greedy = chance.below(3) == 0;
        let (workers, window) = if greedy {
            (1, 16 << chance.below(2))
        } else {
            (1 + chance.below(3), 1 << chance.below(6))
        };
        let path = RequestPath::ALL[seed as usize % 3];
        let has = Capabilities {
            gso: chance.below(2) == 0,
            // On each path, without a draw: other seeds would find what the doc above says.
            reports_writes: seed / 3 % 2 == 1,
            ..capabilities()
        };
        let execs = vec![Model::default(); workers];
        let mut fixture = Fixture::on(has, path, (seed, window), execs);
        fixture.faults(chance.faults(path));
        fixture.deadline = Duration::from_micros([200, 1000, 5000][chance.below(3)]);
        let states = if greedy {
            CLIENTS_MAX
        } else {
            1 + chance.below(CLIENTS_MAX)
        };
        let mut schedule = Self {
            chance,
            planted,
            fixture,
            states: vec![ClientState::Serves; states],
            keys: (0..states).map(keys_of).collect(),
            old: Vec::new(),
            epoch: 0,
            tokens: 0,
            left: if greedy { 4 * OPERATIONS } else { OPERATIONS },
            greedy,
            cut: None,
        };
        for worker in &mut schedule.fixture.workers {
            worker.pools = true;
        }
        for _ in 0..states {
            let epoch = schedule.next_epoch();
            schedule.fixture.join(epoch);
        }
        schedule
    }

    fn next_epoch(&mut self) -> u16 {
        self.epoch += u16::from(self.planted != Planted::OldEpoch || self.epoch == 0);
        self.fixture.announce = match (self.fixture.path, self.chance.below(3)) {
            (RequestPath::UdSend, _) | (_, 0) => Announce::Never,
            (_, 1) => Announce::AfterPause,
            _ => Announce::Always,
        };
        self.epoch
    }

    fn is_over(&self) -> bool {
        let mut keys = self.keys.iter().flatten();
        self.left == 0 && keys.all(|key| key.outstanding() == 0)
    }

    fn step(&mut self) {
        for number in 0..self.states.len() {
            self.change(number);
            if matches!(
                self.states[number],
                ClientState::Serves | ClientState::Revoked(_)
            ) {
                let most = if self.greedy {
                    usize::MAX
                } else {
                    self.chance.below(6)
                };
                self.submit(number, most);
            }
        }
        self.part_and_heal();
        // Workers and clients do not poll in lockstep.
        for _ in 0..self.chance.below(3) {
            self.fixture.advance();
            self.fixture.serve();
        }
        let keys = &mut self.keys;
        self.fixture
            .step(&mut |number, token, outcome| end(&mut keys[number], token, &outcome));
    }

    /// Separates a client and a worker for a while.
    fn part_and_heal(&mut self) {
        let network = &self.fixture.network;
        self.cut = match self.cut {
            Some((client, worker, 0)) => {
                network.heal(client, worker);
                None
            }
            Some((client, worker, steps)) => Some((client, worker, steps - 1)),
            None if self.chance.below(400) == 0 => {
                let client = &self.fixture.clients[self.chance.below(self.states.len())];
                let worker = &self.fixture.workers[self.chance.below(self.fixture.workers.len())];
                let (client, worker) = (client.party(), worker.port.party());
                network.partition(client, worker);
                Some((client, worker, self.chance.below(1000)))
            }
            None => None,
        };
    }

    /// Changes the state of the client in a place, at random.
    fn change(&mut self, number: usize) {
        self.states[number] = match self.states[number] {
            ClientState::Serves if self.fixture.clients[number].side.is_broken() => {
                self.leave(number)
            }
            // A client that leaves may take others along in the same step.
            ClientState::Serves if self.states[..number].contains(&ClientState::Gone(0)) => {
                self.leave(number)
            }
            ClientState::Serves => match self.chance.below(600) {
                0 => self.leave(number),
                1 => self.die(number),
                2 => {
                    self.revoke(number);
                    ClientState::Revoked(self.chance.below(500))
                }
                _ => ClientState::Serves,
            },
            ClientState::Revoked(0) => {
                self.close(number);
                ClientState::Empty(self.chance.below(100))
            }
            ClientState::Gone(0) => {
                self.revoke(number);
                ClientState::Empty(self.chance.below(100))
            }
            ClientState::Empty(0) => {
                let epoch = self.next_epoch();
                self.fixture.rejoin(number, epoch);
                ClientState::Serves
            }
            ClientState::Revoked(steps) => ClientState::Revoked(steps - 1),
            ClientState::Gone(steps) => ClientState::Gone(steps - 1),
            ClientState::Empty(steps) => ClientState::Empty(steps - 1),
        };
    }

    /// Lets the client leave with as many requests under way as possible.
    fn leave(&mut self, number: usize) -> ClientState {
        self.submit(number, usize::MAX);
        let Client { side, port, .. } = &mut self.fixture.clients[number];
        side.flush(port, self.fixture.now);
        (0..self.chance.below(3)).for_each(|_| self.fixture.advance());
        self.close(number);
        ClientState::Gone([0, self.chance.below(200)][self.chance.below(2)])
    }

    /// Kills the client: half a line may be visible, and remains so.
    fn die(&mut self, number: usize) -> ClientState {
        self.submit(number, usize::MAX);
        let Client { side, port, .. } = &mut self.fixture.clients[number];
        side.flush(port, self.fixture.now);
        let party = self.fixture.clients[number].party();
        self.fixture
            .network
            .stop_after(party, self.chance.below(30) as u64);
        (0..self.chance.below(10)).for_each(|_| self.fixture.advance());
        self.fixture.network.stop(party);
        self.close(number);
        ClientState::Gone(self.chance.below(200))
    }

    /// Ends the client's requests on its side only: a dead client learns nothing.
    fn close(&mut self, number: usize) {
        let Client { side, port, .. } = &mut self.fixture.clients[number];
        let keys = &mut self.keys[number];
        side.close(port, self.fixture.now, &mut |token, outcome| {
            end(keys, token, &outcome)
        });
        assert!(keys.iter().all(|key| key.outstanding() == 0), "forgotten");
    }

    /// Ends the client's leases at the workers. They reject the id of every earlier lease.
    fn revoke(&mut self, number: usize) {
        let ids = self.fixture.clients[number]
            .leases
            .iter()
            .map(|lease| lease.id);
        let ids: Vec<_> = (0..).zip(ids).collect();
        for (worker, id) in &self.old {
            assert!(self.fixture.workers[*worker].side.detach(*id).is_none());
        }
        self.fixture.revoke(number);
        self.old.extend(ids);
    }

    /// Submits at most `most` requests for keys of the place.
    fn submit(&mut self, number: usize, most: usize) {
        for _ in 0..most.min(self.left) {
            let place = self.chance.below(if self.greedy { KEYS } else { KEYS_FEW });
            let key = &mut self.keys[number][place];
            let doing = self.chance.doing(key);
            let token = self.tokens * KEYS as u64 + place as u64;
            let side = &mut self.fixture.clients[number].side;
            match side.submit(&request(&key.name, doing.op()), token) {
                Ok(()) => {
                    key.submitted(token, doing);
                    self.tokens += 1;
                    self.left -= 1;
                }
                Err(Refused::Full) => {
                    // A client with every slot taken must reach its end all the same.
                    self.left -= usize::from(self.chance.below(64) == 0);
                    return;
                }
                Err(refused) => panic!("{refused}"),
            }
        }
    }

    /// Checks, after the faults have ended, that every slot of every served client is freed, that
    /// no RECV was short, and that the store contains a possible state.
    fn settle(mut self) {
        self.fixture.faults(Faults::default());
        if let Some((client, worker, _)) = self.cut.take() {
            self.fixture.network.heal(client, worker);
        }
        for number in 0..self.states.len() {
            let broken = self.fixture.clients[number].side.is_broken();
            if self.states[number] == ClientState::Serves && broken {
                self.states[number] = self.leave(number);
            }
        }
        let serves = |state: &ClientState| *state == ClientState::Serves;
        for _ in 0..20_000 {
            self.fixture
                .step(&mut |_, _, outcome| panic!("an outcome for nothing: {outcome:?}"));
            let mut clients = self.fixture.clients.iter().zip(&self.states);
            if clients.all(|(client, state)| !serves(state) || client.side.in_flight() == 0) {
                break;
            }
        }
        for (client, state) in self.fixture.clients.iter().zip(&self.states) {
            let counters = client.side.counters();
            assert_eq!(counters.malformed_replies, 0);
            assert_eq!(counters.stale_epoch, 0);
            if serves(state) {
                assert_eq!(client.side.in_flight(), 0, "{counters:?}");
                assert_eq!(counters.recvs_short + counters.slots_lost, 0);
            }
        }
        for key in self.keys.iter().flatten() {
            let mut workers = self.fixture.workers.iter();
            let stored = workers.find_map(|worker| worker.exec.items.get(&key.name));
            let name = String::from_utf8_lossy(&key.name);
            assert!(key.may_be(stored), "{name}: {stored:?} of {key:?}");
        }
        let served = self
            .states
            .iter()
            .filter(|state| matches!(state, ClientState::Serves | ClientState::Gone(_)));
        let served = served.count();
        for worker in &self.fixture.workers {
            assert_eq!(worker.side.clients(), served);
        }
    }
}

fn keys_of(state: usize) -> Vec<Key> {
    let keys = (0..KEYS).map(|key| {
        let padding = "-".repeat([0, 3, 40, 200][key % 4]);
        let name = format!("state {state} key {key} {padding}").into_bytes();
        Key::new(name, key % 3 == 1)
    });
    keys.collect()
}

fn end(keys: &mut [Key], token: u64, outcome: &herdwick_herd::Outcome<'_>) {
    if let herdwick_herd::Outcome::Answered(answer) = outcome {
        let refused = [
            ReplyStatus::BadKey,
            ReplyStatus::WrongPartition,
            ReplyStatus::BadRequest,
        ];
        assert!(!refused.contains(&answer.status), "{outcome:?}");
    }
    keys[(token % KEYS as u64) as usize].end(token, outcome);
}

/// Runs the schedule of `seed` and returns the network's trace.
fn run(seed: u64, planted: Planted) -> u64 {
    eprintln!("seed {seed}");
    let mut schedule = Schedule::new(seed, planted);
    while !schedule.is_over() {
        schedule.step();
    }
    let trace = schedule.fixture.network.trace();
    schedule.settle();
    trace
}

#[test]
fn every_schedule_matches_a_map() {
    for seed in 0..herdwick_check::length(60, 300) {
        run(seed, Planted::Nothing);
    }
}

#[test]
fn same_seed_gives_the_same_schedule() {
    for seed in [3, 14, 159] {
        assert_eq!(run(seed, Planted::Nothing), run(seed, Planted::Nothing));
    }
}

#[test]
fn schedules_detect_memory_reused_under_the_same_epoch() {
    let found = (0..60).find(|seed| {
        let played = std::panic::catch_unwind(|| run(*seed, Planted::OldEpoch));
        played.is_err()
    });
    assert!(found.is_some());
}
