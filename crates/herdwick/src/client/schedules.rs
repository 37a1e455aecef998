//! Random schedules of a client whose server stalls, revokes leases, closes idle connections, dies
//! and restarts, at any point, under virtual time: every call ends by its deadline, its result
//! agrees with the server's own record, and a mutation of unknown outcome was executed once or not
//! at all.
//!
//! A failing run prints its seed last; `run(seed)` replays it.
//!
//! It finds this bug when it is planted: a `get_many` that does not check whether the session has
//! ended ([`Caller::get_many`]) spins past its deadline, if the poll that takes the last answers in
//! flight finds that the lease has ended.

mod store;
mod world;

use std::{collections::HashMap, time::Duration};

use self::{
    store::Chance,
    world::{Effect, World},
};
use super::{caller::Caller, calls::request, redial::Redial};
use crate::{Address, Answer, Error, Key, Mode, Op, Options, Put, text::Command};

/// Deadline of each call, in virtual time.
const DEADLINE: Duration = Duration::from_millis(2);
const KEYS: usize = 12;
const CALLS: usize = 60;
/// Schedules that run at once: over sockets, which are real, a client waits for most of a run.
const THREADS: u64 = 4;

/// What the result of a call states about its mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Acknowledged.
    Done,
    /// It may have been executed.
    Unknown,
    /// Not executed, now or later.
    Undone,
}

/// Counts the results of a run's calls, to check that every kind occurred.
#[derive(Debug, Default)]
struct Outcomes {
    calls: HashMap<&'static str, usize>,
}

impl Outcomes {
    fn count(&mut self, what: &'static str) {
        *self.calls.entry(what).or_default() += 1;
    }
}

struct Run {
    world: World,
    caller: Caller<World>,
    chance: Chance,
    /// Verdicts of the mutations, by their unique numbers.
    verdicts: HashMap<u64, Verdict>,
}

fn key_name(number: usize) -> String {
    format!("key {number}").replace(
        ' ',
        if number % 4 == 3 {
            "-with-a-longer-name-"
        } else {
            "-"
        },
    )
}

fn value(number: u64, len: usize) -> Vec<u8> {
    let mut value = format!("{number}:").into_bytes();
    value.resize(value.len().max(len), b'.');
    value
}

impl Run {
    fn new(seed: u64) -> Option<Self> {
        let mut chance = Chance::new(seed);
        let world = World::new(chance.fork());
        let options = Options {
            deadline: DEADLINE,
            ..Options::default()
        };
        let redial = Redial::new(Address::Unix("/no/such/server".into()), seed);
        let mut caller = Caller::new(world.clone(), redial, options);
        caller.connect().ok()?;
        Some(Self {
            world,
            caller,
            chance,
            verdicts: HashMap::new(),
        })
    }

    /// Makes one call, checks its result and counts it.
    fn step(&mut self, number: u64, outcomes: &mut Outcomes) {
        self.world.begin(DEADLINE);
        let name = key_name(self.chance.below(KEYS));
        let result = match self.chance.below(10) {
            0..3 => self.mutate(number, &name),
            3 => self.incr(number),
            4..7 => self.get(&name),
            7 | 8 => self.get_many(),
            _ => self.caller.call(
                |session, now| session.command(now, Command::Version),
                |answer| (answer == Answer::Done).then_some(Ok(())),
            ),
        };
        outcomes.count(match &result {
            Ok(()) => "answered",
            Err(Error::UnknownOutcome(_)) => "unknown",
            Err(Error::Timeout(_)) => "timeout",
            Err(Error::Unreachable { .. }) => {
                self.world.rest();
                "unreachable"
            }
            Err(Error::Disconnected(_)) => "disconnected",
            Err(other) => panic!("{other}"),
        });
        let verdict = match result {
            Ok(()) => Verdict::Done,
            Err(Error::UnknownOutcome(_)) => Verdict::Unknown,
            Err(_) => Verdict::Undone,
        };
        let times = self.world.times(number);
        match verdict {
            Verdict::Done => {}
            Verdict::Unknown => assert!(times <= 1, "{number} was done {times} times"),
            Verdict::Undone => assert_eq!(times, 0, "{number} was reported as not executed"),
        }
        self.verdicts.insert(number, verdict);
        if let Some(session) = self.caller.session() {
            outcomes.count(session.transport());
        }
    }

    fn mutate(&mut self, number: u64, name: &str) -> Result<(), Error> {
        // Sizes that fit the line, the overflow area, only the text protocol, and that exceed a
        // socket's buffer.
        let len = [4, 30, 600, 2000, 20_000, 400_000][self.chance.below(6)];
        let value = value(number, len);
        let mode = [Mode::Set, Mode::Set, Mode::Append][self.chance.below(3)];
        // Appended values are kept short.
        let put = Put::new(if mode == Mode::Append {
            &value[..4.min(value.len())]
        } else {
            &value
        });
        let tag = value.iter().take_while(|byte| **byte != b':').count();
        if mode == Mode::Append && tag >= 4 {
            return Ok(());
        }
        let mut stored = false;
        let submit = request(name.as_bytes(), Op::Store(mode, put))?;
        self.caller.call(submit, |answer| match answer {
            Answer::Done => {
                stored = true;
                Some(Ok(()))
            }
            Answer::NotStored => Some(Ok(())),
            other => panic!("{other:?}"),
        })?;
        let effect = if stored { 1 } else { 0 };
        assert_eq!(self.world.times(number), effect, "{number}, acknowledged");
        Ok(())
    }

