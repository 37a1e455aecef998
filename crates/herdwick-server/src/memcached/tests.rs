//! Tests of a worker's connections on real sockets; the test is the worker, and the other one.

use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    sync::mpsc::{self, Receiver},
};

use herdwick_herd::{RequestPath, hello::Offer};
use herdwick_mem::spsc::{self, Producer};
use herdwick_mica::StoreConfig;
use herdwick_request::{Clock, HashKey};
use mio::{Events, Poll, Token, Waker};

use super::*;
use crate::{
    context::Credentials,
    net::{listeners::Opened, unix::UnixSocket},
    runtime::{
        cross_core::CrossCore,
        parking::WakeupFd,
        partition::PassStart,
        partition_lock::{Own, Partitions},
        store::Store,
        time::ServerClock,
    },
    settings::{config::Config, tuning::MemoryLimit},
    telemetry::{snapshot::WorkerCounters, watch::EventQueue},
};

const WORKERS: usize = 2;
const MEMORY: usize = 2 << 20;
const HASH_KEY: HashKey = HashKey([1, 2]);
const START: PassStart = PassStart {
    now: Duration::ZERO,
    clock: Clock {
        epoch_unix: 0,
        second: Second(2),
    },
    unused: 0,
};

/// Worker 0 with its connections, and the queues of worker 1, which keeps its partition locked: so
/// what is asked of it is forwarded.
struct Fixture {
    front: MemcachedFront,
    intake: Producer<Stream>,
    partitions: Partitions,
    cross_cores: [CrossCore; WORKERS],
    counters: WorkerCounters,
    poll: Poll,
    timer: ServerClock,
    _watchers: Receiver<Asking>,
}

impl Fixture {
    fn new() -> Self {
        let store = StoreConfig {
            memory_bytes: MEMORY / WORKERS,
            item_bytes_max: 64 << 10,
            hash_key: HASH_KEY,
        };
        let stores = (0..WORKERS).map(|_| Store::new(&store).unwrap()).collect();
        let event_queues = (0..WORKERS).map(|_| EventQueue::new(Arc::default()).0);
        let poll = Poll::new().unwrap();
        let wakeup = WakeupFd::new(Waker::new(poll.registry(), Token(usize::MAX)).unwrap());
        let (cross_cores, _) = CrossCore::connect(&[wakeup.clone(), wakeup], None);
        let (intake, taken) = spsc::channel(4);
        let (writer, watchers) = mpsc::channel();
        let owners = Owners {
            hash_key: HASH_KEY,
            workers: WORKERS,
            own: 0,
        };
        let permits = Permits::new(4, WORKERS);
        Self {
            front: MemcachedFront::new(context(), hello(), owners, taken, writer, permits),
            intake,
            partitions: Partitions::new(stores, event_queues.collect(), 0, Vec::new()),
            cross_cores: cross_cores.try_into().ok().unwrap(),
            counters: WorkerCounters::default(),
            poll,
            timer: ServerClock::start(),
            _watchers: watchers,
        }
    }

    /// Connects a client that has sent `bytes`.
    fn connect(&mut self, bytes: &[u8]) -> UnixStream {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        for end in [&ours, &theirs] {
            end.set_nonblocking(true).unwrap();
        }
        theirs.write_all(bytes).unwrap();
        let stream = UnixSocket::new(mio::net::UnixStream::from_std(ours));
        assert!(self.intake.push(Stream::Unix(stream)).is_ok());
        theirs
    }

    /// Worker 0 makes a pass.
    fn pass(&mut self) {
        let kept = self.partitions.of(1).keep();
        let mut pass = Pass {
            start: START,
            timer: &self.timer,
            whole: true,
            goes_on: &mut false,
            own: Own::Shared(self.partitions.of(0)),
            partitions: &self.partitions,
            cross_core: &mut self.cross_cores[0],
            counters: &mut self.counters,
            registry: self.poll.registry(),
        };
        self.front.pass(&mut pass);
        self.cross_cores[0].depart();
        drop(kept);
    }

    /// Worker 1 executes the next forwarded batch.
    fn answer(&mut self) {
        assert!(self.answers(1), "a forwarded batch");
    }

    /// This worker executes the next forwarded batch, if there is one; returns whether there was.
    fn answers(&mut self, worker: usize) -> bool {
        let cross_core = &mut self.cross_cores[worker];
        let Some((peer, mut batch)) = cross_core.arrived() else {
            return false;
        };
        let mut own = Own::Shared(self.partitions.of(worker));
        let mut partition = own.lock(START);
        cross_core.execute((peer, &mut batch), &mut partition, &mut self.counters);
        drop(partition);
        cross_core.give_back(peer, batch);
        cross_core.depart();
        true
    }

