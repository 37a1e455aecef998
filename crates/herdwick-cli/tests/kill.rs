//! Clients and servers are killed at random instants with full windows, clients also while they
//! acquire a lease, and a client is stopped. Other clients are not affected, every request ends
//! exactly once, and all resources are released.
//!
//! The tests kill a hundred processes, or as many as `HERDWICK_KILLS` says; a fifth of them are
//! servers.

mod common;

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::unix::{fs::FileExt, net::UnixStream},
    path::{Path, PathBuf},
    process::Child,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use common::{
    Chance, Clock, Folder, Holdings, Server, Steady, is_whole, kills, patient, settle, signal_to,
    socket, start, until_dead, value,
};
use herdwick::{Answer, Cause, Client, Error, Key, Mode, Op, Put, Session, Ticket};
use herdwick_herd::hello::LEASE_DEADLINE;
use rustix::process::Signal;

/// Longest time that another client may wait for an answer or an error. What lasts longer has waited
/// until the server gave up a dead client; a busy host delays all by less.
const STALL_MAX: Duration = LEASE_DEADLINE;
/// Requests in flight: more than a batch of the server, and more than most clients have at a
/// worker.
const WINDOW: usize = 64;
/// Workers of each server.
const WORKERS: usize = 2;
/// Keys that the victims write and all clients read.
const KEYS: usize = 32;

/// Runs one test at a time: some count what this process holds.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client that keeps its window full and checks every answer.
struct Hammer {
    session: Session,
    clock: Clock,
    chance: Chance,
    /// Keys of the requests in flight.
    keys: HashMap<Ticket, String>,
    submitted: u64,
    answered: u64,
}

