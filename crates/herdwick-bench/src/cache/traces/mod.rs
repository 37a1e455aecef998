//! The trace benchmark: runs traces, generated or read from files, through this server's store,
//! memcached and models of other caches, all in the memory that memcached has made resident;
//! measures the hit ratio of reads and of their bytes.
//!
//! The store and the models run in the trace's own time. memcached only has the host's time, so
//! traces in which items expire are not run through it. Each CPU measures a trace of its own.

mod file;
mod model;
mod peer;
mod score;
mod store;
mod table;
mod threads;

use std::{collections::HashMap, ops::Range, sync::RwLock};

use crate::{
    BenchError, Config, Fabric, Progress,
    compare::{manifest, subject},
    host::Stopwatch,
    report::{BeforeAfter, Outcome, Report, Run, SCHEMA, Subject},
};
pub use file::TraceError;
use model::{Belady, Lru, Model, Policy, S3Fifo, Sieve};
use score::{Cache, KEY, Score};
use table::{ROOMS, Request, Row, TRACES};

/// In quick mode, traces have this many times fewer requests and keys, and one size of memory.
const QUICK: u64 = 4;
/// Least memory that is tried, in bytes: what the largest items need.
const ROOM_MIN: u64 = 8 << 20;
/// Requests between two reports of progress.
const WATCH_EVERY: usize = 1 << 14;

/// A trace, and the sizes of memory to measure it with.
struct CacheTrace {
    name: String,
    requests: Vec<Request>,
    /// Sizes of memory, in percent of `data`.
    rooms: Vec<u64>,
    /// Peak size, in bytes, of a cache that never evicts.
    data: u64,
}

impl CacheTrace {
    fn new(name: &str, requests: Vec<Request>, rooms: &[u64]) -> Result<Self, TraceError> {
        let half = requests.len() / 2;
        let reads = requests[half..]
            .iter()
            .any(|request| request.op == table::Op::Get);
        if half == 0 || !reads {
            return Err(TraceError::Empty(name.to_owned()));
        }
        let mut rooms = rooms.to_vec();
        rooms.dedup();
        let data = data(&requests);
        let name = name.to_owned();
        Ok(Self {
            name,
            requests,
            rooms,
            data,
        })
    }

    fn of_row(row: &Row, quick: bool) -> Result<Self, TraceError> {
        let one_of = if quick { QUICK } else { 1 };
        let rooms = if quick {
            &row.rooms[1..2]
        } else {
            &row.rooms[..]
        };
        Self::new(row.name, row.requests(one_of), rooms)
    }

    /// Returns the built-in trace of that name, or else reads the file.
    fn named(name: &str, quick: bool) -> Result<Self, TraceError> {
        match TRACES.iter().find(|row| row.name == name) {
            Some(row) => Self::of_row(row, quick),
            None => {
                let rooms = if quick { &ROOMS[1..2] } else { &ROOMS[..] };
                Self::new(name, file::read(name)?, rooms)
            }
        }
    }

    fn expires(&self) -> bool {
        self.requests.iter().any(|request| request.ttl > 0)
    }
}

/// Returns the peak number of bytes charged in a cache that never evicts and drops expired items.
fn data(requests: &[Request]) -> u64 {
    // Half of what a u64 holds, so that no sum overflows.
    let mut endless = Model::new(Lru::default(), u64::MAX / 2);
    let mut ends: std::collections::BTreeSet<(u32, u64)> = Default::default();
    let (mut most, mut at_end) = (0, HashMap::new());
    for (at, request) in requests.iter().enumerate() {
        while let Some((second, key)) = ends.first().copied().filter(|end| end.0 <= request.second)
        {
            ends.pop_first();
            // Another second: the deadline was moved since.
            if at_end.get(&key) == Some(&second) {
                at_end.remove(&key);
                endless.expire(key);
            }
        }
        endless.execute(request, at);
        // A request without a time to live may take away what an earlier one gave.
        if request.ttl > 0 || at_end.contains_key(&request.key) {
            match endless.deadline(request.key) {
                0 => {
                    at_end.remove(&request.key);
                }
                end => {
                    at_end.insert(request.key, end);
                    ends.insert((end, request.key));
                }
            }
        }
        most = most.max(endless.used());
    }
    most
}

