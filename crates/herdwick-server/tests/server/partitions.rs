//! Workers that use each other's partitions: a request for another worker's partition is executed
//! in place if that partition is free, and is forwarded to its owner if not; or if the run has tried
//! to lock 16 others already, so a server with more workers forwards part of each long `get`.

use std::{
    collections::{HashMap, VecDeque},
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use crate::common::{
    Peer, TIMEOUT, client, connect,
    crowd::{Since, Talk, all_done, stored, value},
    ours, stat, with,
};
use herdwick_check::Rng;
use herdwick_server::{Config, Offers, Server};

fn line(stream: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert!(line.ends_with("\r\n"), "{line:?}");
    line.truncate(line.len() - 2);
    line
}

/// A single client that waits for each reply: its requests find the other workers asleep, and no
/// thread but the connection's worker is needed.
#[test]
fn requests_for_a_sleeping_worker_are_executed_in_place() {
    let server = ours(3);
    let mut stream = BufReader::new(connect(&server));
    for n in 0..300 {
        let request = match n % 3 {
            0 => format!("set k{n} 0 0 1\r\n1\r\n"),
            1 => format!("mg k{}\r\n", n - 1),
            _ => format!("incr k{} 1\r\n", n - 2),
        };
        let expected = ["STORED", "HD", "2"][n % 3];
        stream.get_mut().write_all(request.as_bytes()).unwrap();
        assert_eq!(line(&mut stream), expected);
    }
    let (in_place, forwarded) = (
        stat(&server, "executed_in_place"),
        stat(&server, "forwarded"),
    );
    // Two thirds of the keys are another worker's. A worker that is still falling asleep has its
    // requests forwarded.
    assert!(in_place + forwarded > 100, "{in_place} and {forwarded}");
    assert!(in_place > forwarded, "{in_place} and {forwarded}");
    assert_eq!(stat(&server, "cmd_set"), 100);
    assert_eq!(stat(&server, "get_hits"), 100);
    assert_eq!(stat(&server, "incr_hits"), 100);
}

/// Reads of several partitions in one command, which are locked together.
#[test]
fn one_get_of_every_partition_is_executed_in_place() {
    let server = ours(4);
    let mut stream = BufReader::new(connect(&server));
    for n in 0..64 {
        let set = format!("set k{n} 0 0 2\r\n{n:02}\r\n");
        stream.get_mut().write_all(set.as_bytes()).unwrap();
        assert_eq!(line(&mut stream), "STORED");
    }
    let before = (
        stat(&server, "executed_in_place"),
        stat(&server, "forwarded"),
    );
    let keys: String = (0..64).map(|n| format!(" k{n}")).collect();
    for _ in 0..100 {
        let get = format!("get{keys}\r\n");
        stream.get_mut().write_all(get.as_bytes()).unwrap();
        for n in 0..64 {
            assert_eq!(line(&mut stream), format!("VALUE k{n} 0 2"));
            assert_eq!(line(&mut stream), format!("{n:02}"));
        }
        assert_eq!(line(&mut stream), "END");
    }
    let in_place = stat(&server, "executed_in_place") - before.0;
    let forwarded = stat(&server, "forwarded") - before.1;
    assert!(in_place > forwarded, "{in_place} and {forwarded}");
}

/// Bytes of a large value, and of the part that is sent first.
const LARGE: usize = 100_000;
const FIRST: usize = 40_000;

/// The command that stores a large value, which differs from round to round.
fn large_set(key: usize, round: usize) -> Vec<u8> {
    let mut set = format!("set large{key} 0 0 {LARGE}\r\n").into_bytes();
    set.extend(value(round, LARGE));
    set.extend(b"\r\n");
    set
}

/// Of a single client that waits for each reply, large values too need no other worker.
#[test]
fn large_values_for_a_sleeping_worker_are_stored_in_place() {
    let server = ours(3);
    let mut stream = BufReader::new(connect(&server));
    for n in 0..60 {
        stream.get_mut().write_all(&large_set(n, n)).unwrap();
        assert_eq!(line(&mut stream), "STORED");
    }
    let (in_place, forwarded) = (
        stat(&server, "executed_in_place"),
        stat(&server, "forwarded"),
    );
    assert!(in_place > forwarded, "{in_place} and {forwarded}");
    assert_eq!(stat(&server, "uploads"), 60);
    for n in 0..60 {
        assert!(stored(&server, &format!("large{n}")) == Some(value(n, LARGE)));
    }
}

/// Each upload begins while no other client is active; before it ends, or its client goes, another
/// client keeps the workers busy over shared memory, so that they keep their partitions locked. An upload
/// that was lost on the way to its owner would keep its place and its room, of which there are
/// fewer than rounds.
#[test]
fn uploads_go_on_when_the_owner_begins_to_keep_its_partition() {
    const ROUNDS: usize = 100;
    let server = ours(3);
    let (stop, busy) = (AtomicBool::new(false), AtomicBool::new(false));
    let started = Since::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = client(&server);
            let mut key = 0_u32;
            while !stop.load(SeqCst) {
                if busy.load(SeqCst) {
                    key = key.wrapping_add(1);
                    client.get(format!("c{}", key % 64)).unwrap();
                } else {
                    thread::yield_now();
                }
            }
        });
        // Whatever fails below, the client above ends.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0.. {
                upload_in_two_parts(&server, round, &busy);
                let both = stat(&server, "executed_in_place") > 0 && stat(&server, "forwarded") > 0;
                if round >= ROUNDS && both || started.elapsed() > TIMEOUT {
                    break;
                }
            }
        }));
        stop.store(true, SeqCst);
        result.unwrap();
    });
    assert!(stat(&server, "executed_in_place") > 0);
    assert!(stat(&server, "forwarded") > 0);
}

