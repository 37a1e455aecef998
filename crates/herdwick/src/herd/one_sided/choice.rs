//! Which way a session's reads go: in the server's memory, or as requests. Measured on the session's own
//! reads, for each size of values; what is not preferred is tried again from time to time.

use std::time::Instant;

use crate::{OneSidedReads, due::clock};

/// Bursts before the first that is measured: they meet pages that are not mapped yet.
const WARM_UP: u32 = 16;
/// One burst in so many is measured ...
const MEASURED: u32 = 32;
/// ... and one in so many goes the other way.
const OTHER: u32 = 1024;
/// Reads after which a burst is taken for two.
const BURST_MAX: u32 = 1024;
/// The part of its distance that a mean moves towards a sample above it, and towards one below. What disturbs
/// a measurement (the process was descheduled, a page was not mapped) makes it longer, never shorter.
const WEIGHTS: [f32; 2] = [0.25, 0.5];
/// A sample counts as at most so many times the mean. A burst that was descheduled takes milliseconds instead
/// of a microsecond; after it, and without this, the way would lose for tens of thousands of bursts.
const SAMPLE_MAX: f32 = 4.0;
/// Sizes of values, by the binary logarithm.
const SIZES: usize = 32;

/// A way to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// In the server's memory.
    Memory,
    /// As requests.
    Requests,
}

/// Reads from one moment at which nothing is in flight to the next.
#[derive(Debug)]
struct Burst {
    way: Way,
    /// When it began, if it is measured.
    start: Option<Instant>,
    reads: u32,
    /// Values that were read, and their bytes.
    values: u32,
    bytes: u64,
}

/// The choice of a way for each burst.
#[derive(Debug)]
pub(super) struct Choice {
    mode: OneSidedReads,
    /// Mean nanoseconds a read, of each size: in the memory, and by requests.
    means: [[Option<f32>; 2]; SIZES],
    /// The size of the last values.
    size: usize,
    bursts: u32,
    burst: Option<Burst>,
}

impl Choice {
    pub(super) fn new(mode: OneSidedReads) -> Self {
        Self {
            mode,
            means: [[None; 2]; SIZES],
            size: 0,
            bursts: 0,
            burst: None,
        }
    }

    /// Returns the way of a read that is submitted.
    #[inline]
    pub(super) fn way(&mut self) -> Way {
        if self.mode == OneSidedReads::Always {
            return Way::Memory;
        }
        if self.burst.is_none() {
            self.burst = Some(self.begin());
        }
        let Some(burst) = &mut self.burst else {
            return Way::Memory;
        };
        burst.reads += 1;
        burst.way
    }

    /// Begins a burst.
    fn begin(&mut self) -> Burst {
        self.bursts = self.bursts.wrapping_add(1);
        let is_other = self.bursts.is_multiple_of(OTHER);
        let measured = is_other || self.bursts.is_multiple_of(MEASURED);
        let best = self.best();
        let way = match (is_other, best) {
            (false, best) => best,
            (true, Way::Memory) => Way::Requests,
            (true, Way::Requests) => Way::Memory,
        };
        Burst {
            way,
            start: (measured && self.bursts > WARM_UP).then(clock),
            reads: 0,
            values: 0,
            bytes: 0,
        }
    }

    /// Returns the way that was faster for values of the last size; as long as one is not known, that of the
    /// memory.
    fn best(&self) -> Way {
        match self.means[self.size] {
            [Some(memory), Some(requests)] if requests < memory => Way::Requests,
            _ => Way::Memory,
        }
    }

    /// Notes a value that was read, by either way.
    #[inline]
    pub(super) fn note_value(&mut self, len: usize) {
        if let Some(burst) = &mut self.burst {
            burst.values += 1;
            burst.bytes += len as u64;
        }
    }

    /// Notes a request that is no read: what its burst takes is not measured.
    #[inline]
    pub(super) fn note_other(&mut self) {
        if let Some(burst) = &mut self.burst {
            burst.start = None;
        }
    }

    /// Ends the burst, if nothing is in flight, or if it is long.
    #[inline]
    pub(super) fn settle(&mut self, is_idle: bool) {
        let ends = |burst: &mut Burst| is_idle || burst.reads >= BURST_MAX;
        if let Some(burst) = self.burst.take_if(ends) {
            self.end(&burst);
        }
    }

