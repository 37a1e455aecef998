//! A server with a secondary store (docs/hkvs.md), and clients that read both.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use herdwick::{
    Answer, Fallback, Key, LeaseRefusal, Mode, Op, Options, Put, ReadFrom, Session, StoreId,
};
use herdwick_check::Rng;
use herdwick_server::{Config, Engine, Limits, Offload, Secret, Server, spawn};

use crate::between::forward_to;

const SECRET: Secret = Secret([7; 16]);
/// Only a failing test reaches this bound.
const TIMEOUT: Duration = Duration::from_secs(60);

#[expect(clippy::disallowed_methods, reason = "sessions are driven by a clock")]
fn clock() -> Instant {
    Instant::now()
}

fn secondary() -> Server {
    let config = Config {
        engine: Engine::Clover,
        secondary: Some(SECRET),
        ..Config::local()
    };
    spawn(config).unwrap()
}

fn primary(secondary: &Server, secret: Secret) -> Server {
    primary_of(secondary.address().to_string(), secret, 64)
}

/// A server that replicates up to so many keys, each after two reads.
fn primary_of(address: String, secret: Secret, keys: usize) -> Server {
    let limits = Limits {
        keys,
        reads: 2,
        window: 20 * keys,
    };
    let config = Config {
        offload: Some(Offload {
            limits,
            ..Offload::to(address, secret)
        }),
        workers: Some(2),
        ..Config::local()
    };
    spawn(config).unwrap()
}

