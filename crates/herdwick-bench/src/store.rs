//! The store alone: one pinned thread, one partition, batches of requests laid out beforehand. In published
//! memory, also what a client's core does that reads it without the store.

use herdwick_layout::published::{Look, Pointer, View};
use herdwick_mem::Span;
use herdwick_mica::{Store, StoreConfig};
use herdwick_request::{
    Clock, Execute, Get, HashKey, ITEM_BYTES_MAX, Item, KeyHash, Op, Put, Reply, Request, Second,
    Sink, Status,
};

use crate::{
    BenchError, Config, Progress, SEED,
    compare::{manifest, rtt, subject},
    cost,
    counters::RunCounters,
    host::{Placement, Stopwatch, pin, thread_cpu_ns},
    progress::on_own_thread,
    report::{BeforeAfter, CpuPerOp, FigureClass, Outcome, Report, Run, SCHEMA, Subject},
    workload::{KeySpace, Mix, Step, Trace},
};

/// Requests whose keys and values are laid out before they are executed, which is also the number
/// between two readings of the clock. Small enough for the first-level cache.
const BLOCK: usize = 256;
/// A constant time: nothing expires here.
const CLOCK: Clock = Clock {
    epoch_unix: 0,
    second: Second(1),
};
/// An arbitrary hash key: the keys are not hostile.
const HASH_KEY: HashKey = HashKey([0x6865_7264, 0x7769_636b]);

/// Measures reads and writes of the bare store.
///
/// # Errors
/// Not enough memory, or invalid options.
pub fn store(config: &Config, watch: &mut dyn FnMut(&Progress)) -> Result<Report, BenchError> {
    let space = config.checked()?;
    on_own_thread(watch, |watch| Bare::new(config, space)?.report(watch))
}

struct Bare<'a> {
    config: &'a Config,
    placement: Placement,
    store: Store,
    /// The memory of a published store, as a client maps it.
    published: Option<View<Span>>,
    block: PreparedRequests,
}

/// Who finds what a request is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GetBy {
    Store,
    /// Its memory is read; requests that this does not answer count as misses.
    Reader,
}

impl<'a> Bare<'a> {
    fn new(config: &'a Config, space: KeySpace) -> Result<Self, BenchError> {
        let placement = config.placement();
        pin(&placement.server[..1]);
        let of = StoreConfig {
            memory_bytes: (config.memory_mb() as usize) << 20,
            item_bytes_max: ITEM_BYTES_MAX,
            hash_key: HASH_KEY,
        };
        let (store, published) = if config.published {
            let (store, published) = Store::published(&of)?;
            (store, View::open(published.words))
        } else {
            (Store::new(&of)?, None)
        };
        Ok(Self {
            config,
            placement,
            store,
            published,
            block: PreparedRequests::new(space),
        })
    }

    fn report(&mut self, watch: &mut dyn FnMut(&Progress)) -> Result<Report, BenchError> {
        self.fill(watch)?;
        let kinds = [
            ("get", 1.0, GetBy::Store),
            ("put", 0.0, GetBy::Store),
            ("one-sided", 1.0, GetBy::Reader),
        ];
        let kinds = kinds
            .into_iter()
            .filter(|(_, _, by)| *by == GetBy::Store || self.published.is_some());
        let traces = kinds.map(|(name, get_share, by)| {
            let Config { dist, keys, .. } = *self.config;
            let mut trace = Trace::new(
                Mix::GetShare(get_share),
                dist,
                keys,
                self.config.trace_steps(),
                SEED,
            );
            trace.hash(&HASH_KEY, &self.block.space);
            (name, get_share, by, trace)
        });
        let mut traces: Vec<_> = traces.collect();
        let generators: Vec<_> = traces
            .iter_mut()
            .map(|(_, _, _, trace)| self.generator_ns(trace))
            .collect();
        let mut runs = vec![Vec::new(); traces.len()];
        let before = rtt(&self.placement);
        for turn in 1..=self.config.runs {
            let parts = traces.iter_mut().zip(&mut runs).zip(&generators);
            for (((name, _, by, trace), runs), generator_ns) in parts {
                let before = rtt(&self.placement);
                let mut run = self.run(*by, trace, &format!("{name} {turn}"), watch);
                run.line_rtt_ns = BeforeAfter::lines(before, rtt(&self.placement));
                run.generator_ns_per_op = Some(*generator_ns);
                runs.push(run);
            }
        }
        let lines = BeforeAfter::lines(before, rtt(&self.placement));
        let results = traces
            .iter()
            .zip(&runs)
            .map(|((name, get_share, ..), runs)| Outcome::of(self.subject(name, *get_share), runs));
        Ok(Report {
            schema: SCHEMA,
            results: results.collect(),
            manifest: self.manifest(lines),
        })
    }

