//! The cache benchmark: this server beside the memcached in the path at equal resident memory; the
//! share of reads that hit, and the memory per item.

mod client;
mod pattern;
mod traces;

use crate::{
    BenchError, Config, Fabric, Progress, SEED,
    compare::{manifest, rtt, subject},
    counters::RunCounters,
    host::{Placement, Stopwatch, pin},
    progress::on_own_thread,
    report::{BeforeAfter, Knobs, Manifest, Outcome, Report, Run, SCHEMA, Subject},
    server::Server,
    workload::{KeySpace, Step},
};
use client::CacheClient;
use pattern::{PATTERNS, Pattern, Requests};
pub use traces::TraceError;

/// Sizes of memory, in percent of the data set.
const PERCENTS: [u64; 2] = [10, 30];
/// Approximate bytes that memcached keeps besides key and value. Only the first estimate of its
/// `-m` depends on it.
const MEMCACHED_OVERHEAD: u64 = 64;
/// Requests per key: this many for the warm-up, and as many measured.
const REQUESTS_PER_KEY: u64 = 2;
/// Starts of this server that are tried to find the `-m` at which it uses as much memory as
/// memcached.
const TRIES: usize = 4;
/// Up to this much less resident memory than memcached counts as equal, in MiB.
const NEAR_MB: f64 = 1.0;
/// The smallest `-m` of this server that is tried.
const MEMORY_MIN_MB: u64 = 7;
/// `-c` of this server: more than the benchmark opens.
const CONNECTIONS_MAX: usize = 64;
/// Requests between two reports of progress.
const WATCH_EVERY: u64 = 1 << 14;

/// Measures this server beside memcached.
///
/// # Errors
/// A server did not start, or failed.
pub fn cache(config: &Config, watch: &mut dyn FnMut(&Progress)) -> Result<Report, BenchError> {
    if !config.traces.is_empty() {
        return traces::traces(config, watch);
    }
    let space = config.checked()?;
    let placement = config.placement();
    on_own_thread(watch, |watch| {
        pin(placement.client(0));
        let bench = CacheBench {
            config,
            space,
            placement: &placement,
        };
        bench.report(watch)
    })
}

struct CacheBench<'a> {
    config: &'a Config,
    space: KeySpace,
    placement: &'a Placement,
}

/// One measurement of both servers: a pattern, and a size of memory.
#[derive(Clone, Copy)]
struct Cell {
    pattern: Pattern,
    percent: u64,
}

/// A server filled to its memory limit.
struct FilledServer {
    server: Server,
    client: CacheClient,
    counters: RunCounters,
}

impl FilledServer {
    fn resident_mb(&self) -> f64 {
        let cpu = self.server.cpu.as_ref();
        cpu.and_then(|cpu| cpu.resident_mb()).unwrap_or_default()
    }
}