/// Sends the first part of a large value, then, with the other client `busy`, the rest of it; or
/// closes the connection, in two rounds of five.
fn upload_in_two_parts(server: &Server, round: usize, busy: &AtomicBool) {
    let (key, set) = (round % 7, large_set(round % 7, round));
    let before = (
        stat(server, "uploads"),
        stored(server, &format!("large{key}")),
    );
    let mut stream = BufReader::new(connect(server));
    stream.get_mut().write_all(&set[..FIRST]).unwrap();
    while stat(server, "uploads") == before.0 {}
    busy.store(true, SeqCst);
    let expected = if round % 5 < 2 {
        drop(stream);
        before.1
    } else {
        stream.get_mut().write_all(&set[FIRST..]).unwrap();
        assert_eq!(line(&mut stream), "STORED", "in round {round}");
        Some(value(round, LARGE))
    };
    busy.store(false, SeqCst);
    let found = stored(server, &format!("large{key}"));
    assert!(found == expected, "in round {round}");
}

/// Workers of a server that forwards part of each long `get`: a run tries to lock 16 partitions
/// besides its own.
const MANY: usize = 24;
const TRIED: u64 = 16;

fn many() -> Server {
    with(Config {
        memory_bytes: 256 << 20,
        workers: Some(MANY),
        ..Config::local()
    })
}

/// Returns the number of items of each worker.
fn items(server: &Server) -> Vec<u64> {
    let said = String::from_utf8(server.say(&[b"stats workers\r\n"])).unwrap();
    let items = said
        .lines()
        .filter_map(|line| line.split_once(":items ")?.1.parse().ok());
    items.collect()
}

/// Stores items until every worker owns one. Returns the key of one of each.
fn key_of_each(server: &Server) -> Vec<String> {
    let mut keys = vec![None; MANY];
    let mut before = items(server);
    assert_eq!(before.len(), MANY);
    for n in 0.. {
        if keys.iter().all(Option::is_some) {
            break;
        }
        assert!(n < 10_000, "{keys:?}");
        let key = format!("k{n}");
        let said = server.say(&[format!("set {key} 0 0 2\r\nof\r\n").as_bytes()]);
        assert_eq!(said, b"STORED\r\n");
        let after = items(server);
        let owner = (0..MANY).find(|&owner| after[owner] > before[owner]);
        keys[owner.unwrap()].get_or_insert(key);
        before = after;
    }
    keys.into_iter().flatten().collect()
}