    fn end(&mut self, burst: &Burst) {
        // A burst may have read no value.
        if let Some(mean) = burst.bytes.checked_div(burst.values.into()) {
            // Values may be empty.
            self.size = (mean.max(1).ilog2() as usize).min(SIZES - 1);
        }
        if let Some(start) = burst.start {
            let sample = start.elapsed().as_nanos() as f32 / burst.reads as f32;
            self.note(burst.way, sample);
        }
    }

    /// Adds a sample to the mean of the last size.
    fn note(&mut self, way: Way, sample: f32) {
        let mean = &mut self.means[self.size][way as usize];
        *mean = Some(mean.map_or(sample, |mean| {
            // A clock may be too coarse for a burst of one read.
            let sample = sample.min(mean.max(1.0) * SAMPLE_MAX);
            let [rise, fall] = WEIGHTS;
            let weight = if sample > mean { rise } else { fall };
            mean + (sample - mean) * weight
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads values of `len` bytes in bursts of one, which take as long as `times` tells for each way. Returns
    /// how many of them were requests.
    fn bursts(choice: &mut Choice, count: u32, len: usize, times: [f32; 2]) -> u32 {
        let mut requests = 0;
        for _ in 0..count {
            let way = choice.way();
            requests += u32::from(way == Way::Requests);
            choice.note_value(len);
            let mut burst = choice.burst.take().unwrap();
            let measured = burst.start.take().is_some();
            choice.end(&burst);
            if measured {
                choice.note(way, times[way as usize]);
            }
        }
        requests
    }

    #[test]
    fn the_faster_way_is_taken_for_each_size_and_both_are_measured_again() {
        let mut choice = Choice::new(OneSidedReads::Auto);
        let (faster, slower) = ([200.0, 900.0], [5000.0, 900.0]);
        assert_eq!(bursts(&mut choice, 10 * OTHER, 32, faster), 10);
        let requests = bursts(&mut choice, 10 * OTHER, 1000, slower);
        assert!(requests > 8 * OTHER, "{requests}");
        assert_eq!(bursts(&mut choice, OTHER - 1, 32, faster), 1, "the first");
        // The host has changed.
        let requests = bursts(&mut choice, 40 * OTHER, 1000, faster);
        assert!(requests < 30 * OTHER, "{requests}");
        assert!(bursts(&mut choice, 10 * OTHER, 1000, faster) < 20);
    }

    #[test]
    fn a_burst_that_was_descheduled_does_not_decide() {
        let mut choice = Choice::new(OneSidedReads::Auto);
        let times = [200.0, 900.0];
        bursts(&mut choice, 2 * OTHER, 32, times);
        choice.note(Way::Memory, 1e7);
        assert_eq!(bursts(&mut choice, 10 * OTHER, 32, times), 10);
        // A clock that is too coarse to see the first burst of a size.
        choice.means[choice.size] = [Some(0.0), Some(900.0)];
        assert!(bursts(&mut choice, 10 * OTHER, 32, [9000.0, 900.0]) > 8 * OTHER);
        // Of the way that is seldom measured, the first sample of a size.
        let times = [9000.0, 900.0];
        bursts(&mut choice, OTHER / 2, 1000, times);
        choice.note(Way::Requests, 1e7);
        assert!(bursts(&mut choice, 40 * OTHER, 1000, times) > 20 * OTHER);
    }

    #[test]
    fn bursts_with_other_requests_and_without_end_are_no_hindrance() {
        let mut choice = Choice::new(OneSidedReads::Auto);
        for n in 1..100_000_u32 {
            choice.way();
            if n.is_multiple_of(3) {
                choice.note_other();
            }
            choice.settle(false);
        }
        assert_eq!(choice.means, [[None; 2]; SIZES]);
        assert_eq!(choice.bursts, 99_999 / BURST_MAX + 1);
        let mut choice = Choice::new(OneSidedReads::Always);
        let ways = (0..100_000).map(|_| choice.way());
        assert!(ways.into_iter().all(|way| way == Way::Memory));
    }
}
