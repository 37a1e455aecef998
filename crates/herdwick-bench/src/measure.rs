//! One run: clients pinned to their CPUs, a warm-up, a measurement, and the CPU time that it took.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use crate::{
    BenchError, Config, Progress,
    counters::RunCounters,
    host::{Placement, ProcessCpu, Stopwatch, pin, thread_cpu_ns},
    pace::Pace,
    remote::Remote,
    report::{CpuPerOp, Latency, Run},
    server::batches,
    target::{Load, Reads, Target},
    workload::{KeySpace, Trace},
};

/// What all clients of a run share.
#[derive(Debug)]
pub(crate) struct Bout<'a> {
    pub(crate) config: &'a Config,
    pub(crate) space: KeySpace,
    pub(crate) placement: &'a Placement,
    pub(crate) server_cpu: Option<ProcessCpu>,
    /// The server to query for the mean size of its batches.
    pub(crate) batches_of: Option<&'a Remote>,
    /// Name of the run in the progress line.
    pub(crate) name: String,
}

/// The result of one client.
struct ClientResult {
    counters: RunCounters,
    elapsed_ns: u64,
    client_cpu_ns: u64,
    server_cpu_ns: Option<u64>,
    batch_mean: Option<f64>,
    reads: Option<Reads>,
}

/// Interval of progress updates, and of a client's slices.
const TICK: Duration = Duration::from_millis(100);
/// A fill without an answer for this many ticks fails.
const STALL_TICKS: u32 = 100;
/// Versions between the first of one client and the first of the next: versions of two clients are
/// distinct up to this many writes.
const VERSIONS_PER_CLIENT: u32 = 1 << 24;