/// One `get` of more partitions than a run tries to lock: the rest is forwarded, each in a batch of
/// its own, and no batch is empty.
#[test]
fn part_of_a_get_of_many_partitions_is_forwarded() {
    let server = many();
    let keys = key_of_each(&server);
    let expected: String = keys
        .iter()
        .map(|key| format!("VALUE {key} 0 2\r\nof\r\n"))
        .chain(["END\r\n".to_owned()])
        .collect();
    let ask = format!("get {}\r\n", keys.join(" "));
    let names = [
        "executed_in_place",
        "forwarded",
        "tcp_batches",
        "tcp_requests",
    ];
    let before = names.map(|name| stat(&server, name));
    const TIMES: u64 = 20;
    for _ in 0..TIMES {
        let said = server.say(&[ask.as_bytes()]);
        assert_eq!(String::from_utf8(said).unwrap(), expected);
    }
    let after = names.map(|name| stat(&server, name));
    let [in_place, forwarded, batches, requests] =
        [0, 1, 2, 3].map(|n| (after[n] - before[n]) / TIMES);
    let many = MANY as u64;
    assert_eq!((batches, requests), (many, many), "a batch of one each");
    assert!(forwarded >= many - 1 - TRIED, "{forwarded}");
    assert!(in_place <= TRIED, "{in_place}");
    assert_eq!(in_place + forwarded, many - 1, "all but its own");
}

/// What the keys of one connection hold: the value, unless it was made to expire at once.
#[derive(Default)]
struct Model(HashMap<usize, Vec<u8>>);

impl Model {
    /// Returns one more command and its reply.
    fn next(&mut self, dice: &mut Rng, n: usize) -> (Vec<u8>, Vec<u8>) {
        let key = dice.index(60);
        let put = |verb: &str, exptime: i32, value: &[u8]| {
            let line = format!("{verb} m{key} 0 {exptime} {}\r\n", value.len());
            [line.as_bytes(), value, b"\r\n"].concat()
        };
        let stored = |stored: bool| match stored {
            true => b"STORED\r\n".to_vec(),
            false => b"NOT_STORED\r\n".to_vec(),
        };
        match dice.index(16) {
            0..4 => {
                let len = [1, 30, 900, 9000, 20_000, 40_000][dice.index(6)];
                let value = value(n, len);
                let said = put("set", 1000, &value);
                self.0.insert(key, value);
                (said, stored(true))
            }
            4 => {
                // Over before it begins.
                self.0.remove(&key);
                (put("set", -1, b"gone"), stored(true))
            }
            5 => {
                let found = self.0.get_mut(&key).map(|held| held.extend(b"more"));
                (put("append", 0, b"more"), stored(found.is_some()))
            }
            6 => {
                let free = !self.0.contains_key(&key);
                self.0.entry(key).or_insert_with(|| b"added".to_vec());
                (put("add", 0, b"added"), stored(free))
            }
            7 => {
                let found = self.0.remove(&key).is_some();
                let reply = if found { "DELETED" } else { "NOT_FOUND" };
                let said = format!("delete m{key}\r\n").into_bytes();
                (said, format!("{reply}\r\n").into_bytes())
            }
            8 => {
                let found = self.0.remove(&key).is_some();
                let reply = if found { "TOUCHED" } else { "NOT_FOUND" };
                let said = format!("touch m{key} -1\r\n").into_bytes();
                (said, format!("{reply}\r\n").into_bytes())
            }
            _ => {
                let keys: Vec<usize> = (0..=dice.index(40)).map(|n| (key + n) % 60).collect();
                let words: String = keys.iter().map(|key| format!(" m{key}")).collect();
                let mut reply = Vec::new();
                for key in keys {
                    if let Some(held) = self.0.get(&key) {
                        reply.extend(format!("VALUE m{key} 0 {}\r\n", held.len()).bytes());
                        reply.extend(held);
                        reply.extend(b"\r\n");
                    }
                }
                reply.extend(b"END\r\n");
                (format!("get{words}\r\n").into_bytes(), reply)
            }
        }
    }
}

