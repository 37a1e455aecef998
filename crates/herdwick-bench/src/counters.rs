//! What a client counts in a run: outcomes of requests, and their latencies in a histogram.

use hdrhistogram::Histogram;

/// Outcomes and latencies of requests. Cleared between warm-up and measurement.
#[derive(Clone, Debug)]
pub(crate) struct RunCounters {
    /// Reads answered with a value.
    pub hits: u64,
    /// Reads answered without one.
    pub misses: u64,
    /// Writes that were stored.
    pub puts: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Values that do not belong to the key that was read.
    pub wrong_values: u64,
    latency_ns: Histogram<u64>,
}

/// Latencies above this are recorded as this.
const LATENCY_MAX_NS: u64 = 100_000_000_000;
/// Significant decimal digits of a recorded latency.
const DIGITS: u8 = 3;

impl RunCounters {
    /// Returns empty counters.
    ///
    /// # Panics
    /// Never: the bounds are constants.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self {
            hits: 0,
            misses: 0,
            puts: 0,
            errors: 0,
            wrong_values: 0,
            latency_ns: Histogram::new_with_bounds(1, LATENCY_MAX_NS, DIGITS)
                .expect("1 < LATENCY_MAX_NS, 0 <= DIGITS <= 5"),
        }
    }

    /// Resets all counters; keeps the memory of the histogram.
    pub(crate) fn clear(&mut self) {
        (self.hits, self.misses, self.puts) = (0, 0, 0);
        (self.errors, self.wrong_values) = (0, 0);
        self.latency_ns.reset();
    }

    /// Records the latency of a request that was due at `start_ns` and answered at `now_ns`.
    #[inline]
    pub(crate) fn latency(&mut self, start_ns: u64, now_ns: u64) {
        self.latency_ns
            .saturating_record(now_ns.saturating_sub(start_ns));
    }

    /// Records the same latency for `count` requests; see [`RunCounters::latency`].
    #[inline]
    pub(crate) fn latencies_of(&mut self, count: usize, start_ns: u64, now_ns: u64) {
        self.latency_ns
            .saturating_record_n(now_ns.saturating_sub(start_ns), count as u64);
    }

    /// Returns the number of operations answered without error and with the right value.
    #[must_use]
    pub(crate) fn operations(&self) -> u64 {
        self.hits + self.misses + self.puts
    }

    /// Returns the reads among [`RunCounters::operations`].
    #[must_use]
    pub(crate) fn gets(&self) -> u64 {
        self.hits + self.misses
    }

    /// Returns the share of reads that hit, or `None` without reads.
    #[must_use]
    pub(crate) fn hit_ratio(&self) -> Option<f64> {
        (self.gets() > 0).then(|| self.hits as f64 / self.gets() as f64)
    }

    /// Returns the latencies, in nanoseconds.
    #[must_use]
    pub(crate) fn latencies(&self) -> &Histogram<u64> {
        &self.latency_ns
    }

    /// Adds the counts of another client.
    pub(crate) fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.puts += other.puts;
        self.errors += other.errors;
        self.wrong_values += other.wrong_values;
        // Fails only if the bounds differ, and all have the same.
        let same_bounds = self.latency_ns.add(&other.latency_ns);
        debug_assert!(same_bounds.is_ok());
    }
}

impl Default for RunCounters {
    fn default() -> Self {
        Self::new()
    }
}