impl<P: Policy> Cache for Model<P> {
    fn run(
        &mut self,
        requests: &[Request],
        at: usize,
        score: &mut Score,
    ) -> Result<(), BenchError> {
        for (index, request) in requests.iter().enumerate() {
            score.count(request, self.execute(request, at + index));
        }
        Ok(())
    }
}

/// Measures all traces that `config` names.
///
/// # Errors
/// A trace cannot be read, or memcached did not start or broke.
pub(super) fn traces(
    config: &Config,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    config.checked()?;
    let mut names = Vec::new();
    for name in &config.traces {
        match name.as_str() {
            "all" => names.extend(TRACES.iter().map(|row| row.name)),
            name => names.push(name),
        }
    }
    let placement = threads::placement(&config.placement());
    let quiet = RwLock::new(());
    let results = threads::measure(&names, &placement.clients, watch, |name, cpu, watch| {
        let trace = {
            let _others = threads::beside(&quiet);
            CacheTrace::named(name, config.quick)?
        };
        let bench = Bench {
            config,
            cpu,
            quiet: &quiet,
            results: Vec::new(),
        };
        let results = bench.measure(&trace, watch);
        // What the trace frees would change the memory that another thread measures.
        let _others = threads::beside(&quiet);
        drop(trace);
        results
    })?;
    let lines = BeforeAfter::default();
    let manifest = manifest(config, &placement, &[Fabric::Tcp], lines);
    Ok(Report {
        schema: SCHEMA,
        results,
        manifest,
    })
}

/// The measurement of one trace.
struct Bench<'a> {
    config: &'a Config,
    /// The CPU of this thread, and of memcached: the one waits for the other.
    cpu: usize,
    /// Held alone while the store's memory is measured, which is that of the whole process.
    quiet: &'a RwLock<()>,
    results: Vec<Outcome>,
}

