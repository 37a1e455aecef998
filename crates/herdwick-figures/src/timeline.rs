//! Timelines of simulated runs as SVG: rate, latency, and when faults happened, above one axis of virtual time.

use std::time::Duration;

use herdwick_sim_bench::{Answered, FaultKind, FaultReport, Report};
use plotters::{coord::Shift, prelude::*};

use crate::{
    draw::DrawError,
    drawing::{Drawn, WIDTH},
};

/// Parts of the time for which a rate and percentiles are computed.
const PARTS: usize = 100;
/// Heights of the chart of rates, of that of latencies, and of a row of faults.
const RATE_HEIGHT: u32 = 240;
const LATENCY_HEIGHT: u32 = 200;
const ROW_HEIGHT: u32 = 18;
/// Room for the title, and around the charts.
const TITLE_HEIGHT: u32 = 34;
const MARGIN: u32 = 10;
const LABELS: u32 = 80;
const RATE_COLOUR: RGBColor = RGBColor(0, 114, 178);
const MEDIAN_COLOUR: RGBColor = RGBColor(0, 158, 115);
const P99_COLOUR: RGBColor = RGBColor(213, 94, 0);
const FAULT_COLOUR: RGBColor = RGBColor(204, 121, 167);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Values at times in microseconds.
type Curve = Vec<(f64, f64)>;

/// What happened in a run, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    title: String,
    /// Its end, in microseconds.
    end: f64,
    /// 10^6 answers a second.
    rate: Curve,
    /// The median and the 99th percentile, in microseconds; none of a run under faults, whose requests wait for
    /// them.
    latency: Option<[Curve; 2]>,
    /// Kinds of faults, each with its beginnings and ends.
    faults: Vec<(&'static str, Vec<[f64; 2]>)>,
}

impl Timeline {
    /// Returns that of a run without faults, which was measured for so long.
    #[must_use]
    pub fn of_run(title: &str, report: &Report, measured: Duration) -> Self {
        let end = us(measured);
        let mut parts = vec![Vec::new(); PARTS];
        for Answered { at, took_ns } in &report.answers {
            parts[part(us(*at), end)].push(*took_ns);
        }
        let counts = parts.iter().map(|part| part.len() as f64);
        let rate = rates(counts, end);
        parts.iter_mut().for_each(|part| part.sort_unstable());
        let percentile = |percent: usize| {
            let filled = parts
                .iter()
                .enumerate()
                .filter(|(_, part)| !part.is_empty());
            let value = |part: &Vec<u64>| part[(part.len() - 1) * percent / 100] as f64 / 1000.0;
            filled
                .map(|(index, part)| (middle(index, end), value(part)))
                .collect()
        };
        Self {
            title: title.to_owned(),
            end,
            rate,
            latency: Some([percentile(50), percentile(99)]),
            faults: Vec::new(),
        }
    }

    /// Returns that of a run under faults, to its end without them.
    #[must_use]
    pub fn of_faults(title: &str, report: &FaultReport) -> Self {
        let end = us(report.took);
        let mut counts = vec![0.0; PARTS];
        let (mut from, mut before) = (0.0, 0);
        for (at, answered) in &report.progress {
            let until = us(*at);
            spread((answered - before) as f64, [from, until], end, &mut counts);
            (from, before) = (until, *answered);
        }
        let spans_of = |kind: FaultKind| {
            let spans = report.spans.iter().filter(move |span| span.kind == kind);
            spans
                .map(|span| [us(span.from), us(span.until)])
                .collect::<Vec<_>>()
        };
        let faults = FaultKind::ALL.map(|kind| (kind.name(), spans_of(kind)));
        let happened = |(_, spans): &(_, Vec<_>)| !spans.is_empty();
        Self {
            title: title.to_owned(),
            end,
            rate: rates(counts.into_iter(), end),
            latency: None,
            faults: faults.into_iter().filter(happened).collect(),
        }
    }