    fn manifest(&self, lines: BeforeAfter) -> crate::Manifest {
        let mut manifest = manifest(self.config, &self.placement, &[], lines);
        FABRIC.clone_into(&mut manifest.fabric);
        FigureClass::Soft.name().clone_into(&mut manifest.word);
        let knobs = &mut manifest.knobs;
        knobs.batch = Some(self.config.batch);
        knobs.published = self.config.published.then_some(true);
        knobs.memory_mb = Some(self.config.memory_mb());
        (knobs.clients, knobs.workers, knobs.rate) = (None, None, None);
        "get,put".clone_into(&mut knobs.workload);
        manifest
    }

    fn subject(&self, workload: &str, get_share: f64) -> Subject {
        Subject {
            system: "store".to_owned(),
            fabric: FABRIC.to_owned(),
            workload: workload.to_owned(),
            get_share,
            workers: Some(1),
            clients: 1,
            ..subject(self.config, FigureClass::Soft)
        }
    }

    /// Stores every key once.
    fn fill(&mut self, watch: &mut dyn FnMut(&Progress)) -> Result<(), BenchError> {
        let mut trace = Trace::fill(0..self.config.keys as u32);
        trace.hash(&HASH_KEY, &self.block.space);
        let (clock, keys) = (Stopwatch::start(), self.config.keys);
        let mut counters = RunCounters::new();
        loop {
            self.block.lay_out(&mut trace, BLOCK);
            // A trace of all keys ends, and the block behind it is empty.
            if self.pass(GetBy::Store, &mut counters) == 0 {
                break;
            }
            let operations = counters.puts;
            if operations.is_multiple_of(BLOCK as u64 * 1024) {
                let seconds = clock.ns() as f64 / 1e9;
                let what = "fill".to_owned();
                watch(&Progress {
                    what,
                    operations,
                    seconds,
                    of: Some(keys),
                });
            }
        }
        match counters.errors {
            0 => Ok(()),
            refused => Err(BenchError::Fill { refused, keys }),
        }
    }

    /// Returns nanoseconds per operation of executing a block and checking its replies: the same
    /// loop over a store that answers at once. Laying the block out is not included.
    fn generator_ns(&mut self, trace: &mut Trace) -> f64 {
        let (batch, count) = (self.config.batch, cost::block(&self.block.space));
        let mut instant = InstantStore {
            answers: cost::Answers::new(self.block.space),
            at: 0,
        };
        let (block, mut counters) = (&mut self.block, RunCounters::new());
        cost::ns_per_op(|clock| {
            block.lay_out(trace, count);
            let steps = block.steps.iter().map(|(step, _)| *step);
            instant.answers.lay_out(steps);
            instant.at = 0;
            let start_ns = clock.ns();
            let operations = block.execute(&mut instant, batch, &mut counters);
            (clock.ns() - start_ns, operations as u64)
        })
    }

    fn run(
        &mut self,
        by: GetBy,
        trace: &mut Trace,
        name: &str,
        watch: &mut dyn FnMut(&Progress),
    ) -> Run {
        let mut counters = RunCounters::new();
        self.pass_for(self.config.warmup_seconds(), by, trace, &mut counters);
        counters.clear();
        let cpu_ns = thread_cpu_ns();
        let spent = self.pass_for(self.config.seconds, by, trace, &mut counters);
        // The thread never waits, so its CPU time divides in proportion to wall-clock time.
        let cpu_ns = (thread_cpu_ns() - cpu_ns) as f64 * spent.in_store_ns as f64
            / spent.elapsed_ns.max(1) as f64;
        let operations = counters.operations();
        let seconds = spent.in_store_ns as f64 / 1e9;
        watch(&Progress {
            what: name.to_owned(),
            operations,
            seconds,
            of: None,
        });
        Run {
            ops_per_s: operations as f64 / seconds,
            hit_ratio: counters.hit_ratio(),
            errors: counters.errors,
            wrong_values: counters.wrong_values,
            batch_mean: Some(self.config.batch as f64),
            cpu_ns_per_op: match (by, Some(cpu_ns / operations.max(1) as f64)) {
                (GetBy::Store, server) => CpuPerOp {
                    server,
                    client: None,
                },
                (GetBy::Reader, client) => CpuPerOp {
                    // The server does nothing for a reader.
                    server: Some(0.0),
                    client,
                },
            },
            ..Run::default()
        }
    }