/// Pipelines of commands on the partitions of many workers: part of each run is executed in place,
/// and part of it forwarded, and the replies are those of one command after the other.
#[test]
fn pipelines_over_many_partitions_keep_their_order() {
    let server = many();
    for seed in 1..=4 {
        let (mut model, mut dice) = (Model::default(), Rng::new(seed));
        let (mut said, mut expected) = (b"flush_all\r\n".to_vec(), b"OK\r\n".to_vec());
        for n in 0..600 {
            let (command, reply) = model.next(&mut dice, n);
            said.extend(command);
            expected.extend(reply);
        }
        let piece = [1 << 20, 64 << 10, 7919, 1013][seed as usize % 4];
        all_done(vec![Talk::new(&server, said, expected, piece)], || {});
    }
    assert!(stat(&server, "forwarded") > 0 && stat(&server, "executed_in_place") > 0);
    assert_eq!(stat(&server, "evictions"), 0);
}

/// Steps that the clock has taken, of [`STEP`] seconds each: begun, and known to every worker.
#[derive(Default)]
struct Steps {
    begun: AtomicU64,
    done: AtomicU64,
}

const STEP: u64 = 10;

/// Items with a TTL, while the clock moves: each is there until its time has passed, and then no
/// more, whichever worker looks, by whichever worker's clock.
#[test]
fn items_expire_alike_whoever_executes() {
    let server = with(Config {
        workers: Some(WORKERS),
        offers: Offers {
            debug: true,
            ..Offers::default()
        },
        ..Config::local()
    });
    assert_eq!(server.say(&[b"debugtime p\r\n"]), b"OK\r\n");
    let steps = Steps::default();
    let (hits, misses) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                steps.begun.fetch_add(1, SeqCst);
                let said = server.say(&[format!("debugtime {STEP}\r\n").as_bytes()]);
                assert_eq!(said, b"OK\r\n");
                steps.done.fetch_add(1, SeqCst);
            }
        });
        for client in 0..CLIENTS {
            let (server, steps, hits, misses) = (&server, &steps, &hits, &misses);
            scope.spawn(move || {
                let mut stream = BufReader::new(connect(server));
                let mut dice = Rng::new(client as u64 + 1);
                let mut n = 0;
                while steps.done.load(SeqCst) < 200 {
                    n += 1;
                    let key = format!("t{client}-{n}");
                    let lives = 1 + dice.index(4) as u64;
                    let ttl = lives * STEP - STEP / 2;
                    let earliest = steps.done.load(SeqCst);
                    let set = format!("set {key} 0 {ttl} 1\r\nx\r\n");
                    stream.get_mut().write_all(set.as_bytes()).unwrap();
                    assert_eq!(line(&mut stream), "STORED");
                    let latest = steps.begun.load(SeqCst);
                    for _ in 0..=dice.index(6) {
                        let least = steps.done.load(SeqCst).saturating_sub(latest);
                        let mg = format!("mg {key}\r\n");
                        stream.get_mut().write_all(mg.as_bytes()).unwrap();
                        let is_there = line(&mut stream) == "HD";
                        let most = steps.begun.load(SeqCst) - earliest;
                        // A worker may have begun its pass before the last step it knows.
                        assert!(is_there || most >= lives, "{key} {most} of {lives}");
                        assert!(!is_there || least <= lives, "{key} {least} of {lives}");
                        let count = if is_there { hits } else { misses };
                        count.fetch_add(1, SeqCst);
                    }
                }
            });
        }
    });
    let (hits, misses) = (hits.load(SeqCst), misses.load(SeqCst));
    assert!(hits > 0 && misses > 0, "{hits} and {misses}");
}

