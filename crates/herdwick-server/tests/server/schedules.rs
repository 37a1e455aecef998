//! Random schedules on a whole server: clients connect, send partial commands, disconnect at any
//! point, and are replaced by others. Every reply, and the final contents, are checked.
//!
//! These bugs are found when they are planted:
//!
//! - leaving: a connection that closes in the middle of an upload, and whose reservation and permit its
//!   worker does not give back (`upload::abort`). The clients after it are soon stuck.
//! - a connection's place, reused: one that closes while it waits for a permit, and whose place remains
//!   in the queue for it (`permits.forget` in `upload::abort`). The connection that has the place next
//!   takes the permit and does not give it back.
//! - a limit that moves: the head, which follows a lower limit, carries no reservation that is in its
//!   way (`may_move` in `Store::narrow`). Values on their way are refused.
//!
//! The server cuts a client that pauses for a second while others wait for its room. On a busy host
//! the clients of a test pause for as long: such a client may be cut, and no other.

use std::{
    collections::HashMap,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
};

use crate::common::{
    Peer, TIMEOUT, connect,
    crowd::{PAUSE, Since, stored, value},
    is_slab, stat, with,
};
use herdwick_check::Rng;
use herdwick_server::{Config, Server};

/// The expected reply to a command.
enum Expect {
    Exactly(Vec<u8>),
    /// The reply to a set of this key to this value.
    Stored(String, usize, usize),
}

/// A client: its unsent bytes and expected replies.
struct Client {
    stream: TcpStream,
    name: usize,
    unsent: Vec<u8>,
    heard: Vec<u8>,
    expected: Vec<Expect>,
    /// When it last did something, and whether it has paused for long.
    last: Since,
    paused: bool,
    /// The server has closed its connection.
    cut: bool,
}

/// The state of a key: the last value whose store was acknowledged, and later ones that may have
/// been executed.
#[derive(Default)]
struct Known {
    acknowledged: Option<(usize, usize)>,
    possible: Vec<(usize, usize)>,
}

struct Schedule {
    server: Server,
    dice: Rng,
    clients: Vec<Option<Client>>,
    keys: HashMap<String, Known>,
    born: usize,
    numbers: usize,
    /// Number of clients that have paused.
    paused: u64,
    /// The lowest memory limit that the server accepts, in MiB, if it is lowered and raised
    /// meanwhile.
    lowest: Option<usize>,
}

/// The server's memory in MiB.
const MEGABYTES: usize = 64;
/// Less than a key, a header and a few random bytes below `-I`.
const LEN_MAX: usize = (1 << 20) - 1200;

impl Schedule {
    fn new(seed: u64, workers: usize, clients: usize) -> Self {
        Self {
            server: with(Config {
                memory_bytes: MEGABYTES << 20,
                workers: Some(workers),
                ..Config::local()
            }),
            dice: Rng::new(seed),
            clients: (0..clients).map(|_| None).collect(),
            keys: HashMap::new(),
            born: 0,
            numbers: 0,
            paused: 0,
            lowest: None,
        }
    }

    /// The same with a memory limit that moves.
    fn limited(seed: u64, workers: usize, clients: usize) -> Self {
        let mut schedule = Self::new(seed, workers, clients);
        schedule.lowest = (8..MEGABYTES).find(|&megabytes| schedule.limit(megabytes));
        assert!(schedule.lowest.is_some() && schedule.limit(MEGABYTES));
        schedule
    }

    /// Sets the memory limit; returns whether the server accepts it.
    fn limit(&self, megabytes: usize) -> bool {
        let line = format!("cache_memlimit {megabytes}\r\n");
        self.server.say(&[line.as_bytes()]) == b"OK\r\n"
    }

    /// Sets the lowest memory limit, the highest one, or any between.
    fn move_limit(&mut self, lowest: usize) {
        let megabytes = match self.dice.index(4) {
            0 => lowest,
            1 => MEGABYTES,
            _ => lowest + self.dice.index(MEGABYTES - lowest),
        };
        assert!(self.limit(megabytes), "{megabytes}");
    }

    fn step(&mut self) {
        if let Some(lowest) = self.lowest
            && self.dice.index(40) == 0
        {
            self.move_limit(lowest);
        }
        let slot = self.dice.index(self.clients.len());
        let Some(mut client) = self.clients[slot].take() else {
            self.born += 1;
            self.clients[slot] = Some(Client {
                stream: connect(&self.server),
                name: self.born,
                unsent: Vec::new(),
                heard: Vec::new(),
                expected: Vec::new(),
                last: Since::now(),
                paused: false,
                cut: false,
            });
            return;
        };
        self.wake(&mut client);
        match self.dice.index(20) {
            // It disconnects in the middle of whatever it is doing.
            0 => return,
            1..4 => self.say(&mut client),
            4..12 => {
                let most = [1, 10, 3000, 20_000, 200_000][self.dice.index(5)];
                let most = 1 + self.dice.index(most);
                client.push(most);
            }
            _ => self.hear(&mut client),
        }
        // One that is cut is replaced, as one that disconnects.
        self.clients[slot] = (!client.cut).then_some(client);
    }

    /// Notes how long the client has paused before its turn.
    fn wake(&mut self, client: &mut Client) {
        if client.last.elapsed() > PAUSE && !client.paused {
            client.paused = true;
            self.paused += 1;
        }
        client.last = Since::now();
    }