    fn pass_for(
        &mut self,
        seconds: f64,
        by: GetBy,
        trace: &mut Trace,
        counters: &mut RunCounters,
    ) -> Spent {
        let (clock, end_ns) = (Stopwatch::start(), (seconds * 1e9) as u64);
        let mut spent = Spent::default();
        while spent.elapsed_ns < end_ns {
            self.block.lay_out(trace, BLOCK);
            let start_ns = clock.ns();
            self.pass(by, counters);
            spent.elapsed_ns = clock.ns();
            spent.in_store_ns += spent.elapsed_ns - start_ns;
        }
        spent
    }

    /// Executes the block in batches; returns its number of requests.
    fn pass(&mut self, by: GetBy, counters: &mut RunCounters) -> usize {
        match (by, &self.published) {
            (GetBy::Reader, Some(view)) => self.block.read(view, self.config.batch, counters),
            _ => self
                .block
                .execute(&mut self.store, self.config.batch, counters),
        }
    }
}

/// The time of a run.
#[derive(Clone, Copy, Default)]
struct Spent {
    elapsed_ns: u64,
    /// Time in the store and in the check of its replies. The rate of the store excludes laying out
    /// requests, since a server receives them laid out.
    in_store_ns: u64,
}

/// Name of the fabric in the report: the bare store has none.
const FABRIC: &str = "none";

/// Requests with their keys and values, contiguous in memory.
struct PreparedRequests {
    space: KeySpace,
    steps: Vec<(Step, KeyHash)>,
    keys: Vec<u8>,
    values: Vec<u8>,
    version: u32,
}

impl PreparedRequests {
    fn new(space: KeySpace) -> Self {
        Self {
            space,
            steps: Vec::with_capacity(BLOCK),
            keys: space.key_filler().repeat(BLOCK),
            values: vec![0; space.value_size() * BLOCK],
            version: 0,
        }
    }

    fn lay_out(&mut self, trace: &mut Trace, count: usize) {
        self.steps.clear();
        self.steps
            .extend(std::iter::from_fn(|| trace.take_hashed()).take(count));
        let keys = self.keys.chunks_exact_mut(self.space.key_size());
        for ((step, _), key) in self.steps.iter().zip(keys) {
            self.space.key_digits(step.key(), key);
        }
        // Chunks of 0 bytes would panic.
        if self.space.value_size() == 0 {
            return;
        }
        let values = self.values.chunks_exact_mut(self.space.value_size());
        for ((step, _), value) in self
            .steps
            .iter()
            .zip(values)
            .filter(|((s, _), _)| s.is_put())
        {
            self.version = self.version.wrapping_add(1);
            self.space.value(step.key(), self.version, value);
        }
    }

    fn execute(&self, store: &mut impl Execute, batch: usize, counters: &mut RunCounters) -> usize {
        let mut requests = Vec::with_capacity(batch.min(BLOCK));
        // `Config::checked` refuses a batch of 0, which would panic.
        for first in (0..self.steps.len()).step_by(batch) {
            let steps = &self.steps[first..self.steps.len().min(first + batch)];
            requests.clear();
            requests.extend((first..first + steps.len()).map(|i| self.request(i)));
            let mut check = Check {
                space: &self.space,
                steps,
                counters,
            };
            store.execute(CLOCK, &requests, &mut check);
        }
        self.steps.len()
    }

    /// Reads the keys of the block, a batch at a time: first the buckets are prefetched, then the items.
    fn read(&self, view: &View<Span>, batch: usize, counters: &mut RunCounters) -> usize {
        let mut pointers: Vec<Option<Pointer>> = Vec::with_capacity(batch.min(BLOCK));
        let mut copy = Vec::with_capacity(ITEM_BYTES_MAX);
        for first in (0..self.steps.len()).step_by(batch) {
            let steps = &self.steps[first..self.steps.len().min(first + batch)];
            steps.iter().for_each(|(_, hash)| view.prefetch(*hash));
            pointers.clear();
            pointers.extend(steps.iter().map(|(_, hash)| view.locate(*hash, 0)));
            for (index, &(step, hash)) in steps.iter().enumerate() {
                let key = self.key(first + index);
                let (mut pointer, mut skip) = (pointers[index], 0);
                let hit = loop {
                    let Some(at) = pointer else { break None };
                    match view.look(&at, key, ITEM_BYTES_MAX, || Some(CLOCK.second), &mut copy) {
                        Look::Hit(hit) => break Some(hit),
                        Look::Unsure(_) => break None,
                        // Another key with the same tag: the next entry may be the one.
                        Look::Other(_) => skip += 1,
                    }
                    pointer = view.locate(hash, skip);
                };
                match hit {
                    None => counters.misses += 1,
                    Some(hit) if self.space.check(step.key(), &copy[hit.front..]) => {
                        counters.hits += 1;
                    }
                    Some(_) => counters.wrong_values += 1,
                }
            }
        }
        self.steps.len()
    }