const WORKERS: usize = 3;
const CLIENTS: usize = 4;
/// Counters; of each, every worker owns some.
const KEYS: usize = 12;
/// Bursts of one client in a round.
const BURSTS: usize = 200;

/// The bounds of each counter at any moment: increments acknowledged, and increments begun.
#[derive(Default)]
struct Counters {
    acknowledged: [AtomicU64; KEYS],
    begun: [AtomicU64; KEYS],
    /// How often an increment returned each value.
    returned: Vec<Vec<AtomicU64>>,
}

/// A request and the increments of its key that were acknowledged before it was sent.
enum Sent {
    Incr(usize, u64),
    Get(Vec<(usize, u64)>),
}

impl Counters {
    fn new(most: usize) -> Self {
        let counts = || (0..most).map(|_| AtomicU64::new(0)).collect();
        Self {
            returned: (0..KEYS).map(|_| counts()).collect(),
            ..Self::default()
        }
    }

    fn begin(&self, key: usize) -> u64 {
        self.begun[key].fetch_add(1, SeqCst);
        self.acknowledged[key].load(SeqCst)
    }

    /// Checks the reply to an increment of `key` against the bounds, and what the same connection
    /// has `seen` before.
    fn incremented(&self, key: usize, value: u64, floor: u64, seen: &mut u64) {
        assert!(value > floor, "counter {key}: {value} after {floor}");
        assert!(value > *seen, "counter {key}: {value} after own {seen}");
        assert!(value <= self.begun[key].load(SeqCst), "counter {key}");
        *seen = value;
        self.acknowledged[key].fetch_max(value, SeqCst);
        self.returned[key][value as usize].fetch_add(1, SeqCst);
    }

    fn read(&self, key: usize, value: u64, floor: u64, seen: &mut u64) {
        assert!(value >= floor, "counter {key}: {value}, not {floor}");
        assert!(value >= *seen, "counter {key}: {value}, not own {seen}");
        assert!(value <= self.begun[key].load(SeqCst), "counter {key}");
        *seen = value;
    }

    /// Sends a burst of requests, each in a write of its own or all at once, then checks the
    /// replies.
    fn burst(&self, stream: &mut BufReader<TcpStream>, dice: &mut Rng, seen: &mut [u64; KEYS]) {
        let mut sent = VecDeque::new();
        let mut unsent = Vec::new();
        let at_once = dice.index(2) == 0;
        for _ in 0..=dice.index(6) {
            let key = dice.index(KEYS);
            if dice.index(2) == 0 {
                sent.push_back(Sent::Incr(key, self.begin(key)));
                unsent.extend(format!("incr c{key} 1\r\n").bytes());
            } else {
                let keys = (0..=dice.index(4)).map(|n| (key + n) % KEYS);
                let read: Vec<_> = keys
                    .map(|key| (key, self.acknowledged[key].load(SeqCst)))
                    .collect();
                let words: String = read.iter().map(|(key, _)| format!(" c{key}")).collect();
                unsent.extend(format!("get{words}\r\n").bytes());
                sent.push_back(Sent::Get(read));
            }
            if !at_once {
                stream.get_mut().write_all(&unsent).unwrap();
                unsent.clear();
            }
        }
        stream.get_mut().write_all(&unsent).unwrap();
        for request in sent {
            match request {
                Sent::Incr(key, floor) => {
                    let value = line(stream).parse().unwrap();
                    self.incremented(key, value, floor, &mut seen[key]);
                }
                Sent::Get(keys) => {
                    for (key, floor) in keys {
                        let head = line(stream);
                        assert!(head.starts_with(&format!("VALUE c{key} ")), "{head}");
                        let value = line(stream).trim_end().parse().unwrap();
                        self.read(key, value, floor, &mut seen[key]);
                    }
                    assert_eq!(line(stream), "END");
                }
            }
        }
    }