    /// Adds one more command to the client.
    fn say(&mut self, client: &mut Client) {
        if client.unsent.len() > 2 << 20 {
            return;
        }
        let key = format!("{}-{}", client.name, self.dice.index(3));
        let lens = match self.lowest {
            None => [3, 9000, 17_000, 40_000, 150_000, 600_000],
            // Up to the largest value.
            Some(_) => [3, 9000, 17_000, 600_000, LEN_MAX, LEN_MAX],
        };
        let len = lens[self.dice.index(6)] + self.dice.index(1000);
        self.numbers += 1;
        let n = self.numbers;
        match self.dice.index(6) {
            0 => {
                client.unsent.extend(b"mn\r\n");
                client.expected.push(Expect::Exactly(b"MN\r\n".to_vec()));
            }
            1 => {
                let line = format!("add {key}-none 0 0 {len}\r\n");
                client.unsent.extend(line.bytes());
                client.unsent.extend(value(n, len));
                client.unsent.extend(b"xx");
                let answer = b"CLIENT_ERROR bad data chunk\r\n".to_vec();
                client.expected.push(Expect::Exactly(answer));
            }
            2 => {
                client
                    .unsent
                    .extend(format!("get nothing {key}-none\r\n").bytes());
                client.expected.push(Expect::Exactly(b"END\r\n".to_vec()));
            }
            _ => {
                let line = format!("set {key} 0 0 {len}\r\n");
                client.unsent.extend(line.bytes());
                client.unsent.extend(value(n, len));
                client.unsent.extend(b"\r\n");
                let known = self.keys.entry(key.clone()).or_default();
                known.possible.push((n, len));
                client.expected.push(Expect::Stored(key, n, len));
            }
        }
    }

    /// Reads what has arrived and compares it with the expected replies.
    fn hear(&mut self, client: &mut Client) {
        client.pull();
        while let Some(first) = client.expected.first() {
            let answer = match first {
                Expect::Exactly(answer) => &answer[..],
                Expect::Stored(..) => b"STORED\r\n",
            };
            if client.heard.len() < answer.len() {
                assert!(
                    answer.starts_with(&client.heard),
                    "{}",
                    client.heard.escape_ascii()
                );
                return;
            }
            assert!(
                client.heard.starts_with(answer),
                "{}",
                client.heard.escape_ascii()
            );
            client.heard.drain(..answer.len());
            if let Expect::Stored(key, n, len) = client.expected.remove(0)
                && let Some(known) = self.keys.get_mut(&key)
            {
                known.acknowledged = Some((n, len));
                known.possible.retain(|&(other, _)| other > n);
            }
        }
        assert!(client.heard.is_empty(), "{}", client.heard.escape_ascii());
    }

    /// Completes all commands and replies, then checks that the store holds every required value
    /// and no other.
    fn settle(mut self) {
        let begun = Since::now();
        let mut clients: Vec<Client> = self.clients.drain(..).flatten().collect();
        while !clients.is_empty() {
            for client in &mut clients {
                self.wake(client);
                client.push(64 << 10);
                self.hear(client);
            }
            clients.retain(|client| {
                !client.cut && (!client.unsent.is_empty() || !client.expected.is_empty())
            });
            assert!(begun.elapsed() < 3 * TIMEOUT, "{} are stuck", clients.len());
        }
        let evictions = stat(&self.server, "evictions");
        // In slabs, values of all sizes take a slab each, whatever room there is.
        let may_evict = self.lowest.is_some() || is_slab();
        assert!(evictions == 0 || may_evict, "{evictions}");
        let cut = stat(&self.server, "closed_stalled");
        assert!(cut <= self.paused, "{cut} are cut, {} paused", self.paused);
        let mut lost = 0;
        for (key, known) in &self.keys {
            let found = stored(&self.server, key);
            let mut may = known.acknowledged.iter().chain(&known.possible);
            let right = match &found {
                None if known.acknowledged.is_some() => {
                    lost += 1;
                    lost <= evictions
                }
                None => true,
                Some(found) => may.any(|&(n, len)| *found == value(n, len)),
            };
            assert!(right, "{key}: {:?} bytes", found.map(|found| found.len()));
            assert_eq!(stored(&self.server, &format!("{key}-none")), None);
        }
    }
}

impl Client {
    fn push(&mut self, most: usize) {
        let count = most.min(self.unsent.len());
        self.stream.set_nonblocking(true).unwrap();
        match self.stream.write(&self.unsent[..count]) {
            Ok(count) => drop(self.unsent.drain(..count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => self.is_cut(&error.to_string()),
        }
    }

    /// The server has closed the connection, which it may do if the client has paused.
    fn is_cut(&mut self, why: &str) {
        self.cut = true;
        let name = self.name;
        assert!(self.paused, "hung up on client {name}: {why}");
    }

    fn pull(&mut self) {
        self.stream.set_nonblocking(true).unwrap();
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.is_cut("closed"),
            Ok(count) => self.heard.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => self.is_cut(&error.to_string()),
        }
    }
}

/// The number of schedules: a few, or `HERDWICK_SCHEDULES`.
fn seeds() -> u64 {
    herdwick_check::count("HERDWICK_SCHEDULES", herdwick_check::length(2, 6))
}

#[test]
fn clients_that_disconnect_at_any_byte_affect_no_other() {
    for seed in 1..=seeds() {
        for (workers, clients) in [(1, 12), (3, 24)] {
            println!("seed {seed}, {workers} workers");
            let mut schedule = Schedule::new(seed, workers, clients);
            for _ in 0..3000 {
                schedule.step();
            }
            schedule.settle();
        }
    }
}

/// Uploads come, leave and are cut off while the limit is lowered below what they hold, and raised.
#[test]
fn uploads_end_well_while_the_memory_limit_moves() {
    for seed in 1..=seeds() {
        for (workers, clients) in [(1, 30), (3, 40)] {
            println!("seed {seed}, {workers} workers");
            let mut schedule = Schedule::limited(seed, workers, clients);
            for _ in 0..2000 {
                schedule.step();
            }
            schedule.settle();
        }
    }
}
