//! The figures of a run, and their medians over several runs.
//!
//! Circular import with `report`: a report contains the figures, and the figures are put together to an
//! outcome of a report.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::{Outcome, Subject};
use crate::host::LineRtt;

/// CPU time per operation, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuPerOp {
    /// The server's process.
    pub server: Option<f64>,
    /// The clients' threads.
    pub client: Option<f64>,
}

/// A figure taken before and after a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BeforeAfter {
    /// Value before it.
    pub before: Option<f64>,
    /// Value after it.
    pub after: Option<f64>,
}

impl BeforeAfter {
    /// Returns cache-line round trips, in nanoseconds; `None` where there were no two CPUs to
    /// measure between.
    #[must_use]
    pub fn lines(before: Option<LineRtt>, after: Option<LineRtt>) -> Self {
        Self {
            before: before.map(|rtt| round(rtt.ns, 1)),
            after: after.map(|rtt| round(rtt.ns, 1)),
        }
    }

    fn drifted(&self) -> bool {
        match (self.before, self.after) {
            (Some(before), Some(after)) => LineRtt { ns: before }.drifted(LineRtt { ns: after }),
            _ => false,
        }
    }
}

/// A distribution of latencies, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "percentiles")]
pub struct Latency {
    pub mean: f64,
    pub p5: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    /// 0 in reports of versions that did not know it.
    #[serde(default)]
    pub p9999: f64,
    pub max: f64,
}

impl Latency {
    /// Computes the distribution from nanoseconds; `None` without latencies.
    #[must_use]
    pub fn of(latencies_ns: &Histogram<u64>) -> Option<Self> {
        let us = |ns: f64| round(ns / 1000.0, 3);
        let at = |quantile| us(latencies_ns.value_at_quantile(quantile) as f64);
        (!latencies_ns.is_empty()).then(|| Self {
            mean: us(latencies_ns.mean()),
            p5: at(0.05),
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: us(latencies_ns.max() as f64),
        })
    }

    /// Returns each percentile's median over `runs`; the maximum is the maximum of all.
    fn median(runs: &[Self]) -> Option<Self> {
        let of = |field: fn(&Self) -> f64| median(runs.iter().map(field));
        Some(Self {
            mean: of(|run| run.mean)?,
            p5: of(|run| run.p5)?,
            p50: of(|run| run.p50)?,
            p90: of(|run| run.p90)?,
            p95: of(|run| run.p95)?,
            p99: of(|run| run.p99)?,
            p999: of(|run| run.p999)?,
            p9999: of(|run| run.p9999)?,
            max: runs.iter().map(|run| run.max).fold(0.0, f64::max),
        })
    }
}

/// The figures of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Operations answered per second.
    pub ops_per_s: f64,
    /// Rate of the slowest of several clients, relative to the mean of all.
    pub slowest_client: Option<f64>,
    /// Operations due per second, in an open loop.
    pub offered_per_s: Option<f64>,
    /// Share of reads that hit.
    pub hit_ratio: Option<f64>,
    /// Share of the bytes of reads that hit.
    #[serde(default)]
    pub byte_hit_ratio: Option<f64>,
    /// Requests answered with an error.
    pub errors: u64,
    /// Values that did not belong to the key that was read.
    pub wrong_values: u64,
    /// Mean number of requests that the server executed in a batch.
    pub batch_mean: Option<f64>,
    /// CPU time of the server at rest, in milliseconds per ten seconds.
    pub idle_cpu_ms: Option<f64>,
    /// Resident memory of the server's process at the end, MiB.
    pub server_rss_mb: Option<f64>,
    /// Items that the server held at the end.
    pub items: Option<u64>,
    /// CPU time per operation.
    pub cpu_ns_per_op: CpuPerOp,
    /// Cache-line round trip before and after the run.
    pub line_rtt_ns: BeforeAfter,
    /// Nanoseconds per operation of generator and check, against a target that answers at once.
    #[serde(default)]
    pub generator_ns_per_op: Option<f64>,
    /// READs that a GET took, where clients GET by READs.
    #[serde(default)]
    pub reads_per_get: Option<f64>,
    /// Bytes that those READs asked for, a GET.
    #[serde(default)]
    pub read_bytes_per_get: Option<f64>,
    /// Nanoseconds that the checksums of those READs take, of a system that has them.
    #[serde(default)]
    pub checksum_ns_per_get: Option<f64>,
    /// Latency from the intended start.
    pub latency_us: Option<Latency>,
    /// All latencies, in nanoseconds.
    #[serde(skip)]
    pub latencies_ns: Option<Histogram<u64>>,
}

impl Run {
    /// Returns the nanoseconds per operation that each of `clients` clients had.
    fn ns_per_op(ops_per_s: f64, clients: usize) -> f64 {
        1e9 * clients.max(1) as f64 / ops_per_s
    }

    /// Returns the run as the report contains it: rounded to significant digits, without the
    /// histogram.
    fn rounded(&self) -> Self {
        let to = |value: Option<f64>, digits| value.map(|value| round(value, digits));
        Self {
            ops_per_s: round(self.ops_per_s, 1),
            slowest_client: to(self.slowest_client, 3),
            hit_ratio: to(self.hit_ratio, 6),
            byte_hit_ratio: to(self.byte_hit_ratio, 6),
            batch_mean: to(self.batch_mean, 2),
            idle_cpu_ms: to(self.idle_cpu_ms, 3),
            cpu_ns_per_op: CpuPerOp {
                server: to(self.cpu_ns_per_op.server, 1),
                client: to(self.cpu_ns_per_op.client, 1),
            },
            generator_ns_per_op: to(self.generator_ns_per_op, 2),
            reads_per_get: to(self.reads_per_get, 4),
            read_bytes_per_get: to(self.read_bytes_per_get, 1),
            checksum_ns_per_get: to(self.checksum_ns_per_get, 1),
            latencies_ns: None,
            ..self.clone()
        }
    }
}

