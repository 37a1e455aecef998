//! This server's store as a cache under measurement, in the trace's time.

use hdrhistogram::Histogram;
use herdwick_mica::{Store, StoreConfig};
use herdwick_request::{
    Clock, Execute, Get, HashKey, ITEM_BYTES_MAX, Mode, Op as StoreOp, Put, Reply,
    Request as Asked, Second, Sink, Status,
};

use super::{
    model::Answer,
    score::{Cache, Score, is_signed, key_text, sign},
    table::{Op, Request},
};
use crate::{
    BenchError,
    host::{ProcessCpu, Stopwatch},
    report::Latency,
};

/// An arbitrary hash key: the keys are not hostile.
const HASH_KEY: HashKey = HashKey([0x7472, 0x6163]);

/// Longer requests count as of this length.
const LONGEST_NS: u64 = 10_000_000_000;
/// Significant digits of times.
const DIGITS: u8 = 2;

/// A store of one partition.
pub(super) struct LocalStore {
    store: Store,
    value: Vec<u8>,
    clock: Stopwatch,
    /// Nanoseconds of each request since the warm-up.
    times: Histogram<u64>,
}

impl LocalStore {
    /// Creates a store in `room` bytes, index included. The second value is a function that returns
    /// how much memory the store has made resident, in MiB.
    pub(super) fn new(room: u64) -> Result<(Self, impl Fn() -> Option<f64> + use<>), BenchError> {
        let process = ProcessCpu::new(std::process::id());
        // What the process held before is not the store's.
        let before = process.resident_mb();
        let store = Store::new(&StoreConfig {
            memory_bytes: room as usize,
            item_bytes_max: ITEM_BYTES_MAX,
            hash_key: HASH_KEY,
        })?;
        let value = vec![b'v'; ITEM_BYTES_MAX];
        let resident = move || Some((process.resident_mb()? - before?).max(0.0));
        let own = Self {
            store,
            value,
            clock: Stopwatch::start(),
            times: Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("valid bounds"),
        };
        Ok((own, resident))
    }

    fn execute(&mut self, request: &Request, op: Op) -> Heard {
        // The key and the header are part of an item.
        let size = (request.size as usize).min(ITEM_BYTES_MAX - 1024);
        sign(&mut self.value[..size], request.key);
        let put = |mode| {
            StoreOp::Put(Put {
                mode,
                value: &self.value[..size],
                exptime: request.ttl,
                ..Put::default()
            })
        };
        let key = key_text(request.key);
        let asked = Asked {
            hash: HASH_KEY.hash(&key),
            key: &key,
            op: match op {
                Op::Get => StoreOp::Get(Get::default()),
                Op::Set => put(Mode::Set),
                Op::Append => put(Mode::Append),
                Op::Delete => StoreOp::Delete(Default::default()),
            },
        };
        let clock = Clock {
            epoch_unix: 0,
            second: Second(request.second),
        };
        let mut heard = Heard {
            key: request.key,
            found: None,
            wrong: false,
        };
        let start_ns = self.clock.ns();
        // One at a time: a miss is stored before the next request.
        self.store.execute(clock, &[asked], &mut heard);
        self.times.saturating_record(self.clock.ns() - start_ns);
        heard
    }
}

/// The store's answer to one request.
struct Heard {
    key: u64,
    found: Option<u64>,
    wrong: bool,
}

impl Sink for Heard {
    fn reply(&mut self, _: usize, reply: &Reply<'_>) {
        if let (Status::Done, Some(item)) = (reply.status, &reply.item) {
            self.found = Some(item.value.len() as u64);
            self.wrong = !is_signed(item.value, self.key);
        }
    }
}

impl Cache for LocalStore {
    fn take_times(&mut self) -> Option<Latency> {
        let times = Latency::of(&self.times);
        self.times.reset();
        times
    }

    fn run(&mut self, requests: &[Request], _: usize, score: &mut Score) -> Result<(), BenchError> {
        for request in requests {
            let heard = self.execute(request, request.op);
            if request.op != Op::Get {
                continue;
            }
            score.wrong_values += u64::from(heard.wrong);
            match heard.found {
                Some(bytes) => score.count(request, Answer::Hit(bytes)),
                None => {
                    score.count(request, Answer::Miss);
                    self.execute(request, Op::Set);
                }
            }
        }
        Ok(())
    }
}