/// Sends a line, and perhaps a value, to the memcached port. Returns the line that is answered.
fn text(server: &Server, command: &str) -> String {
    let mut stream = TcpStream::connect(server.address().to_string()).unwrap();
    stream.write_all(command.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

fn stat(server: &Server, name: &str) -> u64 {
    let stream = TcpStream::connect(server.address().to_string()).unwrap();
    (&stream).write_all(b"stats\r\nquit\r\n").unwrap();
    let name = format!("STAT {name} ");
    let found = BufReader::new(stream)
        .lines()
        .find_map(|line| Some(line.unwrap().strip_prefix(&name)?.parse().unwrap()));
    found.unwrap()
}

/// Waits until it is so.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = clock();
    while !is() {
        assert!(start.elapsed() < TIMEOUT, "{what}");
        std::thread::yield_now();
    }
}

/// A session and its clock.
struct User {
    session: Session,
    start: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Hit(Vec<u8>, u32),
    Miss,
    Done,
}

impl User {
    fn dial(server: &Server, read_from: ReadFrom) -> Self {
        let options = Options {
            read_from,
            deadline: TIMEOUT,
            ..Options::default()
        };
        let address = server.address().to_string().parse().unwrap();
        let session = Session::dial(&address, &options).unwrap();
        assert_eq!(session.transport(), "shm", "{:?}", session.missed());
        let start = clock();
        Self { session, start }
    }

    fn call(&mut self, key: &str, op: &Op<'_>) -> Told {
        let now = self.start.elapsed();
        let ticket = self
            .session
            .submit(now, Key::new(key.as_bytes()).unwrap(), op);
        let ticket = ticket.expect("nothing is in flight");
        self.session.flush(now);
        let mut told = None;
        while told.is_none() {
            let now = self.start.elapsed();
            self.session.poll(now, &mut |of, answer| {
                assert_eq!(of, ticket);
                told = Some(match answer {
                    Answer::Hit(hit) => Told::Hit(hit.value.to_vec(), hit.flags),
                    Answer::Miss => Told::Miss,
                    Answer::Done => Told::Done,
                    other => panic!("{other:?}"),
                });
            });
            self.session.wait(now);
        }
        told.unwrap()
    }

    /// Sets keys and then deletes one, all in flight at once.
    fn set_all_and_delete(&mut self, keys: &[String], gone: &str) {
        let now = self.start.elapsed();
        let put = Op::Store(Mode::Set, Put::new(&[2; 4000]));
        let (mut left, gone) = (0, (gone, Op::Delete));
        let all = keys.iter().map(|key| (key.as_str(), put)).chain([gone]);
        for (key, op) in all {
            let key = Key::new(key.as_bytes()).unwrap();
            while self.session.submit(now, key, &op).is_none() {
                self.session.poll(now, &mut |_, _| left -= 1);
            }
            left += 1;
        }
        self.session.flush(now);
        while left > 0 {
            let now = self.start.elapsed();
            self.session.poll(now, &mut |_, answer| {
                assert_eq!(answer, Answer::Done);
                left -= 1;
            });
        }
    }

    fn set(&mut self, key: &str, value: &[u8], flags: u32) {
        let put = Put::new(value).flags(flags);
        assert_eq!(self.call(key, &Op::Store(Mode::Set, put)), Told::Done);
    }

    fn get(&mut self, key: &str) -> Told {
        self.call(key, &Op::Get)
    }

    /// Reads a key until the secondary store answers.
    fn get_there(&mut self, key: &str) -> Told {
        let (start, before) = (clock(), self.session.secondary_reads().answered);
        loop {
            let told = self.get(key);
            if self.session.secondary_reads().answered > before {
                return told;
            }
            assert!(start.elapsed() < TIMEOUT, "{:?}", self.session.secondary());
        }
    }
}

#[test]
fn replicated_keys_are_read_from_the_secondary_store() {
    let secondary = secondary();
    let primary = primary(&secondary, SECRET);
    let mut user = User::dial(&primary, ReadFrom::Secondary);
    user.set("a", b"one", 5);
    assert_eq!(user.get_there("a"), Told::Hit(b"one".to_vec(), 5));
    // An empty value, and one that looks like nothing in particular to either store.
    for value in [&b""[..], &[0; 12], &[0xff; 300], &[0; 4080]] {
        user.set("b", value, 0);
        assert_eq!(user.get_there("b"), Told::Hit(value.to_vec(), 0));
    }
    assert_eq!(user.call("a", &Op::Delete), Told::Done);
    assert_eq!(user.get("a"), Told::Miss);
    // What cannot be replicated is read from the server.
    user.set("c", &[1; 5000], 0);
    let before = user.session.secondary_reads().answered;
    for _ in 0..20 {
        assert_eq!(user.get("c"), Told::Hit(vec![1; 5000], 0));
    }
    assert_eq!(user.session.secondary_reads().answered, before);
}

#[test]
fn what_the_server_no_longer_has_is_not_found_in_the_secondary_store_afterwards() {
    let secondary = secondary();
    let primary = primary(&secondary, SECRET);
    let mut reader = User::dial(&primary, ReadFrom::Secondary);
    let mut writer = User::dial(&primary, ReadFrom::Primary);
    let others: Vec<String> = (0..40).map(|n| format!("other-{n}")).collect();
    for other in &others {
        reader.set(other, &[1; 4000], 0);
        reader.get_there(other);
    }
    // Another session, which does not know that the key is gone, shows that the secondary store had it still.
    let mut unaware = User::dial(&primary, ReadFrom::Secondary);
    let (mut rounds, mut late) = (0, 0);
    let start = clock();
    while rounds < 50 || late < 3 {
        assert!(start.elapsed() < TIMEOUT, "{late} of {rounds}");
        rounds += 1;
        writer.set("k", b"v", 0);
        for user in [&mut reader, &mut unaware] {
            assert_eq!(user.get_there("k"), Told::Hit(b"v".to_vec(), 0));
        }
        // The removal has to wait behind these changes.
        writer.set_all_and_delete(&others, "k");
        reader.session.set_read_from(ReadFrom::Primary);
        assert_eq!(reader.get("k"), Told::Miss);
        reader.session.set_read_from(ReadFrom::Secondary);
        assert_eq!(reader.get("k"), Told::Miss);
        late += u32::from(unaware.get("k") != Told::Miss);
    }
}

#[test]
fn a_client_reads_what_it_has_written_and_no_key_goes_back() {
    let secondary = secondary();
    let primary = primary(&secondary, SECRET);
    let modes = [
        ReadFrom::Secondary,
        ReadFrom::Interleaved(50),
        ReadFrom::Extended,
    ];
    let mut users: Vec<_> = modes
        .iter()
        .map(|mode| User::dial(&primary, *mode))
        .collect();
    let mut rng = Rng::new(3);
    // The last number that was written, and that each user has seen.
    let mut written: HashMap<u64, u64> = HashMap::new();
    let mut seen = vec![HashMap::<u64, u64>::new(); users.len()];
    for n in 0..30_000_u64 {
        let (key, index) = (rng.below(12), rng.index(users.len()));
        let name = format!("key-{key}");
        let user = &mut users[index];
        user.session.set_read_from(modes[rng.index(modes.len())]);
        if rng.below(30) == 0 || !written.contains_key(&key) {
            user.set(&name, &n.to_le_bytes(), 0);
            written.insert(key, n);
            seen[index].insert(key, n);
            continue;
        }
        let Told::Hit(value, 0) = user.get(&name) else {
            panic!("{key} was stored");
        };
        let value = u64::from_le_bytes(value.try_into().unwrap());
        let known = seen[index].insert(key, value).unwrap_or(0);
        assert!((known..=written[&key]).contains(&value), "{known} {value}");
    }
    let answered: u64 = users
        .iter()
        .map(|user| user.session.secondary_reads().answered)
        .sum();
    assert!(answered > 3000, "{answered}");
}

/// What text answers, for it is too large for the fabric, tells nothing of the secondary store: what that has of the key
/// may be older.
#[test]
fn a_value_too_large_for_the_fabric_is_not_followed_by_an_older_one() {
    let secondary = secondary();
    let primary = primary(&secondary, SECRET);
    let mut user = User::dial(&primary, ReadFrom::Interleaved(100));
    user.set("k", b"old", 0);
    user.get_there("k");
    user.session.set_read_from(ReadFrom::Interleaved(0));
    User::dial(&primary, ReadFrom::Primary).set("k", &[1; 5000], 0);
    assert_eq!(user.get("k"), Told::Hit(vec![1; 5000], 0));
    user.session.set_read_from(ReadFrom::Interleaved(100));
    let before = user.session.secondary_reads();
    assert_eq!(user.get("k"), Told::Hit(vec![1; 5000], 0));
    assert_eq!(user.session.secondary_reads(), before, "it was not asked");
}

#[test]
fn a_client_that_reads_the_server_alone_has_no_session_with_the_secondary_store() {
    let secondary = secondary();
    let primary = primary(&secondary, SECRET);
    let mut user = User::dial(&primary, ReadFrom::Secondary);
    user.set("k", b"value", 0);
    user.get_there("k");
    user.session.set_read_from(ReadFrom::Primary);
    until("the session has ended", || {
        assert_eq!(user.get("k"), Told::Hit(b"value".to_vec(), 0));
        user.session.secondary().is_none()
    });
    user.session.set_read_from(ReadFrom::Secondary);
    user.get_there("k");
}

#[test]
fn the_server_goes_on_alone_without_its_secondary_store_and_replicates_anew() {
    let first = secondary();
    let primary = primary(&first, SECRET);
    let mut user = User::dial(&primary, ReadFrom::Secondary);
    user.set("a", b"one", 0);
    user.get_there("a");
    let address = first.address().to_string();
    first.shutdown();
    // Until the client notices, and afterwards.
    for n in 0..1000_u32 {
        user.set("a", &n.to_le_bytes(), 0);
        assert_eq!(user.get("a"), Told::Hit(n.to_le_bytes().to_vec(), 0));
    }
    let listen = herdwick_server::Listen::Tcp(vec![
        address.parse::<std::net::SocketAddr>().unwrap().into(),
    ]);
    let again = Config {
        engine: Engine::Clover,
        secondary: Some(SECRET),
        listen,
        ..Config::local()
    };
    let _again = spawn(again).unwrap();
    assert_eq!(
        user.get_there("a"),
        Told::Hit(999_u32.to_le_bytes().to_vec(), 0)
    );
}

#[test]
fn a_client_without_the_secret_cannot_write_the_secondary_store() {
    let secondary = secondary();
    let address = secondary.address().to_string().parse().unwrap();
    let dial = |secret, store| {
        let options = Options {
            secret,
            store,
            deadline: TIMEOUT,
            ..Options::default()
        };
        Session::dial(&address, &options).unwrap()
    };
    // No client reaches it without secret or store, before its writer has come and afterwards.
    let refused = Some(Fallback::Refused(LeaseRefusal::Token));
    let unknown = Some(Fallback::Engine("secondary".to_owned()));
    let has_no_access = || {
        assert_eq!(dial(None, None).missed(), unknown.as_ref());
        for (secret, store) in [(Some(Secret([8; 16])), None), (None, Some(StoreId(5)))] {
            let session = dial(secret, store);
            assert_eq!(
                (session.transport(), session.missed()),
                ("tcp", refused.as_ref())
            );
        }
    };
    has_no_access();
    let writer = dial(Some(SECRET), None);
    let store = writer.began_store();
    assert!(!writer.is_read_only() && store.is_some());
    has_no_access();
    let session = dial(None, store);
    assert!(session.is_read_only());
    let start = clock();
    let mut user = User { session, start };
    let now = user.start.elapsed();
    for op in [Op::Store(Mode::Set, Put::new(b"x")), Op::Delete] {
        let ticket = user.session.submit(now, Key::new(b"a").unwrap(), &op);
        assert!(ticket.is_some());
    }
    let mut refused = 0;
    user.session.poll(now, &mut |_, answer| {
        refused += usize::from(matches!(answer, Answer::Refused(_)));
    });
    assert_eq!(refused, 2);
    assert_eq!(user.get("a"), Told::Miss);
    drop(writer);
    // A server with another secret goes on without it.
    let primary = primary(&secondary, Secret([9; 16]));
    let mut user = User::dial(&primary, ReadFrom::Secondary);
    user.set("a", b"one", 0);
    for _ in 0..100 {
        assert_eq!(user.get("a"), Told::Hit(b"one".to_vec(), 0));
    }
    assert_eq!(user.session.secondary_reads().answered, 0);
    until("the refusal", || {
        stat(&primary, "offload_secret_refused") > 0
    });
    // What the writer has left is not read.
    assert!(!dial(None, store).is_read_only());
}

#[test]
fn a_server_that_is_no_secondary_store_is_not_written() {
    for engine in [Engine::Herd, Engine::Clover] {
        let config = Config {
            engine,
            ..Config::local()
        };
        let other = spawn(config).unwrap();
        let primary = primary(&other, SECRET);
        until("a refusal", || stat(&primary, "offload_secret_refused") > 0);
        assert_eq!(stat(&primary, "offload_connections"), 0);
    }
}

#[test]
fn a_client_does_not_read_another_servers_secondary_store() {
    let stores = [secondary(), secondary()];
    let place = Arc::new(Mutex::new(stores[0].address().to_string()));
    // One address, where the server finds one store and its clients another.
    let address = forward_to({
        let place = Arc::clone(&place);
        move || place.lock().unwrap().clone()
    });
    let primary_here = primary_of(address, SECRET, 64);
    until("its store", || {
        stat(&primary_here, "offload_connected") == 1
    });
    place
        .lock()
        .unwrap()
        .clone_from(&stores[1].address().to_string());
    let foreign = primary(&stores[1], SECRET);
    let mut other = User::dial(&foreign, ReadFrom::Secondary);
    // Its versions are higher.
    for _ in 0..100 {
        other.set("a", b"foreign", 0);
    }
    other.get_there("a");
    let mut user = User::dial(&primary_here, ReadFrom::Secondary);
    user.set("a", b"own", 0);
    let mut connected = 0;
    until("attempts to read there", || {
        for _ in 0..100 {
            assert_eq!(user.get("a"), Told::Hit(b"own".to_vec(), 0));
        }
        // Each is refused: one that is not would be a session.
        connected += u32::from(user.session.secondary().is_some());
        stat(&stores[1], "lease_refused_token") > 1
    });
    assert_eq!((connected, user.session.secondary_reads().answered), (0, 0));
}

#[test]
fn the_next_server_begins_anew_with_the_same_secondary_store() {
    let secondary = secondary();
    let mut old: Vec<User> = Vec::new();
    for round in 0..3_u8 {
        let primary = primary(&secondary, SECRET);
        // As many writes as before, so that versions come again.
        let mut user = User::dial(&primary, ReadFrom::Secondary);
        user.set("a", &[round; 100], 0);
        assert_eq!(user.get_there("a"), Told::Hit(vec![round; 100], 0));
        // Another key of the one before is not there.
        assert_eq!(
            user.get(&format!("only-{}", round.wrapping_sub(1))),
            Told::Miss
        );
        let only = format!("only-{round}");
        user.set(&only, b"x", 0);
        user.get_there(&only);
        old.push(user);
        primary.shutdown();
    }
    for user in &mut old {
        let now = user.start.elapsed();
        user.session.check(now);
        assert!(user.session.broken().is_some());
    }
}

#[test]
fn versions_that_clients_choose_may_go_down() {
    let secondary = secondary();
    let primary = primary(&secondary, SECRET);
    let mut reader = User::dial(&primary, ReadFrom::Secondary);
    let mut other = User::dial(&primary, ReadFrom::Secondary);
    for round in 0..20_u32 {
        let high = text(&primary, "ms k 4 E1000000\r\nhigh\r\n");
        assert!(high.starts_with("HD"), "{high}");
        until("the higher version", || {
            reader.get_there("k") == Told::Hit(b"high".to_vec(), 0)
        });
        let low = text(&primary, &format!("ms k 3 E{}\r\nlow\r\n", 100 + round));
        assert!(low.starts_with("HD"), "{low}");
        // The reader does not hear of it before it is replicated.
        until("the lower version", || {
            other.get_there("k") == Told::Hit(b"low".to_vec(), 0)
        });
        let mut seen = false;
        until("the reader's answers from there", || {
            let before = reader.session.secondary_reads().answered;
            let is_low = reader.get("k") == Told::Hit(b"low".to_vec(), 0);
            assert!(is_low || !seen, "it went back");
            seen |= is_low;
            seen && reader.session.secondary_reads().answered > before
        });
    }
}

#[test]
fn a_full_secondary_store_makes_room_for_what_is_read_and_ends_no_lease() {
    let config = Config {
        engine: Engine::Clover,
        secondary: Some(SECRET),
        memory_bytes: 32 << 20,
        ..Config::local()
    };
    let secondary = spawn(config).unwrap();
    let primary = primary_of(secondary.address().to_string(), SECRET, 4000);
    let mut user = User::dial(&primary, ReadFrom::Secondary);
    user.set("first", b"x", 0);
    user.get_there("first");
    let mut number = 0;
    until("a refusal", || {
        number += 1;
        let name = format!("cold-{number}");
        user.set(&name, &[3; 4000], 0);
        (0..2).for_each(|_| drop(user.get(&name)));
        assert!(number < 50_000);
        number % 50 == 0 && stat(&primary, "offload_refused") > 0
    });
    // It is full; what is read now takes the place of what is not.
    for round in 0..5 {
        let hot = format!("hot-{round}");
        user.set(&hot, &[4; 4000], 0);
        assert_eq!(user.get_there(&hot), Told::Hit(vec![4; 4000], 0));
    }
}
