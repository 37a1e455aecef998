//! Tests of a worker's connections on real sockets; the test is the worker, and the other one.

use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    sync::mpsc::{self, Receiver},
};

use herdwick_herd::{RequestPath, hello::Offer};
use herdwick_mem::spsc::{self, Producer};
use herdwick_mica::{Store, StoreConfig};
use herdwick_request::{Clock, HashKey};
use mio::{Poll, Token, Waker};

use super::*;
use crate::{
    context::Credentials,
    net::{listen::Opened, unix::UnixSocket},
    runtime::{
        cross_core::CrossCore,
        parking::WakeupFd,
        partition::PassStart,
        partition_lock::{Own, Partitions},
        time::ServerClock,
    },
    settings::{config::Config, tuning::MemoryLimit},
    telemetry::{counters::WorkerCounters, watch::Journal},
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
        let journals = (0..WORKERS).map(|_| Journal::new(Arc::default()).0);
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
            partitions: Partitions::new(stores, journals.collect(), 0),
            cross_cores: cross_cores.try_into().ok().unwrap(),
            counters: WorkerCounters::default(),
            poll,
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
        let other = &mut self.cross_cores[1];
        let (peer, mut batch) = other.arrived().expect("a forwarded batch");
        let mut own = Own::Shared(self.partitions.of(1));
        let mut partition = own.lock(START);
        other.execute((peer, &mut batch), &mut partition, &mut self.counters);
        drop(partition);
        other.give_back(peer, batch);
        other.depart();
    }

    fn open(&self) -> usize {
        self.front.connections.iter().flatten().count()
    }
}

fn context() -> Arc<Context> {
    let mut config = Config::local();
    config.memory_bytes = MEMORY;
    let memory = MemoryLimit::new(MEMORY, 0);
    let opened = Opened::default();
    let credentials = Credentials::read(&config).unwrap();
    let limits = (WORKERS, memory);
    let context = Context::new(&config, limits, &opened, credentials, None, START.clock);
    Arc::new(context)
}

fn hello() -> Arc<HelloResponder> {
    let offer = Offer {
        workers: WORKERS,
        hash_key: HASH_KEY,
        item_bytes_max: 64 << 10,
        path: RequestPath::default(),
        engine: None,
        fabrics: Vec::new(),
    };
    Arc::new(HelloResponder::new(offer, None, None, ServerClock::start()))
}

/// A key of worker 1.
fn key() -> String {
    let mut keys = (0..).map(|n| format!("key{n}"));
    let is_of_1 = |key: &String| HASH_KEY.hash(key.as_bytes()).partition(WORKERS) == 1;
    keys.find(is_of_1).unwrap()
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