    /// Worker 0 takes the events of its sockets.
    fn poll_all(&mut self) {
        let mut events = Events::with_capacity(64);
        self.poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        for event in &events {
            let (_, local) = Tokens::split(event.token());
            self.front.ready(local, event);
        }
    }

    /// Returns the connection that was made last.
    fn last(&self) -> &Connection {
        let connections = self.front.connections.iter().flatten();
        connections.last().expect("a connection")
    }

    /// Both workers work until `client` has received as much as `expected`; compares it.
    fn receives(&mut self, client: &mut UnixStream, expected: &[u8]) {
        let (mut said, mut piece) = (Vec::new(), vec![0; 1 << 16]);
        for pass in 0.. {
            if said.len() >= expected.len() {
                break;
            }
            assert!(pass < 100_000, "{}", said.escape_ascii());
            match client.read(&mut piece) {
                Ok(0) => panic!("closed after {}", said.escape_ascii()),
                Ok(count) => said.extend_from_slice(&piece[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            self.answers(0);
            self.answers(1);
            // What the client has taken makes its connection writable.
            self.poll_all();
            self.pass();
        }
        assert!(said == expected, "{}", said.escape_ascii());
    }

    /// Returns the number of `get`s whose time is recorded.
    fn timed_gets(&mut self) -> u64 {
        let histograms = self.front.latencies().unwrap();
        let mut requested = histograms.requested();
        let gets = requested.find(|(command, _)| command.name() == "get");
        gets.map_or(0, |(_, histogram)| histogram.count())
    }

    /// Stores a value of `len` bytes under `key`.
    fn store(&mut self, key: &str, len: usize) {
        let mut client = self.connect(format!("set {key} 0 0 {len}\r\n").as_bytes());
        client.set_nonblocking(false).unwrap();
        let mut writer = client.try_clone().unwrap();
        let data = "v".repeat(len) + "\r\n";
        let sender = std::thread::spawn(move || writer.write_all(data.as_bytes()));
        while !sender.is_finished() {
            self.poll_all();
            self.pass();
            self.answers(1);
        }
        client.set_nonblocking(true).unwrap();
        self.receives(&mut client, b"STORED\r\n");
    }

    fn open(&self) -> usize {
        self.front.connections.iter().flatten().count()
    }
}

fn context() -> Arc<Context> {
    let mut config = Config::local();
    config.memory_bytes = MEMORY;
    config.latency.histograms = true;
    let memory = MemoryLimit::new(MEMORY, 0);
    let opened = Opened::default();
    let credentials = Credentials::read(&config).unwrap();
    let limits = (WORKERS, memory);
    let context = Context::new(
        &config,
        limits,
        &opened,
        credentials,
        ((None, Arc::default()), None),
        START.clock,
    );
    Arc::new(context)
}

fn hello() -> Arc<HelloResponder> {
    let offer = Offer {
        workers: WORKERS,
        hash_key: HASH_KEY,
        item_bytes_max: 64 << 10,
        path: RequestPath::default(),
        engine: None,
        one_sided: None,
        secondary: None,
        fabrics: Vec::new(),
    };
    Arc::new(HelloResponder::new(offer, None, None, ServerClock::start()))
}

/// A key of worker 1.
fn key() -> String {
    key_of(1)
}

fn key_of(worker: usize) -> String {
    let mut keys = (0..).map(|n| format!("key{n}"));
    let is_its = |key: &String| HASH_KEY.hash(key.as_bytes()).partition(WORKERS) == worker;
    keys.find(is_its).unwrap()
}

/// A client disconnects while another worker has its request, and the next takes its place.
#[test]
fn reply_to_a_closed_connection_does_not_reach_the_next_in_its_place() {
    let mut worker = Fixture::new();
    let key = key();
    // The answer to the first command cannot be written, so the connection is closed.
    drop(worker.connect(format!("mn\r\nget {key}\r\n").as_bytes()));
    worker.pass();
    assert_eq!(worker.open(), 0);
    let set = format!("set {key} 0 0 1\r\n1\r\n");
    let mut next = worker.connect(set.as_bytes());
    worker.pass();
    assert_eq!((worker.open(), worker.front.connections.len()), (1, 1));
    let mut said = [0; 64];
    worker.answer();
    for _ in 0..2 {
        worker.pass();
    }
    let early = next.read(&mut said).map_err(|error| error.kind());
    assert_eq!(early, Err(ErrorKind::WouldBlock));
    worker.answer();
    for _ in 0..2 {
        worker.pass();
    }
    let count = next.read(&mut said).unwrap();
    assert_eq!(&said[..count], b"STORED\r\n");
}

/// Requests for which no forwarded batch is free leave the input when they are decoded: what is
/// executed later is their copy.
#[test]
fn requests_without_a_forwarded_batch_are_decoded_once() {
    let mut worker = Fixture::new();
    let (other, own) = (key(), key_of(0));
    let mut clients = Vec::new();
    // Each pass takes a batch along, and none comes back.
    while worker.counters.forward_batches_exhausted == 0 {
        let n = clients.len() % 10;
        let input =
            format!("set {other} 0 0 1\r\n{n}\r\nmg a2V5 b v k Oz\r\nget {own} {other}\r\n");
        clients.push((worker.connect(input.as_bytes()), n));
        worker.pass();
        assert!(clients.len() < 1000);
    }
    let connection = worker.last();
    assert!(connection.behind.is_some() && connection.input.data().is_empty());
    let mut flush = worker.connect(b"flush_all\r\nversion\r\n");
    worker.pass();
    let connection = worker.last();
    assert!(connection.command.is_some() && connection.input.data() == b"version\r\n");
    for (client, n) in &mut clients {
        let expected = format!("STORED\r\nEN ka2V5 b Oz\r\nVALUE {other} 0 1\r\n{n}\r\nEND\r\n");
        worker.receives(client, expected.as_bytes());
    }
    let version = format!("OK\r\nVERSION {}\r\n", crate::context::VERSION);
    worker.receives(&mut flush, version.as_bytes());
}

/// Reads without room for their replies leave the input, too, wherever they are executed.
#[test]
fn reads_without_room_for_their_replies_are_decoded_once() {
    const LEN: usize = 50_000;
    // Together fewer than a run has.
    const GETS: usize = 40;
    for keys in [vec![key_of(0)], vec![key_of(1)], vec![key_of(0), key_of(1)]] {
        let mut worker = Fixture::new();
        let value = "v".repeat(LEN);
        for key in &keys {
            worker.store(key, LEN);
        }
        let line = format!("mg {} v k Oq\r\nget {}\r\n", keys[0], keys.join(" "));
        let mut expected = String::new();
        for _ in 0..GETS {
            expected += &format!("VA {LEN} k{} Oq\r\n{value}\r\n", keys[0]);
            for key in &keys {
                expected += &format!("VALUE {key} 0 {LEN}\r\n{value}\r\n");
            }
            expected += "END\r\n";
        }
        let mut client = worker.connect(line.repeat(GETS).as_bytes());
        for _ in 0..8 {
            worker.pass();
            worker.answers(1);
        }
        assert!(worker.counters.reads_deferred > 0);
        assert!(worker.last().input.data().is_empty(), "{keys:?}");
        worker.receives(&mut client, expected.as_bytes());
    }
}

/// As many replies as the socket takes, and one more, of which it takes a part until the client reads: the
/// requests that the last belongs to are not over.
#[test]
fn time_of_a_request_includes_what_its_reply_waits_for_the_client() {
    const LEN: usize = 50_000;
    let key = key_of(0);
    let reply = format!("VALUE {key} 0 {LEN}\r\n{}\r\nEND\r\n", "v".repeat(LEN));
    for gets in 1.. {
        assert!(gets < 1000, "the socket takes everything");
        let mut worker = Fixture::new();
        worker.store(&key, LEN);
        let mut client = worker.connect(format!("get {key}\r\n").repeat(gets).as_bytes());
        for _ in 0..2 * gets {
            worker.pass();
        }
        let connection = worker.last();
        assert!(connection.behind.is_none() && connection.input.data().is_empty());
        let is_blocked = !connection.output.is_empty();
        assert_eq!(
            worker.timed_gets() < gets as u64,
            is_blocked,
            "{gets} requests"
        );
        worker.receives(&mut client, reply.repeat(gets).as_bytes());
        assert_eq!(worker.timed_gets(), gets as u64);
        if is_blocked {
            break;
        }
    }
}

/// A `stats` in one packet with a request waits for worker 1; the request does not.
#[test]
fn time_of_a_request_ends_before_what_a_command_behind_it_waits_for() {
    let key = key_of(0);
    for command in ["stats", "stats latency", "flush_all"] {
        let mut worker = Fixture::new();
        let _client = worker.connect(format!("get {key}\r\n{command}\r\n").as_bytes());
        worker.pass();
        assert!(worker.last().gather.is_some(), "{command}");
        assert_eq!(worker.timed_gets(), 1, "{command}");
    }
}