    fn key(&self, index: usize) -> &[u8] {
        let size = self.space.key_size();
        &self.keys[index * size..][..size]
    }

    fn request(&self, index: usize) -> Request<'_> {
        let (step, hash) = self.steps[index];
        let value_size = self.space.value_size();
        let op = if step.is_put() {
            Op::Put(Put {
                value: &self.values[index * value_size..][..value_size],
                ..Put::default()
            })
        } else {
            Op::Get(Get::default())
        };
        Request {
            hash,
            key: self.key(index),
            op,
        }
    }
}

/// A store that executes nothing and finds every key.
struct InstantStore {
    answers: cost::Answers,
    /// Requests of the block before the current batch.
    at: usize,
}

impl Execute for InstantStore {
    fn execute(&mut self, _: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        for (index, request) in batch.iter().enumerate() {
            let is_put = matches!(request.op, Op::Put(_));
            let value = if is_put {
                &[]
            } else {
                self.answers.value(self.at + index)
            };
            let item = Item::plain(value, 1);
            sink.reply(index, &Reply::with(Status::Done, item));
        }
        self.at += batch.len();
    }
}

struct Check<'a> {
    space: &'a KeySpace,
    steps: &'a [(Step, KeyHash)],
    counters: &'a mut RunCounters,
}

impl Sink for Check<'_> {
    #[inline]
    fn reply(&mut self, index: usize, reply: &Reply<'_>) {
        let step = self.steps[index].0;
        match (reply.status, &reply.item) {
            (Status::Done, _) if step.is_put() => self.counters.puts += 1,
            (Status::Done, Some(item)) if self.space.check(step.key(), item.value) => {
                self.counters.hits += 1;
            }
            (Status::Done, _) => self.counters.wrong_values += 1,
            (Status::NotFound, _) if !step.is_put() => self.counters.misses += 1,
            _ => self.counters.errors += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Config {
        Config {
            keys: 10_000,
            seconds: 0.05,
            runs: 2,
            memory_mb: Some(16),
            ..Config::default()
        }
    }

    #[test]
    fn reads_hit_and_writes_store() {
        let report = store(&small(), &mut |_| {}).unwrap();
        let [get, put] = &report.results[..] else {
            panic!("{report:?}");
        };
        assert_eq!(
            (get.subject.workload.as_str(), put.subject.workload.as_str()),
            ("get", "put")
        );
        assert_eq!((get.hit_ratio, put.hit_ratio), (Some(1.0), None));
        assert!(get.ops_per_s > 0.0 && put.ops_per_s > 0.0);
        assert!(report.is_sound());
        assert_eq!((get.runs, get.latency_us), (2, None));
    }

    #[test]
    fn published_store_is_read_without_it() {
        let config = Config {
            published: true,
            ..small()
        };
        let report = store(&config, &mut |_| {}).unwrap();
        let [_, _, read] = &report.results[..] else {
            panic!("{report:?}");
        };
        assert_eq!(read.subject.workload, "one-sided");
        assert_eq!((read.hit_ratio, read.wrong_values), (Some(1.0), 0));
        assert_eq!(report.manifest.knobs.published, Some(true));
    }

    #[test]
    fn items_that_do_not_fit_are_counted_as_misses() {
        let config = Config {
            keys: 200_000,
            memory_mb: Some(5),
            ..small()
        };
        let report = store(&config, &mut |_| {}).unwrap();
        let ratio = report.results[0].hit_ratio.unwrap();
        assert!(ratio < 0.9, "{ratio}");
    }

    #[test]
    fn value_of_another_key_is_detected() {
        let space = KeySpace::new(10, 16, 32).unwrap();
        let (mut counters, mut value) = (RunCounters::new(), [0; 32]);
        space.value(3, 1, &mut value);
        let steps = [3, 4].map(|key| (Step::get(key), KeyHash(0)));
        let mut check = Check {
            space: &space,
            steps: &steps,
            counters: &mut counters,
        };
        let item = Item::plain(&value, 1);
        check.reply(0, &Reply::with(Status::Done, item));
        check.reply(1, &Reply::with(Status::Done, item));
        assert_eq!((counters.hits, counters.wrong_values), (1, 1));
    }
}
