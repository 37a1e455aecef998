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
    /// Nanoseconds, median of [`SAMPLES`].
    pub ns: f64,
}

/// Drift between before and after above which a run is marked.
pub(super) const DRIFT_MAX: f64 = 0.2;
/// Samples of which the median counts: a preempted one does not matter.
const SAMPLES: usize = 31;
/// Round trips in a sample.
const ROUNDS: u64 = 2_000;

impl LineRtt {
    /// Whether `after` differs from `self` by more than [`DRIFT_MAX`].
    #[must_use]
    pub fn drifted(self, after: Self) -> bool {
        let (low, high) = (self.ns.min(after.ns), self.ns.max(after.ns));
        high > low * (1.0 + DRIFT_MAX)
    }
}

/// Measures between two CPUs, in about 50 ms.
#[must_use]
pub(crate) fn line_rtt(cpus: [usize; 2]) -> LineRtt {
    let [ping, pong] = [
        CachePadded(AtomicU64::new(0)),
        CachePadded(AtomicU64::new(0)),
    ];
    let total = SAMPLES as u64 * ROUNDS;
    let mut samples: Vec<f64> = thread::scope(|scope| {
        scope.spawn(|| {
            pin(&[cpus[0]]);
            (1..=total).for_each(|round| {
                wait_for(&ping, round);
                pong.store(round, Ordering::Release);
            });
        });
        let client = scope.spawn(|| {
            pin(&[cpus[1]]);
            let sample = |first: u64| {
                let watch = Stopwatch::start();
                for round in first..first + ROUNDS {
                    ping.store(round, Ordering::Release);
                    wait_for(&pong, round);
                }
                watch.ns() as f64 / ROUNDS as f64
            };
            (1..=total).step_by(ROUNDS as usize).map(sample).collect()
        });
        client.join().unwrap_or_default()
    });
    samples.sort_by(f64::total_cmp);
    LineRtt {
        ns: samples.get(SAMPLES / 2).copied().unwrap_or(f64::NAN),
    }
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