    fn incr(&mut self, number: u64) -> Result<(), Error> {
        let mut found = None;
        self.caller
            .call(request(b"counter", Op::Incr(number))?, |answer| {
                found = match answer {
                    Answer::Number(sum) => Some(sum),
                    Answer::Miss => None,
                    other => panic!("{other:?}"),
                };
                Some(Ok(()))
            })?;
        let effect = usize::from(found.is_some());
        assert_eq!(self.world.times(number), effect, "{number}, acknowledged");
        if let Some(sum) = found {
            self.world.was("counter", Some(sum.to_string().as_bytes()));
        }
        Ok(())
    }

    fn get(&mut self, name: &str) -> Result<(), Error> {
        let mut found = None;
        self.caller
            .call(request(name.as_bytes(), Op::Get)?, |answer| {
                found = match answer {
                    Answer::Hit(hit) => Some(hit.value.to_vec()),
                    Answer::Miss => None,
                    other => panic!("{other:?}"),
                };
                Some(Ok(()))
            })?;
        self.world.was(name, found.as_deref());
        Ok(())
    }

    fn get_many(&mut self) -> Result<(), Error> {
        let names: Vec<_> = (0..1 + self.chance.below(40))
            .map(|_| key_name(self.chance.below(KEYS)))
            .collect();
        let keys: Vec<_> = names
            .iter()
            .map(|name| Key::new(name.as_bytes()).unwrap())
            .collect();
        let mut found = vec![None; names.len()];
        (self.caller).get_many(&keys, |place, hit| {
            found[place] = Some(hit.map(|hit| hit.value.to_vec()));
        })?;
        for (name, value) in names.iter().zip(found) {
            self.world
                .was(name, value.expect("each is shown").as_deref());
        }
        Ok(())
    }

    /// Checks that no canceled mutation is executed later, and one of unknown outcome at most once.
    fn settle(self) {
        let Self {
            world,
            caller,
            verdicts,
            ..
        } = self;
        drop(caller);
        world.settle();
        for (number, verdict) in verdicts {
            let times = world.times(number);
            let most = usize::from(verdict != Verdict::Undone);
            assert!(
                times <= most,
                "{number}: {verdict:?}, and done {times} times"
            );
        }
    }
}

fn run(seed: u64, outcomes: &mut Outcomes) {
    eprintln!("seed {seed}");
    let Some(mut run) = Run::new(seed) else {
        outcomes.count("no first session");
        return;
    };
    for number in 0..CALLS {
        run.step(1 + number as u64, outcomes);
    }
    let effects = run.world.effects();
    for effect in Effect::ALL {
        if effects.contains(&effect) {
            outcomes.count(effect.name());
        }
    }
    run.settle();
}

#[test]
fn every_schedule_ends_its_calls_with_the_true_outcome() {
    let mut outcomes = Outcomes::default();
    let seeds = herdwick_check::length(25, 100);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|first| {
                scope.spawn(move || {
                    let mut outcomes = Outcomes::default();
                    (first..seeds)
                        .step_by(THREADS as usize)
                        .for_each(|seed| run(seed, &mut outcomes));
                    outcomes
                })
            })
            .collect();
        for thread in threads {
            outcomes.calls.extend(thread.join().unwrap().calls);
        }
    });
    eprintln!("{outcomes:?}");
    let mut wanted = vec![
        "answered",
        "unknown",
        "timeout",
        "unreachable",
        "tcp",
        "shm",
    ];
    wanted.extend(Effect::ALL.map(Effect::name));
    for what in wanted {
        assert!(outcomes.calls.contains_key(what), "{what}: {outcomes:?}");
    }
}

fn calm() -> (World, Caller<World>) {
    let world = World::calm();
    let options = Options {
        deadline: DEADLINE,
        ..Options::default()
    };
    let redial = Redial::new(Address::Unix("/no/such/server".into()), 1);
    let mut caller = Caller::new(world.clone(), redial, options);
    caller.connect().unwrap();
    (world, caller)
}

/// The poll that takes the last answers in flight may be the one that finds that the lease has
/// ended: then no request is left to report it.
#[test]
fn session_end_without_requests_in_flight_ends_the_call() {
    let names: Vec<_> = (0..8).map(key_name).collect();
    let keys: Vec<_> = names
        .iter()
        .map(|name| Key::new(name.as_bytes()).unwrap())
        .collect();
    for checks in 0..200 {
        let (world, mut caller) = calm();
        world.begin(DEADLINE);
        world.revoke_after(checks);
        let mut seen = [false; 8];
        let done = caller.get_many(&keys, |place, _| seen[place] = true);
        assert!(done.is_ok() && seen == [true; 8], "{done:?} {seen:?}");
    }
}

/// Nothing is sent to a server that was gone before the call, though the thread that keeps the
/// lease has not run since.
#[test]
fn call_after_the_server_ended_has_a_known_outcome() {
    let (world, mut caller) = calm();
    for gone in [false, true] {
        if gone {
            world.kill_unseen();
        }
        world.rest();
        world.begin(DEADLINE);
        let put = Op::Store(Mode::Set, Put::new(b"1:"));
        let set = caller.call(request(b"key-0", put).unwrap(), |_| Some(Ok(())));
        let unreachable = matches!(set, Err(Error::Unreachable { .. }));
        assert_eq!((set.is_ok(), unreachable), (!gone, gone), "{set:?}");
    }
}

#[test]
fn multiget_has_one_deadline() {
    let names: Vec<_> = (0..1000).map(|n| format!("key-{n}")).collect();
    let keys: Vec<_> = names
        .iter()
        .map(|name| Key::new(name.as_bytes()).unwrap())
        .collect();
    let (world, mut caller) = calm();
    world.begin(DEADLINE);
    // One at a time, these reads take ten times the deadline; the world counts clock readings
    // beyond it.
    let late = caller.get_many(&keys, |_, _| {});
    assert!(matches!(late, Err(Error::Timeout(DEADLINE))), "{late:?}");
}