    /// A client over shared memory. While it is busy its workers keep their partitions locked.
    fn increment_over_shm(&self, server: &Server, stop: &AtomicBool) {
        let mut client = client(server);
        let (mut dice, mut seen) = (Rng::new(77), [0; KEYS]);
        while !stop.load(SeqCst) {
            let key = dice.index(KEYS);
            let floor = self.begin(key);
            let value = client.incr(format!("c{key}"), 1).unwrap().unwrap();
            self.incremented(key, value, floor, &mut seen[key]);
            if dice.index(50) == 0 {
                // The workers fall asleep meanwhile.
                thread::yield_now();
                let _ = stat(server, "curr_items");
            }
            if self.begun.iter().any(|begun| begun.load(SeqCst) > 50_000) {
                break;
            }
        }
    }
}

/// Stores a value near `-I` between the bursts, and reads it back.
fn store_largest(stream: &mut BufReader<TcpStream>, client: usize, round: usize) {
    let len = (1 << 20) - 300 - round % 100;
    let (key, value) = (format!("large{client}-{}", round % 3), value(round, len));
    let set = format!("set {key} 0 100 {len}\r\n");
    let said = [set.as_bytes(), &value, b"\r\n"].concat();
    stream.get_mut().write_all(&said).unwrap();
    assert_eq!(line(stream), "STORED");
    stream
        .get_mut()
        .write_all(format!("get {key}\r\n").as_bytes())
        .unwrap();
    assert_eq!(line(stream), format!("VALUE {key} 0 {len}"));
    let mut read = vec![0; len + 2];
    stream.read_exact(&mut read).unwrap();
    assert!(read[..len] == value, "{key}");
    assert_eq!(line(stream), "END");
}

/// Connections of all workers and a client over shared memory increment and read the same
/// counters. Every value is one that some order of the requests explains which keeps the order of
/// each connection and of requests that followed each other in time: a counter takes each value
/// once. The workers execute in place and forward, by turns. A worker that served a connection
/// while one of its requests is forwarded would let later requests overtake it.
#[test]
fn counters_are_linearizable_whoever_executes() {
    let server = with(Config {
        memory_bytes: 256 << 20,
        workers: Some(WORKERS),
        ..Config::local()
    });
    let mut control = BufReader::new(connect(&server));
    for key in 0..KEYS {
        let set = format!("set c{key} 0 0 1\r\n0\r\n");
        control.get_mut().write_all(set.as_bytes()).unwrap();
        assert_eq!(line(&mut control), "STORED");
    }
    let counters = Counters::new(200_000);
    let (stop, started) = (AtomicBool::new(false), Since::now());
    let begin = Barrier::new(CLIENTS);
    thread::scope(|scope| {
        scope.spawn(|| counters.increment_over_shm(&server, &stop));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (server, counters, begin, started) = (&server, &counters, &begin, &started);
                scope.spawn(move || {
                    let mut stream = BufReader::new(connect(server));
                    let mut dice = Rng::new(client as u64 + 1);
                    let mut seen = [0; KEYS];
                    begin.wait();
                    // Until both happened, but no longer than it takes to fail.
                    for round in 0.. {
                        for _ in 0..BURSTS {
                            counters.burst(&mut stream, &mut dice, &mut seen);
                        }
                        store_largest(&mut stream, client, round);
                        let both =
                            stat(server, "executed_in_place") > 0 && stat(server, "forwarded") > 0;
                        if round > 3 && both || started.elapsed() > TIMEOUT {
                            break;
                        }
                    }
                })
            })
            .collect();
        let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        stop.store(true, SeqCst);
        for client in ended {
            client.unwrap();
        }
    });
    assert!(stat(&server, "executed_in_place") > 0);
    assert!(stat(&server, "forwarded") > 0);
    for key in 0..KEYS {
        let last = counters.begun[key].load(SeqCst);
        for (value, count) in counters.returned[key].iter().enumerate() {
            let expected = u64::from((1..=last).contains(&(value as u64)));
            assert_eq!(count.load(SeqCst), expected, "counter {key} at {value}");
        }
    }
}
