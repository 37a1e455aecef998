//! HdrHistogram's text format of percentiles (`.hgrm`), as its plotter reads it.

use std::fmt;

use hdrhistogram::Histogram;

/// A distribution of latencies as a `.hgrm` file, in microseconds.
#[derive(Debug)]
pub struct Percentiles<'a>(pub &'a Histogram<u64>);

/// Lines for each halving of the distance to 100 %, as in HdrHistogram's own files.
const TICKS: u32 = 5;
/// Nanoseconds (the unit of the histogram) in a microsecond (the unit of the file).
const NS_PER_US: f64 = 1000.0;

impl fmt::Display for Percentiles<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>12} {:>14} {:>10} {:>14}\n",
            "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
        )?;
        let (histogram, mut total) = (self.0, 0);
        for step in histogram.iter_quantiles(TICKS) {
            total += step.count_since_last_iteration();
            let (value, quantile) = (step.value_iterated_to() as f64, step.quantile_iterated_to());
            write!(f, "{:12.3} {quantile:2.12} {total:10}", value / NS_PER_US)?;
            // The last line would divide by 0.
            if quantile < 1.0 {
                write!(f, " {:14.2}", 1.0 / (1.0 - quantile))?;
            }
            writeln!(f)?;
        }
        let (mean, deviation) = (histogram.mean() / NS_PER_US, histogram.stdev() / NS_PER_US);
        let (max, count) = (histogram.max() as f64 / NS_PER_US, histogram.len());
        let (buckets, sub_buckets) = shape(histogram);
        writeln!(
            f,
            "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]"
        )?;
        writeln!(f, "#[Max     = {max:12.3}, Total count    = {count:12}]")?;
        writeln!(
            f,
            "#[Buckets = {buckets:12}, SubBuckets     = {sub_buckets:12}]"
        )
    }
}

/// Returns how the histogram is divided: the number of buckets, each twice as wide as the one
/// before, and the slots in each.
fn shape(histogram: &Histogram<u64>) -> (u32, u64) {
    let sub_buckets = (2 * 10_u64.pow(histogram.sigfig().into())).next_power_of_two();
    let mut buckets = 1;
    while sub_buckets << (buckets - 1) <= histogram.high() {
        buckets += 1;
    }
    (buckets, sub_buckets)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines of figures as HdrHistogram's plotter reads them: four columns, split at
    /// white space; comments and the heading are skipped.
    fn lines(text: &str) -> Vec<Vec<f64>> {
        let body = text
            .lines()
            .skip(1)
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let numbers = |line: &str| {
            line.split_whitespace()
                .map(|word| word.parse().unwrap())
                .collect()
        };
        body.map(numbers).collect()
    }

    #[test]
    fn percentiles_match_the_sorted_latencies() {
        let mut histogram = Histogram::new_with_bounds(1, 100_000_000_000, 3).unwrap();
        let mut sorted: Vec<u64> = (1..=10_000_u64).map(|i| i * i % 7_919 * 1000 + i).collect();
        sorted.iter().for_each(|ns| histogram.record(*ns).unwrap());
        sorted.sort_unstable();
        let text = Percentiles(&histogram).to_string();
        let lines = lines(&text);
        assert!(lines.len() > 30, "{text}");
        for line in &lines {
            let (value, quantile, total) = (line[0], line[1], line[2]);
            // Values are exact to three digits, counts are exact.
            let rank = ((quantile * 10_000.0).ceil() as usize).clamp(1, 10_000);
            let exact = sorted[rank - 1] as f64 / 1000.0;
            assert!((value / exact - 1.0).abs() < 0.002, "{line:?}: {exact}");
            let below = sorted
                .iter()
                .filter(|ns| **ns as f64 / 1000.0 <= value * 1.0005);
            assert!(below.count() as f64 >= total, "{line:?}");
            if line.len() == 4 {
                assert!((line[3] * (1.0 - quantile) - 1.0).abs() < 0.01, "{line:?}");
            }
        }
        let last = lines.last().unwrap();
        assert_eq!((last.len(), last[1], last[2]), (3, 1.0, 10_000.0));
        assert!(
            lines
                .windows(2)
                .all(|two| two[0][1] <= two[1][1] && two[0][0] <= two[1][0])
        );
        assert!(text.contains("Total count    =        10000]"), "{text}");
    }

    #[test]
    fn output_has_the_format_of_hdrhistogram_files() {
        // An hour in microseconds at three digits, the range of its README's example.
        let histogram = Histogram::new_with_bounds(1, 3_600_000_000, 3).unwrap();
        assert_eq!(shape(&histogram), (22, 2048));
    }
}
