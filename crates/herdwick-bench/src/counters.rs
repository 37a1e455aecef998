use hdrhistogram::Histogram;

/// What came back. Counting starts over between warm-up and measurement.
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
    /// Values that are not their key's.
    pub wrong_values: u64,
    latency_ns: Histogram<u64>,
}

/// Above this a latency counts as this.
const LATENCY_MAX_NS: u64 = 100_000_000_000;
/// Latencies keep three significant digits.
const DIGITS: u8 = 3;

impl RunCounters {
    /// Nothing counted yet.
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

    /// Forgets everything, keeps its memory.
    pub(crate) fn clear(&mut self) {
        (self.hits, self.misses, self.puts) = (0, 0, 0);
        (self.errors, self.wrong_values) = (0, 0);
        self.latency_ns.reset();
    }

    /// A request that was due at `start_ns` is answered at `now_ns`.
    #[inline]
    pub(crate) fn latency(&mut self, start_ns: u64, now_ns: u64) {
        self.latency_ns
            .saturating_record(now_ns.saturating_sub(start_ns));
    }

    /// As [`RunCounters::latency`], of `count` requests.
    #[inline]
    pub(crate) fn latencies_of(&mut self, count: usize, start_ns: u64, now_ns: u64) {
        self.latency_ns
            .saturating_record_n(now_ns.saturating_sub(start_ns), count as u64);
    }

    /// Operations that were answered as they should be.
    #[must_use]
    pub(crate) fn operations(&self) -> u64 {
        self.hits + self.misses + self.puts
    }

    /// Reads among them.
    #[must_use]
    pub(crate) fn gets(&self) -> u64 {
        self.hits + self.misses
    }

    /// Share of reads that hit, if there were any.
    #[must_use]
    pub(crate) fn hit_ratio(&self) -> Option<f64> {
        (self.gets() > 0).then(|| self.hits as f64 / self.gets() as f64)
    }

    /// The latencies, in nanoseconds.
    #[must_use]
    pub(crate) fn latencies(&self) -> &Histogram<u64> {
        &self.latency_ns
    }

    /// Adds what another client counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.puts += other.puts;
        self.errors += other.errors;
        self.wrong_values += other.wrong_values;
        let same_bounds = self.latency_ns.add(&other.latency_ns);
        debug_assert!(same_bounds.is_ok());
    }
}

impl Default for RunCounters {
    fn default() -> Self {
        Self::new()
    }
}