impl Bench<'_> {
    fn measure(
        mut self,
        trace: &CacheTrace,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Vec<Outcome>, BenchError> {
        let mut measured = HashMap::new();
        for percent in &trace.rooms {
            let mut cell = TraceCell {
                trace,
                percent: *percent,
                room: (trace.data * percent / 100).max(ROOM_MIN),
            };
            if !trace.expires() {
                let program = &self.config.program;
                let peer = peer::Peer::start(program, &[self.cpu], cell.room)?;
                let resident = peer.resident();
                let held_mb = self.run(&cell, "memcached", peer, watch, resident)?;
                // memcached uses more memory than `-m`; the other caches get the same amount, in
                // whole MiB, so that they have the same where memcached has.
                let held = (held_mb.unwrap_or_default() as u64) << 20;
                cell.room = cell.room.max(held);
            }
            match measured.get(&cell.room).cloned() {
                Some(same) => self.copy(same, cell.percent),
                None => {
                    let from = self.results.len();
                    self.run_store(&cell, watch)?;
                    self.run_models(&cell, watch)?;
                    measured.insert(cell.room, from..self.results.len());
                }
            }
        }
        Ok(self.results)
    }

    fn run_store(
        &mut self,
        cell: &TraceCell<'_>,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<(), BenchError> {
        let _alone = threads::alone(self.quiet);
        let (own, resident) = store::LocalStore::new(cell.room)?;
        self.run_pieces(cell, "segments", own, watch, resident, || ())?;
        Ok(())
    }

    fn run_models(
        &mut self,
        cell: &TraceCell<'_>,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<(), BenchError> {
        let (room, none) = (cell.room, || None);
        let lru = Model::new(Lru::default(), room);
        self.run(cell, "lru", lru, watch, none)?;
        let s3_fifo = Model::new(S3Fifo::new(room), room);
        self.run(cell, "s3-fifo", s3_fifo, watch, none)?;
        let sieve = Model::new(Sieve::default(), room);
        self.run(cell, "sieve", sieve, watch, none)?;
        let belady = {
            let _others = threads::beside(self.quiet);
            Model::new(Belady::new(&cell.trace.requests), room)
        };
        self.run(cell, "belady", belady, watch, none)?;
        Ok(())
    }

    /// Adds the results of the store and the models for another percentage that is the same memory.
    fn copy(&mut self, same: Range<usize>, percent: u64) {
        for at in same {
            let mut outcome = self.results[at].clone();
            outcome.subject.room_percent = Some(percent);
            self.results.push(outcome);
        }
    }

    /// As [`Self::run_pieces`], beside the other threads, except while one measures its memory.
    fn run(
        &mut self,
        cell: &TraceCell<'_>,
        name: &str,
        cache: impl Cache,
        watch: &mut dyn FnMut(&Progress),
        resident: impl Fn() -> Option<f64>,
    ) -> Result<Option<f64>, BenchError> {
        let quiet = self.quiet;
        self.run_pieces(cell, name, cache, watch, resident, || {
            threads::beside(quiet)
        })
    }

    /// Warms `cache` up with the first half of the trace and measures the second half; returns its
    /// resident memory, in MiB. `hold` is called for each piece, and before the cache is dropped.
    fn run_pieces<H>(
        &mut self,
        cell: &TraceCell<'_>,
        name: &str,
        mut cache: impl Cache,
        watch: &mut dyn FnMut(&Progress),
        resident: impl Fn() -> Option<f64>,
        hold: impl Fn() -> H,
    ) -> Result<Option<f64>, BenchError> {
        let (requests, clock) = (&cell.trace.requests, Stopwatch::start());
        let (mut score, half) = (Score::default(), requests.len() / 2);
        let mut start_ns = 0;
        for (part, from) in [(&requests[..half], 0), (&requests[half..], half)] {
            // Those of the warm-up.
            let _ = cache.take_times();
            (score, start_ns) = (
                // A wrong value counts in the warm-up, too.
                Score {
                    wrong_values: score.wrong_values,
                    ..Score::default()
                },
                clock.ns(),
            );
            for (index, piece) in part.chunks(WATCH_EVERY).enumerate() {
                let at = from + index * WATCH_EVERY;
                let held = hold();
                cache.run(piece, at, &mut score)?;
                drop(held);
                watch(&Progress {
                    what: format!("{} {} %, {name}", cell.trace.name, cell.percent),
                    operations: (at + piece.len()) as u64,
                    seconds: clock.ns() as f64 / 1e9,
                    of: Some(requests.len() as u64),
                });
            }
        }
        let seconds = (clock.ns() - start_ns) as f64 / 1e9;
        let resident_mb = resident();
        let latency_us = cache.take_times();
        let held = hold();
        drop(cache);
        drop(held);
        let run = Run {
            ops_per_s: (requests.len() - half) as f64 / seconds,
            hit_ratio: Some(score.hits as f64 / score.reads.max(1) as f64),
            byte_hit_ratio: Some(score.hit_bytes as f64 / score.read_bytes.max(1) as f64),
            wrong_values: score.wrong_values,
            server_rss_mb: resident_mb,
            latency_us,
            ..Run::default()
        };
        let subject = self.subject(cell, name);
        self.results.push(Outcome::of(subject, &[run]));
        Ok(resident_mb)
    }

    fn subject(&self, cell: &TraceCell<'_>, name: &str) -> Subject {
        let reads = cell
            .trace
            .requests
            .iter()
            .filter(|request| request.op == table::Op::Get);
        let peer = name == "memcached";
        Subject {
            system: name.to_owned(),
            fabric: if peer { Fabric::Tcp.name() } else { "none" }.to_owned(),
            workload: cell.trace.name.clone(),
            get_share: reads.count() as f64 / cell.trace.requests.len() as f64,
            room_percent: Some(cell.percent),
            room_mb: Some(cell.room_mb()),
            clients: 1,
            dist: String::new(),
            keys: 0,
            key_bytes: KEY,
            value_bytes: 0,
            ..subject(self.config, Fabric::Tcp.word())
        }
    }
}

/// A trace and a size of memory: percent of its data, and bytes.
struct TraceCell<'a> {
    trace: &'a CacheTrace,
    percent: u64,
    room: u64,
}

