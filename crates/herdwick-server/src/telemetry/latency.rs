//! Latency histograms: how long requests took, by command, as one front end measured it. A front end records
//! the requests of a turn or of a pass at once, so that the clock is read once for all of them.

use std::{ops::AddAssign, time::Duration};

use herdwick_request::{Op, Request};

/// Buckets of a histogram in each octave of nanoseconds, as a power of two: a quantile is at most a quarter
/// too high.
const SUB_BITS: u32 = 2;
/// The first bucket begins at this power of two: 128 ns. What takes less is counted there.
const LEAST_BITS: u32 = 7;
/// The last of the buckets that end does so at this power of two: 34 s.
const MOST_BITS: u32 = 35;
/// What takes longer is counted in a bucket behind the others, which has no end.
const OVERFLOW: usize = ((MOST_BITS - LEAST_BITS) << SUB_BITS) as usize;
const BUCKETS: usize = OVERFLOW + 1;

/// The commands that have a histogram each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimedCommand {
    Get,
    Touch,
    Set,
    Incr,
    Delete,
}

impl TimedCommand {
    pub(crate) const ALL: [Self; 5] = [Self::Get, Self::Touch, Self::Set, Self::Incr, Self::Delete];

    #[inline]
    pub(crate) fn of(op: &Op<'_>) -> Self {
        match op {
            Op::Get(get) if get.touch.is_some() => Self::Touch,
            Op::Get(_) => Self::Get,
            Op::Put(_) => Self::Set,
            Op::Arith(_) => Self::Incr,
            Op::Delete(_) => Self::Delete,
        }
    }

    /// Returns the name, as in memcached's statistics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Touch => "touch",
            Self::Set => "set",
            Self::Incr => "incr",
            Self::Delete => "delete",
        }
    }
}

/// Requests of which the time is not recorded yet, by command.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommandCounts {
    counts: [u32; TimedCommand::ALL.len()],
    /// A bit for each command whose count is not 0: most turns have requests of one command, and the
    /// others are not looked at.
    present: u8,
}

impl CommandCounts {
    /// Adds requests.
    #[inline]
    pub(crate) fn add(&mut self, requests: &[Request<'_>]) {
        for request in requests {
            let command = TimedCommand::of(&request.op) as usize;
            self.counts[command] += 1;
            self.present |= 1 << command;
        }
    }

    /// Returns how many they are.
    pub(crate) fn sum(&self) -> u64 {
        self.counts.iter().map(|&count| u64::from(count)).sum()
    }

    /// Removes and returns the count of a command that has one.
    #[inline]
    fn pop(&mut self) -> Option<(usize, u32)> {
        if self.present == 0 {
            return None;
        }
        let command = self.present.trailing_zeros() as usize;
        self.present &= self.present - 1;
        // Always: a bit is set with its count.
        let count = self.counts.get_mut(command)?;
        Some((command, std::mem::take(count)))
    }
}

/// The histograms of one front end, by command.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatencyHistograms([Histogram; TimedCommand::ALL.len()]);

impl LatencyHistograms {
    /// Records requests that took `nanos` nanoseconds each, and clears their counts.
    #[inline]
    pub(crate) fn record(&mut self, requests: &mut CommandCounts, nanos: u64) {
        while let Some((command, count)) = requests.pop() {
            self.0[command].record(nanos, count.into());
        }
    }

    /// Returns the histogram of each command that was requested.
    pub(crate) fn requested(&self) -> impl Iterator<Item = (TimedCommand, &Histogram)> {
        let all = TimedCommand::ALL.into_iter().zip(&self.0);
        all.filter(|(_, histogram)| histogram.count > 0)
    }
}

impl AddAssign<&Self> for LatencyHistograms {
    fn add_assign(&mut self, other: &Self) {
        for (sum, part) in self.0.iter_mut().zip(&other.0) {
            *sum += part;
        }
    }
}

/// A histogram with buckets whose width grows with the time.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    buckets: [u64; BUCKETS],
    count: u64,
    sum_nanos: u64,
    max_nanos: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: [0; BUCKETS],
            count: 0,
            sum_nanos: 0,
            max_nanos: 0,
        }
    }
}

impl Histogram {
    #[inline]
    fn record(&mut self, nanos: u64, count: u64) {
        self.buckets[bucket(nanos)] += count;
        self.count += count;
        // Of centuries, and a clock that jumps: it may not overflow.
        self.sum_nanos = self.sum_nanos.saturating_add(nanos.saturating_mul(count));
        self.max_nanos = self.max_nanos.max(nanos);
    }

    /// Returns the number of requests.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of the times.
    pub(crate) fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos)
    }

    /// Returns the longest time.
    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.max_nanos)
    }

    /// Returns the mean time.
    pub(crate) fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos / self.count.max(1))
    }

    /// Returns a time that `per_mille` of 1,000 requests did not exceed: the end of a bucket, or the longest time.
    pub(crate) fn quantile(&self, per_mille: u64) -> Duration {
        // In 128 bits, since the product may exceed 64.
        let wanted = (u128::from(self.count) * u128::from(per_mille)).div_ceil(1000);
        let mut seen = 0;
        let at = self.buckets.iter().position(|&count| {
            seen += u128::from(count);
            // At least one request, so that empty buckets at the beginning are passed over.
            seen >= wanted.max(1)
        });
        let end = match at {
            None | Some(OVERFLOW) => self.max_nanos,
            Some(at) => bucket_end(at).min(self.max_nanos),
        };
        Duration::from_nanos(end)
    }

    /// Returns the end of each octave, with the number of requests that took no longer. What took longer than the
    /// last is in [`count`](Self::count()) only.
    pub(crate) fn octaves(&self) -> impl Iterator<Item = (Duration, u64)> {
        let octaves = self.buckets[..OVERFLOW].chunks(1 << SUB_BITS).enumerate();
        octaves.scan(0, |seen, (octave, buckets)| {
            *seen += buckets.iter().sum::<u64>();
            let end = bucket_end((octave << SUB_BITS) + buckets.len() - 1);
            Some((Duration::from_nanos(end), *seen))
        })
    }
}