impl CacheBench<'_> {
    fn report(&self, watch: &mut dyn FnMut(&Progress)) -> Result<Report, BenchError> {
        let before = rtt(self.placement);
        let mut results = Vec::new();
        for percent in PERCENTS {
            for pattern in PATTERNS {
                let cell = Cell { pattern, percent };
                let mut memcached = self.full_memcached(cell, watch)?;
                results.push(self.measure(cell, &mut memcached, watch)?);
                let resident = memcached.resident_mb();
                // Both run on the same CPUs.
                drop(memcached);
                let mut own = self.full_own(cell, resident, watch)?;
                results.push(self.measure(cell, &mut own, watch)?);
            }
        }
        let lines = BeforeAfter::lines(before, rtt(self.placement));
        let manifest = manifest(self.config, self.placement, &[Fabric::Tcp], lines);
        Ok(Report {
            schema: SCHEMA,
            results,
            manifest: Manifest {
                knobs: self.knobs(manifest.knobs),
                ..manifest
            },
        })
    }

    /// Returns the options with those that do not apply here replaced.
    fn knobs(&self, knobs: Knobs) -> Knobs {
        Knobs {
            workload: PATTERNS.map(Pattern::name).join(","),
            runs: 1,
            clients: Some(1),
            workers: Some(1),
            connections: Some(1),
            pipeline: Some(client::BATCH),
            trace_steps: self.requests() as usize,
            seed: SEED,
            memory_mb: None,
            ..knobs
        }
    }

    /// Returns the requests measured in each cell.
    fn requests(&self) -> u64 {
        self.config.keys * REQUESTS_PER_KEY
    }

    fn full_memcached(
        &self,
        cell: Cell,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<FilledServer, BenchError> {
        let item = (self.config.key_size + self.config.value_size) as u64 + MEMCACHED_OVERHEAD;
        let memory_mb = (self.config.keys * item * cell.percent / 100) >> 20;
        let program = &self.config.program;
        let cpus = &self.placement.server;
        let server = Server::start_memcached(program, cpus, memory_mb.max(2))?;
        self.fill(server, cell, watch)
    }

    /// Starts and fills this server so that its resident memory is at most `resident` MiB and, as
    /// far as [`TRIES`] allow, at most [`NEAR_MB`] less.
    fn full_own(
        &self,
        cell: Cell,
        resident: f64,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<FilledServer, BenchError> {
        let mut memory_mb = resident as u64;
        for tried in 1.. {
            let memory = memory_mb.max(MEMORY_MIN_MB);
            let shape = (1, memory, CONNECTIONS_MAX);
            let program = &self.config.program;
            let server = Server::start(program, &self.placement.server, shape, &[])?;
            let full = self.fill(server, cell, watch)?;
            let spare = resident - full.resident_mb();
            if tried == TRIES || memory == MEMORY_MIN_MB || (0.0..=NEAR_MB).contains(&spare) {
                return Ok(full);
            }
            // The last try never raises `-m`, so that it ends with less memory rather than with
            // more.
            let step = if tried + 1 == TRIES {
                spare.min(0.0)
            } else {
                spare
            };
            memory_mb = memory.saturating_add_signed(step.floor() as i64);
        }
        unreachable!("some try is the last")
    }

    /// Stores every key once, which is more than the server can hold.
    fn fill(
        &self,
        server: Server,
        cell: Cell,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<FilledServer, BenchError> {
        let mut full = FilledServer {
            client: CacheClient::connect(&server.remote.address, self.space)?,
            server,
            counters: RunCounters::new(),
        };
        let what = format!("{} {} % fill", cell.pattern.name(), cell.percent);
        let steps = (0..self.config.keys as u32).map(Step::put);
        full.ask(steps, self.config.keys, &what, watch)?;
        Ok(full)
    }

    fn measure(
        &self,
        cell: Cell,
        full: &mut FilledServer,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Outcome, BenchError> {
        let what = format!("{} {} %", cell.pattern.name(), cell.percent);
        let mut requests = Requests::new(cell.pattern, self.config.keys);
        let count = self.requests();
        // By reference: the measurement continues the sequence.
        full.ask(requests.by_ref().take(count as usize), count, &what, watch)?;
        full.counters.clear();
        let clock = Stopwatch::start();
        full.ask(requests.take(count as usize), count, &what, watch)?;
        let seconds = clock.ns() as f64 / 1e9;
        let run = Run {
            ops_per_s: full.counters.operations() as f64 / seconds,
            hit_ratio: full.counters.hit_ratio(),
            wrong_values: full.counters.wrong_values,
            server_rss_mb: Some(full.resident_mb()),
            items: full.server.items(),
            ..Run::default()
        };
        Ok(Outcome::of(self.subject(cell, full), &[run]))
    }

    fn subject(&self, cell: Cell, full: &FilledServer) -> Subject {
        Subject {
            system: "cache".to_owned(),
            fabric: Fabric::Tcp.name().to_owned(),
            server: Some(full.server.version.clone()),
            workload: cell.pattern.name().to_owned(),
            get_share: cell.pattern.get_share(),
            room_percent: Some(cell.percent),
            workers: full.server.workers,
            clients: 1,
            connections: Some(1),
            pipeline: Some(client::BATCH),
            ..subject(self.config, Fabric::Tcp.word())
        }
    }
}

impl FilledServer {
    fn ask(
        &mut self,
        steps: impl Iterator<Item = Step>,
        of: u64,
        what: &str,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<(), BenchError> {
        let clock = Stopwatch::start();
        let mut next = 0;
        let what = format!("{what}, {}", self.server.version);
        Ok(self.client.run(steps, &mut self.counters, |operations| {
            if operations >= next {
                next = operations + WATCH_EVERY;
                watch(&Progress {
                    what: what.clone(),
                    operations,
                    seconds: clock.ns() as f64 / 1e9,
                    of: Some(of),
                });
            }
        })?)
    }
}
