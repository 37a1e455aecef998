//! The round trip of a cache line between two CPUs.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use herdwick_mem::sync::CachePadded;

use super::{Stopwatch, pin};

/// Round trip of one cache line between a CPU of the server and one of the clients. Shared-memory
/// figures are compared relative to it, since other load on the host changes both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LineRtt {
    /// Nanoseconds; the median of the samples.
    pub ns: f64,
}

/// Relative drift between before and after above which a run is marked.
pub(super) const DRIFT_MAX: f64 = 0.2;
/// Time for samples. It bounds the measurement instead of their number: on a busy host a round trip
/// may last until a thread gets its CPU back.
const MEASURE_NS: u64 = 30_000_000;
/// Most samples. The median is not affected by a preempted one.
const SAMPLES_MAX: usize = 2_000;
/// Round trips in a sample.
const ROUNDS: u64 = 100;
/// The value that ends the round trips.
const END: u64 = u64::MAX;

impl LineRtt {
    /// Returns whether `after` differs from `self` by more than [`DRIFT_MAX`].
    #[must_use]
    pub fn drifted(self, after: Self) -> bool {
        let (low, high) = (self.ns.min(after.ns), self.ns.max(after.ns));
        high > low * (1.0 + DRIFT_MAX)
    }
}

/// Measures the round trip between two CPUs, for about 30 ms; on a busy host for at least one
/// sample.
#[must_use]
pub(crate) fn line_rtt(cpus: [usize; 2]) -> LineRtt {
    let [ping, pong] = [
        // On one line they would move together.
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
        // A thread that panicked has no samples.
        ns: samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN),
    }
}

/// Echoes every value of `ping` in `pong`, until [`END`]. Acquire and release, as between a request and
/// its reply over shared memory; on x86 they are plain loads and stores.
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

/// Returns samples: nanoseconds per round trip, averaged over [`ROUNDS`].
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

/// Spins without a pause instruction, which would add to what is measured.
fn wait_for(line: &AtomicU64, round: u64) {
    while line.load(Ordering::Acquire) != round {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::allowed_cpus;

    #[test]
    fn drift_is_a_change_of_a_fifth_in_either_direction() {
        let rtt = |ns| LineRtt { ns };
        assert!(!rtt(100.0).drifted(rtt(119.0)));
        assert!(rtt(100.0).drifted(rtt(121.0)));
        assert!(rtt(121.0).drifted(rtt(100.0)));
    }

    #[test]
    fn cache_line_round_trip_is_positive_and_finite() {
        if let [first, .., last] = allowed_cpus()[..] {
            let rtt = line_rtt([first, last]);
            assert!(rtt.ns > 1.0 && rtt.ns.is_finite(), "{rtt:?}");
        }
    }
}