impl TraceCell<'_> {
    fn room_mb(&self) -> f64 {
        self.room as f64 / f64::from(1 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::{model::charge, *};

    #[test]
    fn data_size_counts_only_items_alive_at_one_time() {
        let row = TRACES.iter().find(|row| row.name == "ttl-beside").unwrap();
        let data = data(&row.requests(1)) as f64;
        // 10,000 items that stay, and 10,000 stored in the last 20 seconds.
        let lives = 20_000.0 * charge(1000) as f64;
        assert!((data / lives - 1.0).abs() < 0.02, "{data} for {lives}");
    }

    /// Each seen to fail without its mend: the end that is past must not take the place of the next one, and
    /// a value without an end must not inherit that of the value before.
    #[test]
    fn data_size_follows_deadlines_that_move() {
        let set = |second, key, ttl| Request {
            second,
            key,
            size: 100,
            ttl,
            op: table::Op::Set,
        };
        let one = charge(100);
        assert_eq!(data(&[set(1, 1, 10), set(5, 1, 100), set(200, 2, 0)]), one);
        assert_eq!(
            data(&[set(1, 1, 10), set(5, 1, 0), set(200, 2, 0)]),
            2 * one
        );
    }

    /// Compares the store, in the trace's time, with a model that never evicts: with memory for
    /// everything, every read finds the same.
    #[test]
    fn store_with_enough_memory_matches_the_model_that_never_evicts() {
        // To make the requests takes longer than to run them: by default, those of every sixth trace.
        for row in TRACES.iter().step_by(herdwick_check::length(6, 1)) {
            let trace = CacheTrace::of_row(row, true).unwrap();
            let requests = &trace.requests[..trace
                .requests
                .len()
                .min(herdwick_check::length(3_000, 40_000))];
            let (mut own, _) = store::LocalStore::new(trace.data * 3 + (64 << 20)).unwrap();
            let mut model = Model::new(Lru::default(), u64::MAX / 2);
            let mut scores = [Score::default(); 2];
            own.run(requests, 0, &mut scores[0]).unwrap();
            model.run(requests, 0, &mut scores[1]).unwrap();
            let counts = scores.map(|score| (score.reads, score.hits, score.hit_bytes));
            assert_eq!(counts[0], counts[1], "{}", trace.name);
            assert_eq!(scores[0].wrong_values, 0, "{}", trace.name);
        }
    }

    /// 5 and 10 % of little data are both raised to the least memory.
    #[test]
    fn what_has_the_same_memory_is_measured_once() {
        let request = |at: u64| Request {
            second: 1,
            key: at % 100,
            size: 10,
            ttl: 1000,
            op: table::Op::Get,
        };
        let requests = (0..1000).map(request).collect();
        let trace = CacheTrace::new("small", requests, &[5, 10]).unwrap();
        let bench = Bench {
            config: &Config::default(),
            cpu: 0,
            quiet: &RwLock::new(()),
            results: Vec::new(),
        };
        let mut steps = Vec::new();
        let results = bench
            .measure(&trace, &mut |progress| steps.push(progress.what.clone()))
            .unwrap();
        assert_eq!(steps.len(), 2 * 5, "a half each: {steps:?}");
        let of = |percent| {
            let cell = results
                .iter()
                .filter(move |outcome| outcome.subject.room_percent == Some(percent));
            cell.map(|outcome| (outcome.subject.system.clone(), outcome.hit_ratio))
        };
        let expected = ["segments", "lru", "s3-fifo", "sieve", "belady"];
        let expected = expected.map(|system| (system.to_owned(), Some(1.0)));
        for percent in [5, 10] {
            assert_eq!(of(percent).collect::<Vec<_>>(), expected);
            for outcome in &results {
                let times = outcome.latency_us.map(|of| (of.p9999, of.max));
                let is_measured = times.is_some_and(|(p9999, max)| 0.0 < p9999 && p9999 <= max);
                assert_eq!(
                    is_measured,
                    outcome.subject.system == "segments",
                    "{times:?}"
                );
            }
        }
    }
}