/// How the requests of a [`Hammer`] ended that were not answered.
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

    /// Submits as many requests as the window takes.
    fn fill(&mut self) {
        let now = self.clock.now();
        while self.submit(now) {}
        self.session.flush(now);
    }

    /// Waits for answers and takes them.
    fn take(&mut self, end: &mut End) {
        self.session.wait(self.clock.now());
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

    fn step(&mut self, end: &mut End) {
        self.fill();
        self.take(end);
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

/// The victim process: a client until it is killed. It signals when it has filled its window for
/// the first time, and keeps the number of requests in flight in a file.
#[test]
#[ignore = "the other process of the tests here"]
fn victim() {
    let Some(mut stream) = common::other_end() else {
        return;
    };
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    let words: Vec<&str> = line.trim_end().split(' ').collect();
    let [seed, address, path] = words[..] else {
        panic!("{line}")
    };
    let note = File::create(path).unwrap();
    let mut hammer = Hammer::new(address, seed.parse().unwrap());
    let (mut end, mut said) = (End::default(), false);
    while hammer.session.broken().is_none() {
        hammer.fill();
        let in_flight = hammer.keys.len() as u64;
        note.write_all_at(&in_flight.to_le_bytes(), 0).unwrap();
        if !said {
            stream.write_all(&[1]).unwrap();
            said = true;
        }
        hammer.take(&mut end);
    }
}

/// A client process that is to be killed.
struct Victim {
    child: Child,
    stream: UnixStream,
    note: PathBuf,
}

impl Victim {
    fn new(server: &Server, folder: &Folder, seed: usize) -> Self {
        let (child, mut stream) = start("victim");
        let note = folder.0.join(format!("in-flight-{seed}"));
        writeln!(stream, "{seed} {} {}", server.address, note.display()).unwrap();
        Self {
            child,
            stream,
            note,
        }
    }

    /// Waits until it has filled its window once.
    fn until_full(&mut self) {
        self.stream.read_exact(&mut [0]).unwrap();
    }

    /// Kills it; returns the number of requests in flight when it last filled its window.
    fn kill(&mut self) -> u64 {
        assert!(
            self.child.try_wait().unwrap().is_none(),
            "the process was still running"
        );
        self.child.kill().unwrap();
        until_dead(&self.child);
        let noted = fs::read(&self.note).unwrap_or_default();
        let _ = fs::remove_file(&self.note);
        noted
            .first_chunk()
            .map_or(0, |word| u64::from_le_bytes(*word))
    }
}

/// Checks that a value written by the victims is complete and of its key.
fn check_shared(client: &mut Client, index: usize) {
    let key = format!("victim:{}", index % KEYS);
    if let Some(bytes) = client.get(&key).unwrap() {
        let len = bytes.len();
        assert!(is_whole(&key, &bytes), "{key} is torn: {len} bytes");
    }
}

/// Half of the clients are killed with full windows, half while they acquire a lease.
#[test]
fn clients_killed_at_random_times_leave_nothing() {
    let _alone = alone();
    let folder = Folder::new();
    let server = Server::start(&folder, WORKERS);
    let mut steady = Steady::new(&server);
    // Until all memory of its own is resident.
    (0..200).for_each(|_| steady.check());
    let baseline = server.holdings();
    let (mut zombies, mut in_flight, mut chance) = (Vec::new(), Vec::new(), Chance::new(3));
    let victims = kills() * 4 / 5;
    for number in 0..victims {
        let mut victim = Victim::new(&server, &folder, number);
        let full = number % 2 == 0;
        if full {
            victim.until_full();
        }
        for at in 0..chance.below(60) {
            steady.check();
            check_shared(&mut steady.client, at);
        }
        let noted = victim.kill();
        if full {
            in_flight.push(noted);
        }
        if number % 10 == 0 {
            zombies.push(victim);
        } else {
            victim.child.wait().unwrap();
        }
        for at in 0..10 {
            steady.check();
            check_shared(&mut steady.client, at);
        }
    }
    settle(&server, &mut steady.client, 1, baseline);
    let mean = in_flight.iter().sum::<u64>() as f64 / in_flight.len() as f64;
    println!(
        "{victims} clients killed, {} zombies; {mean:.0} requests in flight at those with full \
         windows; longest stall {:?} in {} checks; {baseline:?} before and after",
        zombies.len(),
        steady.longest,
        steady.count
    );
    assert!(in_flight.iter().all(|count| *count > 0));
    assert!(mean > WINDOW as f64, "of {} slots", WINDOW * WORKERS);
    assert!(steady.longest < STALL_MAX, "{:?}", steady.longest);
    for mut zombie in zombies {
        zombie.child.wait().unwrap();
    }
    server.stop();
    assert!(folder.leases().is_empty());
}

#[test]
fn stopped_client_does_not_delay_others() {
    let _alone = alone();
    let folder = Folder::new();
    let server = Server::start(&folder, 1);
    let mut steady = Steady::new(&server);
    let mut victim = Victim::new(&server, &folder, 9);
    victim.until_full();
    for _ in 0..10 {
        signal_to(&victim.child, Signal::STOP);
        for at in 0..200 {
            steady.check();
            check_shared(&mut steady.client, at);
        }
        signal_to(&victim.child, Signal::CONT);
        steady.check();
    }
    victim.kill();
    victim.child.wait().unwrap();
    assert!(steady.longest < STALL_MAX, "{:?}", steady.longest);
    server.stop();
}

/// Two clients with full windows of a server that is going to be killed.
struct Bereaved {
    hammers: [Hammer; 2],
    end: End,
}

impl Bereaved {
    fn new(address: &str, seed: usize) -> Self {
        Self {
            hammers: [(); 2].map(|()| Hammer::new(address, seed as u64)),
            end: End::default(),
        }
    }

    /// Takes steps, none of which may lose a request; returns the number of requests in flight at
    /// the end.
    fn hammer(&mut self, steps: usize) -> usize {
        for _ in 0..steps {
            for hammer in &mut self.hammers {
                hammer.step(&mut self.end);
            }
        }
        assert_eq!(self.end.lost, 0, "while the server runs: {:?}", self.end);
        self.hammers.iter_mut().for_each(Hammer::fill);
        self.hammers.iter().map(|hammer| hammer.keys.len()).sum()
    }

    /// Takes steps until both clients have noticed that the server is dead.
    fn mourn(mut self) {
        for hammer in &mut self.hammers {
            while hammer.session.broken().is_none() {
                hammer.step(&mut self.end);
            }
            assert_eq!(
                hammer.answered, hammer.submitted,
                "every request is answered exactly once"
            );
        }
        // The connection ended it, not an expired deadline.
        let ended = |cause: &Cause| matches!(cause, Cause::Closed | Cause::Io(_));
        assert!(self.end.causes.iter().all(ended), "{:?}", self.end.causes);
    }
}

/// The next server takes over the address, and the clients reconnect to it. A client of another
/// server is not affected.
#[test]
fn servers_killed_at_random_times_leave_nothing_and_clients_reconnect() {
    let _alone = alone();
    let folders = [(); 2].map(|()| Folder::new());
    let bystander = Server::start(&folders[1], 1);
    let mut steady = Steady::new(&bystander);
    let address = socket(&folders[0]).display().to_string();
    let mut server = Server::start_at(&folders[0], WORKERS);
    let mut caller = Client::connect_with(&address, patient()).unwrap();
    let (mut zombies, mut longest, mut chance) = (Vec::new(), Duration::ZERO, Chance::new(5));
    let (mut in_flight, victims) = (0, kills() / 5);
    let baseline = Holdings::of(Path::new("/proc/self"));
    for number in 0..victims {
        let mut bereaved = Bereaved::new(&address, number);
        caller.set("k", "v").unwrap();
        steady.check();
        in_flight += bereaved.hammer(chance.below(1000));
        server.signal(Signal::KILL);
        let clock = Clock::start();
        bereaved.mourn();
        let called = caller.get("k");
        longest = longest.max(clock.now());
        assert!(
            matches!(called, Err(Error::Unreachable { .. })),
            "{called:?}"
        );
        steady.check();
        server.until_dead();
        let next = Server::start_at(&folders[0], WORKERS);
        let dead = std::mem::replace(&mut server, next);
        if number % 10 == 0 {
            zombies.push(dead);
        }
        assert_eq!(
            folders[0].leases().len(),
            1,
            "the lease directory of the killed server is removed"
        );
        assert_eq!(reconnected(&mut caller), None, "a new server is empty");
    }
    let after = Holdings::of(Path::new("/proc/self"));
    println!(
        "{victims} servers killed, {} zombies, {in_flight} requests in flight; clients knew after \
         {longest:?}; longest stall of a bystander {:?}; {baseline:?} before, {after:?} after",
        zombies.len(),
        steady.longest
    );
    assert!(
        after.fds <= baseline.fds && after.maps <= baseline.maps,
        "{after:?} for {baseline:?}"
    );
    assert!(longest < STALL_MAX, "{longest:?}");
    assert!(steady.longest < STALL_MAX, "{:?}", steady.longest);
    server.stop();
    assert!(folders[0].leases().is_empty());
}

fn reconnected(caller: &mut Client) -> Option<Vec<u8>> {
    let clock = Clock::start();
    loop {
        match caller.get("k") {
            Ok(value) => return value,
            // Its attempts to connect are at most a second apart.
            Err(Error::Unreachable { .. }) if clock.now() < common::TIMEOUT => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// A request that the server has not read is lost: the outcome of a read is that nothing changed,
/// that of a mutation is unknown.
#[test]
fn requests_in_flight_at_a_server_kill_have_the_documented_outcome() {
    let _alone = alone();
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