impl AddAssign<&Self> for Histogram {
    fn add_assign(&mut self, other: &Self) {
        let sums = self.buckets.iter_mut().zip(&other.buckets);
        sums.for_each(|(sum, part)| *sum += part);
        self.count += other.count;
        self.sum_nanos = self.sum_nanos.saturating_add(other.sum_nanos);
        self.max_nanos = self.max_nanos.max(other.max_nanos);
    }
}

/// Returns the bucket of a time: a bucket ends with its largest time, as those of Prometheus do.
#[inline]
fn bucket(nanos: u64) -> usize {
    // Less one, so that a bucket includes its end.
    let nanos = nanos.clamp(1 + (1 << LEAST_BITS), 1 + (1 << MOST_BITS)) - 1;
    let bits = nanos.ilog2();
    let sub = nanos >> (bits - SUB_BITS) & ((1 << SUB_BITS) - 1);
    // Below `BUCKETS`.
    ((bits - LEAST_BITS) << SUB_BITS) as usize + sub as usize
}

/// Returns the largest time of a bucket that ends, in nanoseconds.
fn bucket_end(bucket: usize) -> u64 {
    let (octave, sub) = (bucket >> SUB_BITS, bucket as u64 & ((1 << SUB_BITS) - 1));
    ((1 << SUB_BITS) + sub + 1) << (octave as u32 + LEAST_BITS - SUB_BITS)
}

/// The histograms of one transport.
#[derive(Clone, Debug)]
pub(crate) struct TransportLatency {
    pub(crate) transport: &'static str,
    pub(crate) histograms: Box<LatencyHistograms>,
}

#[cfg(test)]
mod tests {
    use std::array;

    use super::*;

    fn histogram(times: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::default();
        times
            .into_iter()
            .for_each(|nanos| histogram.record(nanos, 1));
        histogram
    }

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        for at in 0..OVERFLOW {
            let end = bucket_end(at);
            assert_eq!(bucket(end), at, "the end of bucket {at}");
            assert_eq!(bucket(end + 1), at + 1, "behind the end of bucket {at}");
        }
        for (nanos, at) in [
            (0, 0),
            (128, 0),
            (160, 0),
            (161, 1),
            (1 << MOST_BITS, OVERFLOW - 1),
            (u64::MAX, OVERFLOW),
        ] {
            assert_eq!(bucket(nanos), at, "{nanos} ns");
        }
    }

    /// Against the sorted times themselves.
    #[test]
    fn quantiles_are_at_most_a_quarter_too_high() {
        let mut times: Vec<u64> = (0..5000u64)
            .map(|n| 200 + n * n * 7919 % 3_000_017)
            .collect();
        let of = histogram(times.iter().copied());
        times.sort_unstable();
        for per_mille in [1, 500, 900, 990, 999, 1000] {
            let exact = times[(5 * per_mille as usize).max(1) - 1] as f64;
            let ratio = of.quantile(per_mille).as_nanos() as f64 / exact;
            assert!((1.0..=1.25).contains(&ratio), "{per_mille}: {ratio}");
        }
        assert_eq!(of.max().as_nanos() as u64, times[4999]);
        assert_eq!(of.sum().as_nanos() as u64, times.iter().sum::<u64>());
        assert_eq!(histogram([]).quantile(999), Duration::ZERO);
        assert_eq!(
            histogram([300]).quantile(500).as_nanos(),
            300,
            "no more than the longest"
        );
    }

    /// Three requests of an hour behind one of 200 ns.
    #[test]
    fn quantile_beyond_the_buckets_is_the_longest_time() {
        const HOUR: u64 = 3_600_000_000_000;
        let of = histogram([200, HOUR - 2, HOUR - 1, HOUR]);
        for (per_mille, nanos) in [(250, 224), (251, HOUR), (1000, HOUR)] {
            assert_eq!(of.quantile(per_mille).as_nanos() as u64, nanos);
        }
        let (end, last) = of.octaves().last().unwrap();
        assert_eq!(
            (last, of.count()),
            (1, 4),
            "more than {end:?} is in the count only"
        );
    }

    #[test]
    fn octaves_count_what_took_no_longer() {
        let of = histogram([1, 256, 257, 512, 1 << 35, 1 << 36]);
        let counts: Vec<(u128, u64)> = of
            .octaves()
            .map(|(end, count)| (end.as_nanos(), count))
            .collect();
        assert_eq!(counts[..3], [(256, 2), (512, 4), (1024, 4)]);
        assert_eq!(counts.last(), Some(&(1 << 35, 5)));
        let all: [u128; (MOST_BITS - LEAST_BITS) as usize] = array::from_fn(|n| 256 << n);
        assert!(counts.iter().map(|(end, _)| *end).eq(all));
    }

    #[test]
    fn sums_add_what_each_part_has_counted() {
        let mut sum = histogram([200, 70_000]);
        sum += &histogram([90, 5_000_000]);
        let whole = histogram([200, 70_000, 90, 5_000_000]);
        assert_eq!(format!("{sum:?}"), format!("{whole:?}"));
    }
}
