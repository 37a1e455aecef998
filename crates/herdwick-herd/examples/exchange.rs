//! A client and a worker of HERD over shared memory, in one thread, for counting their instructions:
//!
//! ```text
//! cargo build --release -p herdwick-herd --example exchange
//! valgrind --tool=callgrind target/release/examples/exchange 128 100000
//! ```
//!
//! The arguments are the window, the number of requests, and the share of writes in percent (5).
//! Keys of 16 bytes are drawn from a Zipf distribution of .99, values have 32 bytes. The client
//! takes replies and fills its window, the worker makes one pass over it, and so on, by turns.
//! `tests/bench/herd.sh` prints the instructions a request.
#![forbid(unsafe_code)]

use std::{env::args, time::Duration};

use herdwick_check::Rng;
use herdwick_fabric::Device;
use herdwick_herd::{
    ClientEnd, ClientSetup, ClientTerms, Outcome, RequestPath, ServerEnd, ServerTerms,
    handshake::WorkerTickets,
    hello::Grant,
    wire::{Epoch, ReplyStatus, Window},
};
use herdwick_mica::{Store, StoreConfig};
use herdwick_request::{Clock, Get, HashKey, KeyHash, Op, Put, Reply, Request, Second};
use herdwick_shm::{PdSize, ShmDevice, ShmPort};

const KEYS: usize = 10_000;
const THETA: f64 = 0.99;
/// Steps drawn beforehand; longer runs repeat them.
const STEPS: usize = 16_384;
const HASH_KEY: HashKey = HashKey([1, 2]);
const REPLY_BYTES_MAX: usize = 4096;
const NEVER: Duration = Duration::from_secs(1 << 30);
const CLOCK: Clock = Clock {
    epoch_unix: 0,
    second: Second(1),
};

struct Step {
    key: [u8; 16],
    hash: KeyHash,
    is_put: bool,
}

fn key(rank: usize) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    for (digit, place) in key.iter_mut().rev().zip(0..12) {
        *digit = b'0' + (rank / 10_usize.pow(place) % 10) as u8;
    }
    key
}

fn steps(percent_puts: u64) -> Vec<Step> {
    let mut sum = 0.0;
    let weights = (1..=KEYS).map(|rank| (rank as f64).powf(-THETA));
    let sums: Vec<f64> = weights
        .map(|weight| {
            sum += weight;
            sum
        })
        .collect();
    let mut chance = Rng::new(1);
    let draw = |_| {
        let at = chance.unit() * sum;
        let key = key(sums.partition_point(|sum| *sum < at));
        Step {
            hash: HASH_KEY.hash(&key),
            key,
            is_put: chance.below(100) < percent_puts,
        }
    };
    (0..STEPS).map(draw).collect()
}

fn connect(window: Window) -> (ServerEnd<ShmPort>, ClientEnd<ShmPort>) {
    let (host, guest) = (ShmDevice::host(PdSize::default()), ShmDevice::client());
    let (path, epoch) = (RequestPath::UcWrite, Epoch::new(1).expect("not zero"));
    let terms = ServerTerms {
        worker: 0,
        workers: 1,
        clients_max: 1,
        spin: Duration::MAX,
        reply_bytes_max: REPLY_BYTES_MAX,
    };
    let mut server = ServerEnd::open(&host, &terms).expect("a worker");
    let pd = host
        .create_pd_for(&mut server.port, &path.pd_room(window))
        .expect("a domain");
    let resources = server
        .allocate(&host, pd, path, window)
        .expect("memory of the lease");
    let ticket = host.export_pd(&mut server.port, pd).expect("a ticket");
    let (blob, fds) = (ticket.blob.clone(), ticket.fds.len() as u8);
    let grant = Grant {
        epoch: epoch.get(),
        window: window.slots() as u16,
        reply_bytes_max: REPLY_BYTES_MAX as u32,
        workers: vec![server.grant(&host, &resources, blob, fds).expect("a grant")],
    };
    let terms = ClientTerms {
        path,
        window,
        epoch,
        reply_bytes_max: REPLY_BYTES_MAX,
        retry_after: NEVER,
        retry_after_max: NEVER,
        deadline: NEVER,
    };
    let mut client = ClientSetup::open(&guest, 1, &terms).expect("a client");
    let tickets = WorkerTickets {
        domain: ticket,
        store: None,
    };
    let accept = client.accept(&guest, &grant, vec![tickets]);
    for peer in accept.expect("the grant").workers {
        server
            .admit(&host, &resources, &peer, epoch, REPLY_BYTES_MAX)
            .expect("attached");
    }
    (server, client.finish().expect("RECVs"))
}

fn request<'a>(step: &'a Step, value: &'a [u8]) -> Request<'a> {
    let op = if step.is_put {
        Op::Put(Put {
            value,
            ..Put::default()
        })
    } else {
        Op::Get(Get::default())
    };
    Request {
        hash: step.hash,
        key: &step.key,
        op,
    }
}

fn main() {
    let mut numbers = args().skip(1).map(|text| text.parse::<usize>());
    let mut number = |or| {
        numbers
            .next()
            .map_or(or, |number| number.expect("a number"))
    };
    let (window, requests, puts, passes) = (number(128), number(100_000), number(5), number(1));
    let steps = steps(puts as u64);
    let config = StoreConfig {
        memory_bytes: 8 << 20,
        item_bytes_max: 64 << 10,
        hash_key: HASH_KEY,
    };
    let mut store = Store::new(&config).expect("a store");
    let value = [b'v'; 32];
    for step in &steps {
        let put = Step {
            is_put: true,
            ..*step
        };
        let batch = [request(&put, &value)];
        store.execute_hashed(
            CLOCK,
            &batch,
            herdwick_mica::Hashes::Computed,
            &mut |_, _: &Reply<'_>| {},
        );
    }
    let (mut server, mut client) = connect(Window::new(window).expect("a power of two up to 256"));
    let (mut sent, mut done) = (0, 0);
    while done < requests {
        let now = Duration::from_nanos(done as u64 + 1);
        client.side.poll(&mut client.port, now, &mut |_, outcome| {
            let Outcome::Answered(answer) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!(answer.status, ReplyStatus::Done);
            done += 1;
        });
        while sent < requests {
            let request = request(&steps[sent % STEPS], &value);
            if client.side.submit(&request, sent as u64).is_err() {
                break;
            }
            sent += 1;
        }
        client.side.flush(&mut client.port, now);
        for _ in 0..passes {
            server
                .side
                .round(&mut server.port, (now, CLOCK), &mut store);
        }
    }
    println!(
        "{done} requests, {} batches",
        server.side.counters().batches
    );
}
