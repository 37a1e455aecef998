//! Keys that many clients use at once, on a network that loses, repeats and reorders: the history
//! of each key is linearizable. Clients join, die with requests under way, and are revoked.
//!
//! What this finds and [`schedules`](crate::schedules), whose clients have keys of their own, need
//! not: a request that takes effect twice, or after the reply that it did not. Planted
//! below: an increment that the store executes again when its reply is lost.

use std::time::Duration;

use herdwick_check::{Action, Operation, Register, Rng, check};
use herdwick_conformance::seeded::Faults;
use herdwick_herd::{Answer, Outcome, Refused, RequestPath, wire::ReplyStatus};
use herdwick_request::{Arith, Clock, Delete, Execute, Get, Mode, Op, Put, Reply, Request, Sink};

use crate::{
    fixture::{Fixture, request},
    model::Model,
    schedules::Chance,
};

const CLIENTS: usize = 4;
const KEYS: [&[u8]; 3] = [
    b"a",
    b"b",
    b"another key of more bytes than a line has room for in its head",
];
const OPERATIONS: usize = 240;
const WINDOW: usize = 4;

/// The model, or a store with a planted bug.
struct Store {
    model: Model,
    /// One in so many increments is executed twice; 0 for none.
    twice_in: usize,
    chance: Chance,
}

impl Execute for Store {
    fn execute(&mut self, clock: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        let increments = batch.iter().filter(|one| matches!(one.op, Op::Arith(_)));
        for increment in increments {
            if self.twice_in > 0 && self.chance.below(self.twice_in) == 0 {
                self.model
                    .execute(clock, &[*increment], &mut |_, _: &Reply<'_>| ());
            }
        }
        self.model.execute(clock, batch, sink);
    }
}

/// A request under way.
struct Call {
    token: u64,
    key: usize,
    client: usize,
    called: u64,
    /// With an unknown outcome.
    action: Action,
}

struct Run {
    chance: Chance,
    fixture: Fixture<Store>,
    calls: Vec<Call>,
    histories: [Vec<Operation>; KEYS.len()],
    /// Clients by the place that they have, each with a number of its own.
    clients: [usize; CLIENTS],
    epoch: u16,
    tokens: u64,
}

impl Run {
    fn new(seed: u64, twice_in: usize) -> Self {
        let mut chance = Chance(Rng::new(seed));
        let path = RequestPath::ALL[seed as usize % 3];
        let store = Store {
            model: Model::default(),
            twice_in,
            chance: Chance(Rng::new(seed)),
        };
        let mut fixture = Fixture::over(path, seed, WINDOW, vec![store]);
        fixture.faults(chance.faults(path));
        fixture.deadline = Duration::from_micros([200, 1000][chance.below(2)]);
        for epoch in 1..=CLIENTS as u16 {
            fixture.join(epoch);
        }
        Self {
            chance,
            fixture,
            calls: Vec::new(),
            histories: Default::default(),
            clients: std::array::from_fn(|place| place),
            epoch: CLIENTS as u16,
            tokens: 0,
        }
    }

    fn now(&self) -> u64 {
        self.fixture.now.as_nanos() as u64
    }

    /// Draws an action, its outcome unknown. A read's outcome is a miss until it is answered.
    fn draw(&mut self) -> Action {
        // Far enough apart that increments do not make one value into another.
        let value = (self.tokens + 1) * 10_000;
        match self.chance.below(10) {
            0..=3 => Action::Get { value: None },
            4 | 5 => Action::Put { value, done: None },
            6 => Action::Add { value, done: None },
            7 => Action::Delete { done: None },
            _ => Action::Increment { by: 1, sum: None },
        }
    }

    fn submit(&mut self, place: usize) {
        let (key, action) = (self.chance.below(KEYS.len()), self.draw());
        let digits = match action {
            Action::Put { value, .. } | Action::Add { value, .. } => value.to_string(),
            _ => String::new(),
        };
        let value = digits.as_bytes();
        let put = |mode| {
            Op::Put(Put {
                mode,
                value,
                ..Put::default()
            })
        };
        let op = match action {
            Action::Get { .. } => Op::Get(Get::default()),
            Action::Put { .. } => put(Mode::Set),
            Action::Add { .. } => put(Mode::Add),
            Action::Delete { .. } => Op::Delete(Delete::default()),
            Action::Increment { by, .. } => Op::Arith(Arith {
                delta: by,
                ..Arith::default()
            }),
        };
        let (token, called) = (self.tokens, self.now());
        let side = &mut self.fixture.clients[place].side;
        match side.submit(&request(KEYS[key], op), token) {
            Ok(()) => {
                self.tokens += 1;
                let client = self.clients[place];
                self.calls.push(Call {
                    token,
                    key,
                    client,
                    called,
                    action,
                });
            }
            Err(Refused::Full) => {}
            Err(refused) => panic!("{refused}"),
        }
    }