/// Merges the latencies of all runs; `None` without any.
fn sum(runs: &[Run]) -> Option<Histogram<u64>> {
    let mut histograms = runs.iter().filter_map(|run| run.latencies_ns.as_ref());
    let mut all = histograms.next()?.clone();
    for histogram in histograms {
        let same_bounds = all.add(histogram);
        debug_assert!(same_bounds.is_ok());
    }
    Some(all)
}

impl Outcome {
    /// Computes the medians of `runs`, of which there must be at least one.
    #[must_use]
    pub fn of(subject: Subject, runs: &[Run]) -> Self {
        let rates = || runs.iter().map(|run| run.ops_per_s);
        let known = |field: fn(&Run) -> Option<f64>| median(runs.iter().filter_map(field));
        let latencies: Vec<_> = runs.iter().filter_map(|run| run.latency_us).collect();
        let generator = known(|run| run.generator_ns_per_op);
        let rate = median(rates()).unwrap_or(0.0);
        let share = generator.map(|ns| ns / Run::ns_per_op(rate, subject.clients));
        Self {
            per_run: runs.iter().map(Run::rounded).collect(),
            latencies_ns: sum(runs),
            generator_ns_per_op: generator.map(|ns| round(ns, 2)),
            generator_share: share.map(|share| round(share, 4)),
            subject,
            runs: runs.len(),
            ops_per_s: round(rate, 1),
            ops_per_s_min: round(rates().reduce(f64::min).unwrap_or(0.0), 1),
            ops_per_s_max: round(rates().fold(0.0, f64::max), 1),
            slowest_client: known(|run| run.slowest_client).map(|share| round(share, 3)),
            offered_per_s: known(|run| run.offered_per_s),
            hit_ratio: known(|run| run.hit_ratio).map(|ratio| round(ratio, 6)),
            byte_hit_ratio: known(|run| run.byte_hit_ratio).map(|ratio| round(ratio, 6)),
            errors: runs.iter().map(|run| run.errors).sum(),
            wrong_values: runs.iter().map(|run| run.wrong_values).sum(),
            batch_mean: known(|run| run.batch_mean).map(|mean| round(mean, 2)),
            idle_cpu_ms: known(|run| run.idle_cpu_ms).map(|ms| round(ms, 3)),
            server_rss_mb: runs
                .iter()
                .filter_map(|run| run.server_rss_mb)
                .reduce(f64::max),
            items: runs.iter().find_map(|run| run.items),
            cpu_ns_per_op: CpuPerOp {
                server: known(|run| run.cpu_ns_per_op.server).map(|ns| round(ns, 1)),
                client: known(|run| run.cpu_ns_per_op.client).map(|ns| round(ns, 1)),
            },
            line_rtt_ns: BeforeAfter {
                before: known(|run| run.line_rtt_ns.before),
                after: known(|run| run.line_rtt_ns.after),
            },
            drifted_runs: runs.iter().filter(|run| run.line_rtt_ns.drifted()).count(),
            reads_per_get: known(|run| run.reads_per_get).map(|reads| round(reads, 4)),
            read_bytes_per_get: known(|run| run.read_bytes_per_get).map(|bytes| round(bytes, 1)),
            checksum_ns_per_get: known(|run| run.checksum_ns_per_get).map(|ns| round(ns, 1)),
            latency_us: Latency::median(&latencies),
        }
    }
}

/// Returns the median (of an even number of values the mean of the middle two); `None` without
/// values.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

/// Rounds to `digits` decimal places; a value that is not finite becomes 0, since JSON cannot
/// encode it.
fn round(value: f64, digits: i32) -> f64 {
    let unit = 10_f64.powi(digits);
    let rounded = (value * unit).round() / unit;
    if rounded.is_finite() { rounded } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_empty_lists() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn outcome_has_the_median_run_and_the_sum_of_errors() {
        let run = |ops_per_s: f64, errors, max| Run {
            ops_per_s,
            errors,
            slowest_client: Some(ops_per_s / 200.0),
            hit_ratio: (errors == 0).then_some(0.5),
            line_rtt_ns: BeforeAfter {
                before: Some(100.0),
                after: Some(ops_per_s),
            },
            latency_us: Some(Latency {
                p50: ops_per_s,
                max,
                ..Latency::default()
            }),
            ..Run::default()
        };
        let runs = [run(110.0, 1, 7.0), run(130.0, 2, 9.0), run(90.0, 0, 8.0)];
        let outcome = Outcome::of(Subject::default(), &runs);
        assert_eq!(
            (outcome.ops_per_s, outcome.errors, outcome.runs),
            (110.0, 3, 3)
        );
        assert_eq!(
            (outcome.ops_per_s_min, outcome.ops_per_s_max),
            (90.0, 130.0)
        );
        assert_eq!(outcome.hit_ratio, Some(0.5));
        assert_eq!(outcome.slowest_client, Some(0.55));
        assert_eq!(outcome.drifted_runs, 1);
        let latency = outcome.latency_us.unwrap();
        assert_eq!((latency.p50, latency.max), (110.0, 9.0));
        assert_eq!(outcome.offered_per_s, None);
    }
}