    /// Draws it.
    ///
    /// # Errors
    /// [`DrawError`].
    pub fn to_svg(&self) -> Result<String, DrawError> {
        let mut svg = String::new();
        self.plot(&mut svg)
            .map_err(|error| DrawError::new("a timeline", error.to_string()))?;
        Ok(svg)
    }

    fn plot(&self, svg: &mut String) -> Drawn<()> {
        let latency_height = self.latency.as_ref().map_or(0, |_| LATENCY_HEIGHT);
        let rows = ROW_HEIGHT * self.faults.len() as u32;
        let height = TITLE_HEIGHT + RATE_HEIGHT + latency_height + rows + MARGIN;
        let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (title, charts) = root.split_vertically(TITLE_HEIGHT);
        let at = (MARGIN as i32, MARGIN as i32);
        title.draw(&Text::new(self.title.clone(), at, ("sans-serif", 15)))?;
        let (rate, below) = charts.split_vertically(RATE_HEIGHT);
        let curves = [(&self.rate, RATE_COLOUR, "")];
        self.chart(&rate, "M answers/s", &curves)?;
        let (latency, below) = below.split_vertically(latency_height);
        if let Some([median, p99]) = &self.latency {
            let curves = [(median, MEDIAN_COLOUR, "median"), (p99, P99_COLOUR, "p99")];
            self.chart(&latency, "latency, us", &curves)?;
        }
        self.rows(&below)?;
        root.present()?;
        Ok(())
    }