    fn step(&mut self) {
        for place in 0..CLIENTS {
            if self.fixture.clients[place].side.is_broken() || self.chance.below(300) == 0 {
                self.replace(place);
            } else if self.chance.below(4) == 0 {
                self.submit(place);
            }
        }
        (0..self.chance.below(3)).for_each(|_| {
            self.fixture.advance();
            self.fixture.serve();
        });
        let mut ended = Vec::new();
        self.fixture
            .step(&mut |_, token, outcome| ended.push((token, Told::of(&outcome))));
        self.end(ended);
    }

    /// Kills a client with requests under way, ends its lease, and lets another take its place.
    fn replace(&mut self, place: usize) {
        let client = &mut self.fixture.clients[place];
        client.side.flush(&mut client.port, self.fixture.now);
        let party = client.party();
        let packets = self.chance.below(10) as u64;
        self.fixture.network.stop_after(party, packets);
        (0..self.chance.below(10)).for_each(|_| self.fixture.advance());
        self.fixture.network.stop(party);
        let client = &mut self.fixture.clients[place];
        let mut ended = Vec::new();
        let sink = &mut |token, outcome: Outcome<'_>| ended.push((token, Told::of(&outcome)));
        client.side.close(&mut client.port, self.fixture.now, sink);
        self.end(ended);
        self.fixture.revoke(place);
        self.epoch += 1;
        self.fixture.rejoin(place, self.epoch);
        self.clients[place] = usize::from(self.epoch);
    }

    fn end(&mut self, ended: Vec<(u64, Told)>) {
        let now = self.now();
        for (token, told) in ended {
            let index = self.calls.iter().position(|call| call.token == token);
            let call = self
                .calls
                .swap_remove(index.expect("one outcome for each request"));
            let answered = told.explains(call.action);
            // A request whose reply is that it changed nothing is no operation.
            let Some((action, answered)) = answered else {
                continue;
            };
            self.histories[call.key].push(Operation {
                client: call.client,
                called: call.called,
                answered: answered.then_some(now),
                action,
            });
        }
    }
}

/// The reply that a client got.
enum Told {
    Answer {
        status: ReplyStatus,
        number: Option<u64>,
        value: Vec<u8>,
    },
    Nothing,
    Unknown,
}

impl Told {
    fn of(outcome: &Outcome<'_>) -> Self {
        match outcome {
            Outcome::Answered(Answer {
                status,
                number,
                value,
                ..
            }) => Self::Answer {
                status: *status,
                number: *number,
                value: value.to_vec(),
            },
            Outcome::Timeout => Self::Nothing,
            Outcome::Unknown => Self::Unknown,
        }
    }

    /// Returns the action with its answer, and whether there was one; `None` if it had no effect.
    fn explains(self, action: Action) -> Option<(Action, bool)> {
        let (status, number, value) = match self {
            Self::Nothing => return None,
            Self::Unknown => return Some((action, false)),
            Self::Answer {
                status,
                number,
                value,
            } => (status, number, value),
        };
        let is_done = match status {
            ReplyStatus::Done => true,
            ReplyStatus::NotFound | ReplyStatus::NotStored => false,
            other => panic!("{other:?} for {action:?}"),
        };
        let done = Some(is_done);
        let digits = || std::str::from_utf8(&value).unwrap().parse().unwrap();
        let action = match action {
            Action::Get { .. } => Action::Get {
                value: is_done.then(digits),
            },
            Action::Put { value, .. } => Action::Put { value, done },
            Action::Add { value, .. } => Action::Add { value, done },
            Action::Delete { .. } => Action::Delete { done },
            Action::Increment { by, .. } => Action::Increment {
                by,
                sum: Some(number.filter(|_| is_done)),
            },
        };
        Some((action, true))
    }
}

/// Runs the history of `seed`; returns how many operations were answered, or the violation.
fn run(seed: u64, twice_in: usize) -> Result<usize, String> {
    let mut run = Run::new(seed, twice_in);
    while run.tokens < OPERATIONS as u64 {
        run.step();
    }
    run.fixture.faults(Faults::default());
    while !run.calls.is_empty() {
        let mut ended = Vec::new();
        run.fixture
            .step(&mut |_, token, outcome| ended.push((token, Told::of(&outcome))));
        run.end(ended);
    }
    for (key, history) in run.histories.iter().enumerate() {
        check(Register::KEEPS, history)
            .map_err(|violation| format!("seed {seed}, key {key}: {violation}"))?;
    }
    let operations = run.histories.iter().flatten();
    Ok(operations.filter(|one| one.answered.is_some()).count())
}

#[test]
fn every_history_is_linearizable() {
    let mut answered = 0;
    for seed in 0..90 {
        answered += run(seed, 0).unwrap_or_else(|violation| panic!("{violation}"));
    }
    assert!(answered > 60 * OPERATIONS, "most are answered: {answered}");
}

#[test]
fn histories_detect_an_increment_that_counts_twice() {
    let found = (0..20).find(|seed| run(*seed, 10).is_err());
    assert!(found.is_some());
}
