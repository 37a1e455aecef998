//! `serve --offload`: what clients read while a writer goes on and one of the two servers is stopped, or killed, or
//! the link between them cut, beside the times at which values were replaced.

use std::{
    fs,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use herdwick::{Answer, Client, Key, Op, Options, ReadFrom, Session};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Clock, Folder, Server, TIMEOUT, patient, ready};

/// The bound that `stats` prints (`offload_staleness_max`).
const STALENESS_MAX: Duration = Duration::from_millis(500);
/// Longer than that bound.
const PAUSE: Duration = Duration::from_millis(800);
const KEY: &str = "counter";

/// The servers of a test.
struct Pair {
    folder: Folder,
    fabric: &'static [&'static str],
    secondary: Option<Server>,
    primary: Server,
}

impl Pair {
    fn start(fabric: &'static [&'static str]) -> Self {
        let folder = Folder::new();
        let secret = secret(&folder);
        let secondary = secondary(&folder, "127.0.0.1:0", fabric);
        let mut options = vec!["-p", "0", "--offload", &secondary.address];
        options.extend(["--offload-reads", "2", "--offload-window", "1000"]);
        options.extend(["--offload-secret", &secret]);
        options.extend(fabric);
        let primary = Server::run(&folder, 1, &options);
        let secondary = Some(secondary);
        Self {
            folder,
            fabric,
            secondary,
            primary,
        }
    }

    /// Kills the secondary store, and starts another one at its address.
    fn replace(&mut self) {
        let Some(before) = self.secondary.take() else {
            return;
        };
        let address = before.address.clone();
        before.kill();
        self.secondary = Some(secondary(&self.folder, &address, self.fabric));
    }

    fn signal(&self, signal: Signal) {
        self.secondary.iter().for_each(|it| it.signal(signal));
    }
}

/// Writes the file of the secret, and returns its path.
fn secret(folder: &Folder) -> String {
    let path = folder.0.join("secret");
    fs::write(&path, "00112233445566778899aabbccddeeff\n").unwrap();
    path.to_str().unwrap().to_owned()
}

fn secondary(folder: &Folder, address: &str, fabric: &[&str]) -> Server {
    let secret = secret(folder);
    let mut options = vec!["--secondary", "-l", address, "-m", "64"];
    options.extend(["--offload-secret", &secret]);
    options.extend(fabric);
    Server::run(folder, 1, &options)
}

/// What the threads of a test share.
#[derive(Default)]
struct Shared {
    /// When each number was stored, from 0 on.
    stored: Mutex<Vec<Instant>>,
    /// Reads that the secondary store has answered.
    answered: AtomicU64,
    reads: AtomicU64,
    ends: AtomicBool,
}

#[expect(clippy::disallowed_methods, reason = "times are what is tested")]
fn clock() -> Instant {
    Instant::now()
}

/// Stores one number after the other.
fn write(server: &str, shared: Arc<Shared>) -> JoinHandle<()> {
    let mut client = Client::connect_with(server, patient()).unwrap();
    client.set(KEY, &0_u64.to_le_bytes()).unwrap();
    shared.stored.lock().unwrap().push(clock());
    thread::spawn(move || {
        let mut number = 0_u64;
        while !shared.ends.load(Relaxed) {
            number += 1;
            client.set(KEY, &number.to_le_bytes()).unwrap();
            shared.stored.lock().unwrap().push(clock());
            // A key that is written all the time is given up again and again.
            let reads = shared.reads.load(Relaxed);
            while shared.reads.load(Relaxed) < reads + 20 && !shared.ends.load(Relaxed) {
                thread::yield_now();
            }
        }
    })
}

/// Reads from the secondary store where it may. No number may be older than the bound, or than one before.
fn read(server: &str, shared: Arc<Shared>) -> JoinHandle<()> {
    let options = Options {
        read_from: ReadFrom::Secondary,
        ..patient()
    };
    let mut session = Session::dial(&server.parse().unwrap(), &options).unwrap();
    assert_ne!(session.transport(), "tcp", "{:?}", session.missed());
    thread::spawn(move || {
        let (start, mut last) = (clock(), 0);
        while !shared.ends.load(Relaxed) {
            // The reply to this one renews the lease, and shows nothing of the key.
            assert_eq!(get(&mut session, start, "none"), None);
            let begun = clock();
            let number = get(&mut session, start, KEY).expect("it was stored");
            let number = u64::from_le_bytes(number.try_into().unwrap());
            assert!(number >= last, "from {last} back to {number}");
            last = number;
            let stored = shared.stored.lock().unwrap();
            if let Some(replaced) = stored.get(number as usize + 1) {
                let age = begun.saturating_duration_since(*replaced);
                assert!(age <= STALENESS_MAX, "{number} was replaced {age:?} before");
            }
            drop(stored);
            let answered = session.secondary_reads().answered;
            shared.answered.store(answered, Relaxed);
            shared.reads.fetch_add(1, Relaxed);
        }
    })
}

fn get(session: &mut Session, start: Instant, key: &str) -> Option<Vec<u8>> {
    let key = Key::new(key.as_bytes()).unwrap();
    let mut found = None;
    session.submit(start.elapsed(), key, &Op::Get).unwrap();
    session.flush(start.elapsed());
    while found.is_none() {
        session.poll(start.elapsed(), &mut |_, answer| match answer {
            Answer::Hit(hit) => found = Some(Some(hit.value.to_vec())),
            Answer::Miss => found = Some(None),
            other => panic!("{other:?}"),
        });
        session.wait(start.elapsed());
    }
    found.unwrap()
}

