//! Clients killed on their way to a lease or stopped, and servers killed, with full windows.

mod common;

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    process::Child,
    time::Duration,
};

use common::{
    Chance, Clock, Folder, Server, Steady, is_whole, settle, signal_to, socket, start, value,
};
use herdwick::{Answer, Cause, Client, Error, Key, Mode, Op, Put, Session, Ticket};
use rustix::process::Signal;

/// Clients killed on their way to a lease.
const VICTIMS: u64 = 40;
/// Servers killed.
const SERVERS: u64 = 8;
/// More than the server's batch, and than most clients ever have in flight.
const WINDOW: usize = 64;
/// Keys that the victims write and everyone reads.
const KEYS: usize = 32;

/// Keeps a session's window full; checks whatever comes back.
struct Hammer {
    session: Session,
    clock: Clock,
    chance: Chance,
    /// Requests in flight, and their keys.
    keys: HashMap<Ticket, String>,
    submitted: u64,
    answered: u64,
}

/// How a session of a [`Hammer`] ended.
#[derive(Debug, Default)]
struct End {
    lost: u64,
    perhaps_done: u64,
    causes: Vec<Cause>,
}

impl Hammer {
    fn new(address: &str, seed: u64) -> Self {
        Self {
            session: common::shm_session(address, WINDOW),
            clock: Clock::start(),
            chance: Chance::new(seed),
            keys: HashMap::new(),
            submitted: 0,
            answered: 0,
        }
    }

    /// Fills the window, then takes what there is.
    fn step(&mut self, end: &mut End) {
        let now = self.clock.now();
        while self.submit(now) {}
        self.session.flush(now);
        self.session.wait(now);
        let Self { keys, answered, .. } = self;
        self.session.poll(self.clock.now(), &mut |ticket, answer| {
            let key = keys.remove(&ticket).expect("one answer to each");
            *answered += 1;
            match answer {
                Answer::Hit(hit) => assert!(is_whole(&key, hit.value), "{key} is torn"),
                Answer::Lost(lost) => {
                    end.lost += 1;
                    end.perhaps_done += u64::from(lost.perhaps_done);
                    end.causes.push(lost.cause);
                }
                Answer::Miss | Answer::Done | Answer::Number(_) => {}
                other => panic!("{other:?}"),
            }
        });
    }

    fn submit(&mut self, now: Duration) -> bool {
        let key = format!("victim:{}", self.chance.below(KEYS));
        let len = 8 + self.chance.below(800);
        let bytes = value(&key, self.chance.next(), len);
        let op = match self.chance.below(8) {
            0..4 => Op::Store(Mode::Set, Put::new(&bytes)),
            4 => Op::Delete,
            _ => Op::Get,
        };
        let name = Key::new(key.as_bytes()).unwrap();
        let Some(ticket) = self.session.submit(now, name, &op) else {
            return false;
        };
        self.keys.insert(ticket, key);
        self.submitted += 1;
        true
    }
}

/// The other process: a client until it is killed.
#[test]
#[ignore = "the other process of the tests here"]
fn victim() {
    let Some(mut stream) = common::other_end() else {
        return;
    };
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    let (seed, address) = line.trim_end().split_once(' ').unwrap();
    let mut hammer = Hammer::new(address, seed.parse().unwrap());
    let mut end = End::default();
    hammer.step(&mut end);
    stream.write_all(&[1]).unwrap();
    while hammer.session.broken().is_none() {
        hammer.step(&mut end);
    }
}

fn new_victim(server: &Server, seed: u64) -> (Child, UnixStream) {
    let (child, mut stream) = start("victim");
    writeln!(stream, "{seed} {}", server.address).unwrap();
    (child, stream)
}

/// Every value that the victims left is a whole one of its key.
fn check_shared(client: &mut Client, index: usize) {
    let key = format!("victim:{}", index % KEYS);
    if let Some(bytes) = client.get(&key).unwrap() {
        assert!(
            is_whole(&key, &bytes),
            "{key} is torn: {} bytes",
            bytes.len()
        );
    }
}