    /// Draws curves above the axis of time.
    fn chart(&self, area: &Area<'_>, what: &str, curves: &[(&Curve, RGBColor, &str)]) -> Drawn<()> {
        let values = curves.iter().flat_map(|(curve, ..)| curve.iter());
        let top = values.map(|(_, value)| *value).fold(0.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .margin_left(MARGIN)
            .margin_right(MARGIN)
            .x_label_area_size(36)
            .y_label_area_size(LABELS)
            .build_cartesian_2d(0.0..self.end.max(1e-3), 0.0..(top * 1.1).max(1e-3))?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .max_light_lines(1)
            .x_label_formatter(&|us| format!("{us:.0}"))
            .x_desc("virtual time, us")
            .y_desc(what)
            .draw()?;
        for (index, (curve, colour, name)) in curves.iter().enumerate() {
            let points = curve.iter().copied();
            chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
            let style = ("sans-serif", 12).into_font().color(colour);
            let at = ((LABELS + 2 * MARGIN) as i32, 2 + 14 * index as i32);
            area.draw(&Text::new((*name).to_owned(), at, style))?;
        }
        Ok(())
    }

    /// Draws a row for each kind of fault, with bars while it lasts.
    fn rows(&self, area: &Area<'_>) -> Drawn<()> {
        let left = f64::from(MARGIN + LABELS);
        let scale = (f64::from(WIDTH - MARGIN) - left) / self.end.max(1e-3);
        let x = |us: f64| (left + us * scale) as i32;
        for (index, (name, spans)) in self.faults.iter().enumerate() {
            let top = (ROW_HEIGHT * index as u32) as i32;
            let at = (MARGIN as i32, top + 2);
            area.draw(&Text::new((*name).to_owned(), at, ("sans-serif", 12)))?;
            for [from, until] in spans {
                // One that does not last is seen, too.
                let right = x(*until).max(x(*from) + 2);
                let corners = [(x(*from), top + 3), (right, top + ROW_HEIGHT as i32 - 3)];
                area.draw(&Rectangle::new(corners, FAULT_COLOUR.filled()))?;
            }
        }
        Ok(())
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Returns the part of the time that a moment is in, of [`PARTS`].
fn part(at: f64, end: f64) -> usize {
    // The end itself is in the last part.
    ((at / end * PARTS as f64) as usize).min(PARTS - 1)
}

/// Adds `count` to the parts that a time overlaps, to each by how much of that time it has.
fn spread(count: f64, [from, until]: [f64; 2], end: f64, parts: &mut [f64]) {
    let width = end / parts.len() as f64;
    let lasts = until - from;
    // All of them came at one moment.
    if lasts <= 0.0 {
        parts[part(until, end)] += count;
        return;
    }
    let first = part(from, end);
    let overlapped = parts[first..=part(until, end)].iter_mut();
    for (index, sum) in (first..).zip(overlapped) {
        let left = index as f64 * width;
        let overlap = until.min(left + width) - from.max(left);
        *sum += count * overlap.max(0.0) / lasts;
    }
}

/// Returns the middle of a part.
fn middle(index: usize, end: f64) -> f64 {
    (index as f64 + 0.5) * end / PARTS as f64
}

/// Returns answers of each part as 10^6 a second.
fn rates(counts: impl Iterator<Item = f64>, end: f64) -> Curve {
    let part = end / PARTS as f64;
    let rate = |(index, count)| (middle(index, end), count / part);
    counts.enumerate().map(rate).collect()
}

#[cfg(test)]
mod tests {
    use herdwick_sim::Profile;
    use herdwick_sim_bench::{FaultRun, Run};

    use super::*;

    /// The mean of all parts is the rate of the run, and of the medians near its median.
    #[test]
    fn a_run_is_divided_into_parts() {
        let run = Run {
            clients: 8,
            machines: 4,
            workers: 2,
            keys: 1000,
            ..Run::default()
        };
        let report = run.on(&Profile::named("apt").unwrap()).unwrap();
        let timeline = Timeline::of_run("herd", &report, run.span.measured);
        let mean = timeline.rate.iter().map(|(_, rate)| rate).sum::<f64>() / PARTS as f64;
        assert!((mean / report.outcome.mops - 1.0).abs() < 1e-6, "{mean}");
        let [medians, p99] = timeline.latency.as_ref().unwrap();
        assert_eq!((medians.len(), p99.len()), (PARTS, PARTS));
        let above = medians
            .iter()
            .zip(p99)
            .all(|(median, p99)| p99.1 >= median.1);
        assert!(above && medians[0].1 > 0.5, "{:?}", medians[0]);
        let svg = timeline.to_svg().unwrap();
        for word in ["herd", "M answers/s", "latency, us", "p99"] {
            assert!(svg.contains(word), "{word}");
        }
    }

    #[test]
    fn answers_between_two_looks_are_spread_over_that_time() {
        let mut parts = vec![0.0; PARTS];
        spread(6.0, [5.0, 20.0], 1000.0, &mut parts);
        assert_eq!(parts[..3], [2.0, 4.0, 0.0]);
        spread(3.0, [999.0, 1000.0], 1000.0, &mut parts);
        spread(1.0, [15.0, 15.0], 1000.0, &mut parts);
        assert_eq!((parts[1], parts[PARTS - 1]), (5.0, 3.0));
    }

    #[test]
    fn faults_are_where_they_happened() {
        let run = FaultRun {
            operations: 4000,
            ..FaultRun::default()
        };
        let report = run.on(&Profile::named("apt").unwrap()).unwrap();
        let timeline = Timeline::of_faults("herd", &report);
        let spans = timeline.faults.iter().flat_map(|(_, spans)| spans);
        assert!(
            spans
                .clone()
                .all(|[from, until]| from <= until && *until <= timeline.end)
        );
        assert_eq!(spans.count(), report.happened.len());
        let injected = FaultKind::ALL.into_iter().zip(&report.injected);
        for (kind, injected) in injected.filter(|(_, injected)| injected.faults > 0) {
            let row = timeline
                .faults
                .iter()
                .find(|(name, _)| *name == kind.name());
            assert_eq!(row.unwrap().1.len() as u64, injected.faults);
        }
        let part = timeline.end / PARTS as f64;
        let answered: f64 = timeline.rate.iter().map(|(_, rate)| rate * part).sum();
        assert!(
            (answered - report.answered as f64).abs() < 0.5,
            "{answered}"
        );
        let svg = timeline.to_svg().unwrap();
        assert!(timeline.faults.iter().all(|(name, _)| svg.contains(name)));
    }
}
