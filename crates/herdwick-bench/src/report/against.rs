//! A report beside a baseline: the change of each figure, and the range that chance alone explains.

use std::fmt;

use super::{Outcome, Report, Run, Subject, numbers::name, wrap::wrapped};

/// A report, and an earlier one to compare it with; displays as a table.
#[derive(Debug)]
pub struct Against<'a> {
    /// The earlier report.
    pub baseline: &'a Report,
    /// The report of this run.
    pub report: &'a Report,
}

/// A figure of a run: its printed name, and how to read it.
struct ComparedFigure {
    name: &'static str,
    of: fn(&Run) -> Option<f64>,
}

const FIGURES: [ComparedFigure; 7] = [
    ComparedFigure {
        name: "kops/s",
        of: |run| Some(run.ops_per_s / 1000.0),
    },
    ComparedFigure {
        name: "hit %",
        of: |run| run.hit_ratio.map(|ratio| ratio * 100.0),
    },
    ComparedFigure {
        name: "p50 us",
        of: |run| run.latency_us.map(|latency| latency.p50),
    },
    ComparedFigure {
        name: "p99 us",
        of: |run| run.latency_us.map(|latency| latency.p99),
    },
    ComparedFigure {
        name: "p99.9 us",
        of: |run| run.latency_us.map(|latency| latency.p999),
    },
    ComparedFigure {
        name: "srv ns",
        of: |run| run.cpu_ns_per_op.server,
    },
    ComparedFigure {
        name: "cli ns",
        of: |run| run.cpu_ns_per_op.client,
    },
];

/// The values of a figure in the runs of one report.
struct FigureValues {
    median: f64,
    min: f64,
    max: f64,
    runs: usize,
}

impl FigureValues {
    fn of(outcome: &Outcome, figure: &ComparedFigure) -> Option<Self> {
        let values = outcome.per_run.iter().filter_map(figure.of);
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let upper = *values.get(values.len() / 2)?;
        Some(Self {
            median: f64::midpoint(values[(values.len() - 1) / 2], upper),
            min: values[0],
            max: *values.last()?,
            runs: values.len(),
        })
    }

    /// Returns the least and the largest change between any run before and any run now, in percent;
    /// `None` if either side has only one run.
    fn range(&self, before: &Self) -> Option<(f64, f64)> {
        let percent = |after: f64, before: f64| (after / before - 1.0) * 100.0;
        let low = percent(self.min, before.max);
        let high = percent(self.max, before.min);
        let known = self.runs > 1 && before.runs > 1 && low.is_finite() && high.is_finite();
        known.then_some((low, high))
    }
}

/// Returns whether both are figures of the same thing, whatever the version of the server.
fn same(a: &Subject, b: &Subject) -> bool {
    let plain = |subject: &Subject| Subject {
        server: None,
        ..subject.clone()
    };
    plain(a) == plain(b)
}

impl Against<'_> {
    fn text(&self) -> Result<String, fmt::Error> {
        use fmt::Write;
        let (mut text, manifest) = (String::new(), &self.baseline.manifest);
        writeln!(
            text,
            "\nagainst herdwick {} ({}): the change of each median, and in brackets from the least \
             to the largest change between two runs; * where that leaves 0 out",
            manifest.version, manifest.commit
        )?;
        let differs = manifest.machine.differences(&self.report.manifest.machine);
        if !differs.is_empty() {
            writeln!(
                text,
                "the baseline is of another machine: {}",
                differs.join(", ")
            )?;
        }
        writeln!(
            text,
            "{:<14} {:<9} {:>10} {:>10} {:>9}  range",
            "what", "figure", "before", "now", "change"
        )?;
        for outcome in &self.report.results {
            let mut before = self.baseline.results.iter();
            match before.find(|before| same(&before.subject, &outcome.subject)) {
                Some(before) => changes(&mut text, before, outcome)?,
                None => writeln!(
                    text,
                    "{:<14} not in the baseline, or measured with other options there",
                    name(&outcome.subject)
                )?,
            }
        }
        Ok(text)
    }
}

fn changes(text: &mut impl fmt::Write, before: &Outcome, after: &Outcome) -> fmt::Result {
    for figure in &FIGURES {
        let pair = (
            FigureValues::of(before, figure),
            FigureValues::of(after, figure),
        );
        let (Some(before), Some(now)) = pair else {
            continue;
        };
        let change = (now.median / before.median - 1.0) * 100.0;
        let range = match now.range(&before) {
            Some((low, high)) => {
                let mark = if low > 0.0 || high < 0.0 { " *" } else { "" };
                format!("[{low:+.1}..{high:+.1}]{mark}")
            }
            None => "[one run]".to_owned(),
        };
        let change = if change.is_finite() {
            format!("{change:+.1} %")
        } else {
            "-".to_owned()
        };
        writeln!(
            text,
            "{:<14} {:<9} {:>10.2} {:>10.2} {change:>9}  {range}",
            name(&after.subject),
            figure.name,
            before.median,
            now.median,
        )?;
    }
    Ok(())
}

impl fmt::Display for Against<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        wrapped(f, &self.text()?)
    }
}