#[test]
fn clients_killed_on_their_way_to_a_lease_leave_nothing() {
    let folder = Folder::new();
    let server = Server::start(&folder, 2);
    let mut steady = Steady::new(&server);
    // Until its own memory is all in use.
    (0..200).for_each(|_| steady.check());
    let baseline = server.holdings();
    let mut zombies = Vec::new();
    let mut chance = Chance::new(3);
    for seed in 1..=VICTIMS {
        let (mut child, _stream) = new_victim(&server, seed);
        for at in 0..chance.below(60) {
            steady.check();
            check_shared(&mut steady.client, at);
        }
        child.kill().unwrap();
        if seed % 10 == 0 {
            zombies.push(child);
        } else {
            child.wait().unwrap();
        }
        for at in 0..10 {
            steady.check();
            check_shared(&mut steady.client, at);
        }
    }
    settle(&server, &mut steady.client, 1, baseline);
    for mut zombie in zombies {
        zombie.wait().unwrap();
    }
    server.stop();
    assert!(folder.leases().is_empty());
}

#[test]
fn a_stopped_client_stops_nobody_else() {
    let folder = Folder::new();
    let server = Server::start(&folder, 1);
    let mut steady = Steady::new(&server);
    let (mut child, mut stream) = new_victim(&server, 9);
    stream.read_exact(&mut [0]).unwrap();
    for _ in 0..10 {
        signal_to(&child, Signal::STOP);
        for at in 0..200 {
            steady.check();
            check_shared(&mut steady.client, at);
        }
        signal_to(&child, Signal::CONT);
        steady.check();
    }
    assert!(
        child.try_wait().unwrap().is_none(),
        "it goes on where it was"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    server.stop();
}

/// The next server has the address, and the client its way.
#[test]
fn a_killed_server_ends_its_clients_and_the_next_takes_them() {
    let folder = Folder::new();
    let mut chance = Chance::new(5);
    let mut server = Server::start_at(&folder, 2);
    let address = socket(&folder).display().to_string();
    let mut caller = Client::connect(&address).unwrap();
    for round in 0..SERVERS {
        let mut hammers = [(); 2].map(|()| Hammer::new(&address, round));
        let mut end = End::default();
        for _ in 0..chance.below(3000) {
            hammers.iter_mut().for_each(|hammer| hammer.step(&mut end));
        }
        caller.set("k", "v").unwrap();
        assert_eq!(end.lost, 0, "while the server lives: {end:?}");
        server.kill();
        for hammer in &mut hammers {
            while hammer.session.broken().is_none() {
                hammer.step(&mut end);
            }
            assert_eq!(hammer.answered, hammer.submitted, "each exactly once");
        }
        // A deadline of a second passed would have been the cause.
        let ended = |cause: &Cause| matches!(cause, Cause::Closed | Cause::Io(_));
        assert!(end.causes.iter().all(ended), "{:?}", end.causes);
        assert!(matches!(caller.get("k"), Err(Error::Unreachable { .. })));
        server = Server::start_at(&folder, 2);
        assert_eq!(folder.leases().len(), 1, "the dead server's is gone");
        assert_eq!(reconnected(&mut caller), None, "a new server is empty");
    }
    server.stop();
    assert!(folder.leases().is_empty());
}

fn reconnected(caller: &mut Client) -> Option<Vec<u8>> {
    let clock = Clock::start();
    loop {
        match caller.get("k") {
            Ok(value) => return value,
            // Its dials are apart by at most a second.
            Err(Error::Unreachable { .. }) if clock.now() < common::PATIENCE => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// What the server cannot have seen yet is lost by its kind: a read has changed nothing, a
/// mutation perhaps.
#[test]
fn what_is_in_flight_when_the_server_dies_is_unknown_by_its_kind() {
    let folder = Folder::new();
    let clock = Clock::start();
    for (op, perhaps) in [(Op::Get, false), (Op::Incr(1), true)] {
        let server = Server::start(&folder, 1);
        let mut session = server.session(32);
        server.freeze();
        let key = Key::new(b"k").unwrap();
        session.submit(clock.now(), key, &op).unwrap();
        session.flush(clock.now());
        server.kill();
        let mut ends = Vec::new();
        while session.broken().is_none() {
            session.wait(clock.now());
            session.poll(clock.now(), &mut |_, answer| {
                ends.push(match answer {
                    Answer::Lost(lost) => lost,
                    other => panic!("{other:?}"),
                });
            });
        }
        let [lost] = ends[..] else { panic!("{ends:?}") };
        assert_eq!((lost.cause, lost.perhaps_done), (Cause::Closed, perhaps));
    }
}
