//! A server with a secondary store (docs/hkvs.md), and clients that read both.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use herdwick::{Answer, Key, Mode, Op, Options, Put, ReadFrom, Session};
use herdwick_check::Rng;
use herdwick_server::{Config, Engine, Limits, Offload, Secret, Server, spawn};

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
    let limits = Limits {
        keys: 64,
        reads: 2,
        window: 1000,
    };
    let config = Config {
        offload: Some(Offload {
            limits,
            ..Offload::to(secondary.address().to_string(), secret)
        }),
        workers: Some(2),
        ..Config::local()
    };
    spawn(config).unwrap()
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
    for _ in 0..50 {
        writer.set("k", b"v", 0);
        assert_eq!(reader.get_there("k"), Told::Hit(b"v".to_vec(), 0));
        assert_eq!(writer.call("k", &Op::Delete), Told::Done);
        reader.session.set_read_from(ReadFrom::Primary);
        assert_eq!(reader.get("k"), Told::Miss);
        // The secondary store may have it for a moment longer.
        reader.session.set_read_from(ReadFrom::Secondary);
        assert_eq!(reader.get("k"), Told::Miss);
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
    for secret in [None, Some(Secret([8; 16]))] {
        let options = Options {
            secret,
            ..Options::default()
        };
        let session = Session::dial(&address, &options).unwrap();
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
    }
    // A server with another secret goes on without it.
    let primary = primary(&secondary, Secret([9; 16]));
    let mut user = User::dial(&primary, ReadFrom::Secondary);
    user.set("a", b"one", 0);
    for _ in 0..100 {
        assert_eq!(user.get("a"), Told::Hit(b"one".to_vec(), 0));
    }
    assert_eq!(user.session.secondary_reads().answered, 0);
}