impl Bout<'_> {
    /// Drives each target on its own thread with its own trace; returns the combined result.
    pub(crate) fn run<T: Target + Send>(
        &self,
        targets: Vec<T>,
        traces: &mut [Trace],
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Run, BenchError> {
        let (barrier, answered) = (Barrier::new(targets.len()), AtomicU64::new(0));
        let (done, parts) = mpsc::channel();
        let clock = Stopwatch::start();
        thread::scope(|scope| {
            for (index, (target, trace)) in targets.into_iter().zip(traces).enumerate() {
                let (done, barrier, answered) = (done.clone(), &barrier, &answered);
                scope.spawn(move || {
                    let client = ClientThread {
                        bout: self,
                        index,
                        clock,
                        answered,
                    };
                    // The receiver is gone if another client has failed: then this result is of no
                    // use.
                    let _ = done.send(client.run(target, trace, barrier));
                });
            }
            // The receiver would otherwise never see that all clients have ended.
            drop(done);
            self.gather(&parts, &clock, &answered, watch)
        })
    }

    fn gather(
        &self,
        parts: &mpsc::Receiver<Result<ClientResult, BenchError>>,
        clock: &Stopwatch,
        answered: &AtomicU64,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Run, BenchError> {
        let mut gathered = Vec::new();
        loop {
            match parts.recv_timeout(TICK) {
                Ok(part) => gathered.push(part?),
                Err(RecvTimeoutError::Disconnected) => return Ok(self.sum(&gathered)),
                Err(RecvTimeoutError::Timeout) => watch(&Progress {
                    what: self.name.clone(),
                    // Relaxed: the line of progress shows it, and the result is summed from the parts.
                    operations: answered.load(Ordering::Relaxed),
                    seconds: clock.ns() as f64 / 1e9,
                    of: None,
                }),
            }
        }
    }

    fn sum(&self, parts: &[ClientResult]) -> Run {
        let mut counters = RunCounters::new();
        parts.iter().for_each(|part| counters.add(&part.counters));
        // Over the client's own time, since they do not end at the same moment.
        let rate =
            |part: &ClientResult| part.counters.operations() as f64 / part.elapsed_ns as f64 * 1e9;
        let operations = counters.operations();
        let ops_per_s: f64 = parts.iter().map(rate).sum();
        let slowest = parts.iter().map(rate).reduce(f64::min);
        // Of one client it would always be 1.
        let slowest = slowest.filter(|_| parts.len() > 1 && ops_per_s > 0.0);
        let per_op = |ns: u64| (operations > 0).then(|| ns as f64 / operations as f64);
        let reads = parts.iter().filter_map(|part| part.reads);
        let per_get = reads.reduce(Reads::and).and_then(Reads::per_get);
        let client_cpu_ns = parts.iter().map(|part| part.client_cpu_ns).sum();
        Run {
            ops_per_s,
            slowest_client: slowest.map(|rate| rate * parts.len() as f64 / ops_per_s),
            offered_per_s: self.config.rate,
            hit_ratio: counters.hit_ratio(),
            errors: counters.errors,
            wrong_values: counters.wrong_values,
            batch_mean: parts.iter().find_map(|part| part.batch_mean),
            cpu_ns_per_op: CpuPerOp {
                server: parts
                    .iter()
                    .find_map(|part| part.server_cpu_ns)
                    .and_then(per_op),
                client: per_op(client_cpu_ns),
            },
            reads_per_get: per_get.map(|(reads, _)| reads),
            read_bytes_per_get: per_get.map(|(_, bytes)| bytes),
            latency_us: Latency::of(counters.latencies()),
            latencies_ns: Some(counters.latencies().clone()),
            ..Run::default()
        }
    }

    /// Stores every key once, through `target`.
    pub(crate) fn fill(
        &self,
        mut target: impl Target,
        mut trace: Trace,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<(), BenchError> {
        if let Some(hash_key) = target.hash_key() {
            trace.hash(&hash_key, &self.space);
        }
        let clock = Stopwatch::start();
        let (mut counters, mut pace) = (RunCounters::new(), Pace::closed());
        let keys = trace.len() as u64;
        let mut still = 0;
        let (mut version, mut stored) = (0, 0);
        while counters.puts + counters.errors < keys {
            let mut load = Load {
                trace: &mut trace,
                pace: &mut pace,
                counters: &mut counters,
                version,
            };
            let until_ns = clock.ns() + TICK.as_nanos() as u64;
            target.drive(&mut load, until_ns, &mut || clock.ns())?;
            version = load.version;
            still = if counters.puts > stored { 0 } else { still + 1 };
            stored = counters.puts;
            if still == STALL_TICKS {
                return Err(BenchError::Stalled { answered: stored });
            }
            watch(&Progress {
                what: self.name.clone(),
                operations: stored,
                seconds: clock.ns() as f64 / 1e9,
                of: Some(keys),
            });
        }
        match counters.errors {
            0 => Ok(()),
            refused => Err(BenchError::Fill { refused, keys }),
        }
    }
}

struct ClientThread<'a> {
    bout: &'a Bout<'a>,
    index: usize,
    clock: Stopwatch,
    answered: &'a AtomicU64,
}

impl ClientThread<'_> {
    fn run(
        &self,
        mut target: impl Target,
        trace: &mut Trace,
        barrier: &Barrier,
    ) -> Result<ClientResult, BenchError> {
        pin(self.bout.placement.client(self.index));
        let mut counters = RunCounters::new();
        if let Some(hash_key) = target.hash_key() {
            trace.hash(&hash_key, &self.bout.space);
        }
        // A client that still hashes its trace would leave the server to the others.
        barrier.wait();
        let config = self.bout.config;
        let mut pace = self.pace();
        let mut load = Load {
            trace,
            pace: &mut pace,
            counters: &mut counters,
            version: (self.index as u32).wrapping_mul(VERSIONS_PER_CLIENT),
        };
        self.drive_for(config.warmup_seconds(), &mut target, &mut load)?;
        load.counters.clear();

        // Only the first client samples the server's CPU time and batches: they are per server.
        let leads = self.index == 0;
        let server_cpu = || self.bout.server_cpu.as_ref().filter(|_| leads)?.ns();
        let batches_of = self.bout.batches_of.filter(|_| leads);
        // Ahead of the clock, since asking takes a round trip and work of the server.
        let batches_before = batches_of.and_then(batches);
        let (start_ns, client_cpu, server) = (self.clock.ns(), thread_cpu_ns(), server_cpu());
        let reads_before = target.reads();
        self.drive_for(config.seconds, &mut target, &mut load)?;
        let (end_ns, client_cpu_ns) = (self.clock.ns(), thread_cpu_ns() - client_cpu);
        let server_cpu_ns = server.zip(server_cpu()).map(|(a, b)| b.saturating_sub(a));
        load.count_unanswered(target.in_flight(), end_ns);
        let batches = batches_before.zip(batches_of.and_then(batches));
        let reads = target.reads().zip(reads_before);
        Ok(ClientResult {
            reads: reads.map(|(after, before)| after.since(before)),
            counters,
            // Rates are divided by it.
            elapsed_ns: (end_ns - start_ns).max(1),
            client_cpu_ns,
            server_cpu_ns,
            batch_mean: batches.and_then(
                |([requests, batches], [requests_after, batches_after])| {
                    // Counts that went back are of a server that was started again.
                    let batches = batches_after
                        .checked_sub(batches)
                        .filter(|count| *count > 0)?;
                    Some(requests_after.checked_sub(requests)? as f64 / batches as f64)
                },
            ),
        })
    }

    /// Returns this client's share of the rate. The schedules of the clients are offset evenly
    /// against each other.
    fn pace(&self) -> Pace {
        let Some(rate) = self.bout.config.rate else {
            return Pace::closed();
        };
        let turn_ns = (self.index as f64 / rate * 1e9) as u64;
        let share = rate / self.bout.config.clients as f64;
        Pace::open(share, self.clock.ns() + turn_ns)
    }

    fn drive_for(
        &self,
        seconds: f64,
        target: &mut impl Target,
        load: &mut Load<'_>,
    ) -> Result<(), BenchError> {
        let end_ns = self.clock.ns() + (seconds * 1e9) as u64;
        let mut counted = 0;
        loop {
            let now_ns = self.clock.ns();
            if now_ns >= end_ns {
                return Ok(());
            }
            let slice_end = end_ns.min(now_ns + TICK.as_nanos() as u64);
            target.drive(load, slice_end, &mut || self.clock.ns())?;
            let operations = load.counters.operations();
            self.answered
                .fetch_add(operations - counted, Ordering::Relaxed);
            counted = operations;
        }
    }
}
