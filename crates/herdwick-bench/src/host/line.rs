//! The round trip of a cache line between two CPUs.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use herdwick_mem::sync::CachePadded;

use super::{Stopwatch, pin};

/// Round trip of one cache line between a server's CPU and a client's: the unit in which figures
/// of shared memory compare, for it moves with the neighbours on the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LineRtt {
    /// Nanoseconds, median of the samples that were taken.
    pub ns: f64,
}

/// Drift between before and after above which a run is marked.
pub(super) const DRIFT_MAX: f64 = 0.2;
/// How long samples are taken. On a busy host a round trip may take until a thread gets its CPU
/// back, so their number is no measure.
const MEASURE_NS: u64 = 30_000_000;
/// Most samples, of which the median counts: a preempted one does not matter.
const SAMPLES_MAX: usize = 2_000;
/// Round trips in a sample.
const ROUNDS: u64 = 100;
/// What ends the round trips.
const END: u64 = u64::MAX;

impl LineRtt {
    /// Whether `after` differs from `self` by more than [`DRIFT_MAX`].
    #[must_use]
    pub fn drifted(self, after: Self) -> bool {
        let (low, high) = (self.ns.min(after.ns), self.ns.max(after.ns));
        high > low * (1.0 + DRIFT_MAX)
    }
}

/// Measures between two CPUs, in about 30 ms, and on a busy host in as many round trips as one
/// sample has.
#[must_use]
pub(crate) fn line_rtt(cpus: [usize; 2]) -> LineRtt {
    let [ping, pong] = [
        CachePadded(AtomicU64::new(0)),
        CachePadded(AtomicU64::new(0)),
    ];
    let mut samples: Vec<f64> = thread::scope(|scope| {
        scope.spawn(|| {
            pin(&[cpus[0]]);
            answer(&ping, &pong);
        });
        let client = scope.spawn(|| {
            pin(&[cpus[1]]);
            let samples = ask(&ping, &pong);
            ping.store(END, Ordering::Release);
            samples
        });
        client.join().unwrap_or_default()
    });
    samples.sort_by(f64::total_cmp);
    LineRtt {
        ns: samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN),
    }
}

/// Sends back what comes, until the end.
fn answer(ping: &AtomicU64, pong: &AtomicU64) {
    let mut last = 0;
    loop {
        let round = ping.load(Ordering::Acquire);
        if round == END {
            return;
        }
        if round != last {
            pong.store(round, Ordering::Release);
            last = round;
        }
    }
}

/// Nanoseconds of a round trip, a sample each.
fn ask(ping: &AtomicU64, pong: &AtomicU64) -> Vec<f64> {
    let mut samples = Vec::with_capacity(SAMPLES_MAX);
    let watch = Stopwatch::start();
    let mut round = 0;
    while samples.len() < SAMPLES_MAX {
        let start_ns = watch.ns();
        if start_ns > MEASURE_NS && !samples.is_empty() {
            break;
        }
        for _ in 0..ROUNDS {
            round += 1;
            ping.store(round, Ordering::Release);
            wait_for(pong, round);
        }
        samples.push((watch.ns() - start_ns) as f64 / ROUNDS as f64);
    }
    samples
}

/// Spins without a pause instruction: it would be part of what is measured.
fn wait_for(line: &AtomicU64, round: u64) {
    while line.load(Ordering::Acquire) != round {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::allowed_cpus;

    #[test]
    fn drift_is_a_fifth_either_way() {
        let rtt = |ns| LineRtt { ns };
        assert!(!rtt(100.0).drifted(rtt(119.0)));
        assert!(rtt(100.0).drifted(rtt(121.0)));
        assert!(rtt(121.0).drifted(rtt(100.0)));
    }

    #[test]
    fn a_line_goes_round() {
        if let [first, .., last] = allowed_cpus()[..] {
            let rtt = line_rtt([first, last]);
            assert!(rtt.ns > 1.0 && rtt.ns.is_finite(), "{rtt:?}");
        }
    }
}