/// Waits until a count has grown by so much.
fn grows(what: &str, by: u64, count: impl Fn() -> u64) {
    let (start, before) = (clock(), count());
    while count() < before + by {
        assert!(start.elapsed() < TIMEOUT, "{what}");
        thread::yield_now();
    }
}

fn values_are_within_the_bound(fabric: &'static [&'static str]) {
    let mut pair = Pair::start(fabric);
    let shared = Arc::new(Shared::default());
    let threads = [
        write(&pair.primary.address, Arc::clone(&shared)),
        read(&pair.primary.address, Arc::clone(&shared)),
    ];
    let is_read_there = || grows("reads there", 100, || shared.answered.load(Relaxed));
    let is_served = || {
        grows("writes", 20, || shared.stored.lock().unwrap().len() as u64);
        grows("reads", 20, || shared.reads.load(Relaxed));
    };
    is_read_there();
    top_shows_the_secondary_store(&pair.primary.address);
    for _ in 0..2 {
        pair.signal(Signal::STOP);
        let clock = Clock::start();
        while clock.now() < PAUSE {
            is_served();
        }
        pair.signal(Signal::CONT);
        is_read_there();
        pair.primary.freeze();
        let clock = Clock::start();
        while clock.now() < PAUSE {
            thread::yield_now();
        }
        pair.primary.signal(Signal::CONT);
        is_served();
        is_read_there();
        pair.replace();
        is_served();
        is_read_there();
    }
    shared.ends.store(true, Relaxed);
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    pair.primary.stop();
}

fn top_shows_the_secondary_store(server: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_herdwick"))
        .args(["top", "--json", "--interval", "100ms", "--server", server])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    let shown = &object["secondary_store"];
    assert_eq!(shown["connected"], true, "{object}");
    let most = STALENESS_MAX.as_micros() as u64;
    assert_eq!(shown["staleness_max_us"], most, "{object}");
    let share = shown["offloadable"].as_f64();
    assert!(
        share.is_some_and(|share| (0.0..=1.0).contains(&share)),
        "{object}"
    );
}

#[test]
fn over_shared_memory_no_value_is_older_than_the_bound_when_a_server_stops() {
    values_are_within_the_bound(&[]);
}

#[test]
fn over_roce_no_value_is_older_than_the_bound_when_a_server_stops() {
    values_are_within_the_bound(&["--roce", "127.0.0.1:0", "--shm", "off"]);
}

/// A server in another network namespace, killed on drop.
struct Far {
    child: Child,
    address: String,
}

impl Far {
    fn start(namespace: &str, options: &[&str]) -> Self {
        let mut child = Command::new("ip")
            .args(["netns", "exec", namespace, env!("CARGO_BIN_EXE_herdwick")])
            // Namespaces of one host share memory, and hosts do not.
            .args(["serve", "-u", "root", "-t", "1", "--shm", "off"])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let address = ready(&mut child);
        Self { child, address }
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has the namespace in between drop what one host sends to another, or no more.
fn cut(router: &str, how: &str, [from, to]: [&str; 2]) {
    let status = Command::new("ip")
        .args(["-n", router, "rule", how, "from", from, "to", to])
        .arg("blackhole")
        .status();
    assert!(status.unwrap().success(), "{how} {from} {to}");
}

#[test]
#[ignore = "needs network namespaces: tests/hkvs/cut.sh"]
#[expect(clippy::disallowed_methods, reason = "tests/hkvs/cut.sh makes them")]
fn across_a_cut_link_no_value_is_older_than_the_bound() {
    const PRIMARY: &str = "10.8.1.2";
    const SECONDARY: &str = "10.8.2.2";
    let names = std::env::var("HERDWICK_CUT_NAMESPACES").expect("run by tests/hkvs/cut.sh");
    let [router, there, beyond] = names.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{names}");
    };
    let folder = Folder::new();
    let secret = secret(&folder);
    let secret = ["--offload-secret", &secret];
    let options = [
        "--secondary",
        "-p",
        "0",
        "-l",
        SECONDARY,
        "--roce",
        SECONDARY,
    ];
    let secondary = Far::start(beyond, &[&options[..], &secret].concat());
    let options = ["-p", "0", "-l", PRIMARY, "--roce", PRIMARY];
    let offload = ["--offload", &secondary.address, "--offload-reads", "2"];
    let primary = Far::start(there, &[&options[..], &offload, &secret].concat());
    let shared = Arc::new(Shared::default());
    let threads = [
        write(&primary.address, Arc::clone(&shared)),
        read(&primary.address, Arc::clone(&shared)),
    ];
    let both = [[PRIMARY, SECONDARY], [SECONDARY, PRIMARY]];
    for ways in [&both[..1], &both[1..], &both] {
        grows("reads there", 100, || shared.answered.load(Relaxed));
        ways.iter().for_each(|way| cut(router, "add", *way));
        let clock = Clock::start();
        while clock.now() < 2 * PAUSE {
            grows("writes", 5, || shared.stored.lock().unwrap().len() as u64);
            grows("reads", 20, || shared.reads.load(Relaxed));
        }
        ways.iter().for_each(|way| cut(router, "del", *way));
    }
    grows("reads there", 100, || shared.answered.load(Relaxed));
    shared.ends.store(true, Relaxed);
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}
