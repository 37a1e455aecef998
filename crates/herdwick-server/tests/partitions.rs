//! Workers that use each other's partitions: a request for another worker's partition is executed
//! in place if that partition is free, and is forwarded to its owner if not.

mod common;

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use common::{
    TIMEOUT, connect,
    crowd::{Since, stored, value},
    ours, stat,
};
use herdwick::Client;
use herdwick_server::Server;

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
            let mut client = Client::connect(&server.address().to_string()).unwrap();
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
    fn burst(&self, stream: &mut BufReader<TcpStream>, dice: &mut Dice, seen: &mut [u64; KEYS]) {
        let mut sent = VecDeque::new();
        let mut unsent = Vec::new();
        let at_once = dice.roll(2) == 0;
        for _ in 0..=dice.roll(6) {
            let key = dice.roll(KEYS);
            if dice.roll(2) == 0 {
                sent.push_back(Sent::Incr(key, self.begin(key)));
                unsent.extend(format!("incr c{key} 1\r\n").bytes());
            } else {
                let keys = (0..=dice.roll(4)).map(|n| (key + n) % KEYS);
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
        let mut client = Client::connect(&server.address().to_string()).unwrap();
        let (mut dice, mut seen) = (Dice(77), [0; KEYS]);
        while !stop.load(SeqCst) {
            let key = dice.roll(KEYS);
            let floor = self.begin(key);
            let value = client.incr(format!("c{key}"), 1).unwrap().unwrap();
            self.incremented(key, value, floor, &mut seen[key]);
            if dice.roll(50) == 0 {
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

/// xorshift64*, so that a seed reproduces a schedule.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % sides
    }
}

/// Connections of all workers and a client over shared memory increment and read the same
/// counters. Every value is one that some order of the requests explains which keeps the order of
/// each connection and of requests that followed each other in time: a counter takes each value
/// once. The workers execute in place and forward, by turns. A worker that served a connection
/// while one of its requests is forwarded would let later requests overtake it.
#[test]
fn counters_are_linearizable_whoever_executes() {
    let server = ours(WORKERS);
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
                    let mut dice = Dice(client as u64 + 1);
                    let mut seen = [0; KEYS];
                    begin.wait();
                    // Until both happened, but no longer than it takes to fail.
                    for round in 0.. {
                        for _ in 0..BURSTS {
                            counters.burst(&mut stream, &mut dice, &mut seen);
                        }
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
