//! Measures a figure: a short benchmark for each point.

use herdwick_bench::{
    BenchError, Config, DesignError, DesignPlan, Dist, FigureClass, Level, Mix, Outcome, Progress,
    Report, Verb, VerbPlan, VerbTransport, compare, design, partition_shares, verb,
};

use crate::{
    drawing::{Drawing, FigureError, Line, PlotPoint, Terms},
    failures::{Failures, cannot_here},
    figure::{Figure, Load, Measure, SeriesSpec, Sweep, SweepPoint},
};

/// Least seconds of a point: enough for a window of the slowest system on a host that others use too.
const SECONDS_MIN: f64 = 0.1;
/// Seconds that a point takes beside its measurement: set-up, warm-up, the round trip of a line.
const OVERHEAD: f64 = 0.3;
/// Keys of a server.
const KEYS: u64 = 100_000;
/// Keys and draws of the load of partitions: the standard error of a sixth is below 0.2 % of it.
const PARTITION_KEYS: u64 = 8_000_000;
const DRAWS: usize = 2_000_000;
/// The text about a point without an answer.
const UNANSWERED: &str = "no request was answered in the time of a point";
/// Why an RNIC finds something else than the paper.
const HARDWARE: &str = "The RNIC, its link and the CPUs are others than the paper's.";

/// Measures `figure`. Points that cannot be measured are named in the drawing, with the reason.
///
/// # Errors
/// A benchmark failed, and no point could be measured.
pub fn run(
    figure: &'static Figure,
    terms: &Terms,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Drawing, FigureError> {
    let mut drawing = blank(figure, place(terms));
    let mut failures = Failures::default();
    if figure.name == "table 1" {
        table((&mut drawing, &mut failures), terms, watch);
        return failures.named(drawing);
    }
    if figure.name == "8" {
        drawing.rows = crate::region::rows();
    }
    let labels = figure.sweep.labels();
    // Figure 8 has neither labels nor series.
    let points = (labels.len() * figure.series.len()).max(1) as f64;
    let seconds = (terms.seconds / points - OVERHEAD).max(SECONDS_MIN);
    for series in figure.series {
        let mut line = Line {
            name: series.name.to_owned(),
            points: Vec::new(),
        };
        if let (Load::Partitions { zipf }, Sweep::Partitions(count)) = (series.load, figure.sweep) {
            line.points = shares(zipf, count);
        } else {
            let points = labels.iter().enumerate();
            for (index, label) in points.filter(|(index, _)| has_workers(figure, series, *index)) {
                match measure(figure, series.load, index, seconds, terms, watch) {
                    Ok(report) => {
                        cores(&mut drawing, (figure, series.name, label), &report);
                        add(&mut drawing, &mut line, (label, figure.measure), report);
                    }
                    Err(error) => failures.add(series.name, label, error),
                }
            }
        }
        drawing.series.push(line);
    }
    drawing.here = here(&drawing, figure.measure);
    failures.named(drawing)
}

/// Whether a point has as many workers as its system can have: servers in this process have one.
fn has_workers(figure: &Figure, series: &SeriesSpec, index: usize) -> bool {
    match (series.load, figure.sweep) {
        (Load::Other { .. }, Sweep::Workers(values)) => values[index] == 1,
        _ => true,
    }
}

/// Returns the drawing of a figure of which `error` left nothing: the paper's points alone.
#[must_use]
pub fn unmeasured(figure: &'static Figure, terms: &Terms, error: &FigureError) -> Drawing {
    let mut drawing = blank(figure, place(terms));
    drawing.missing.push(error.to_string());
    drawing
}

/// Returns the name and the class of the fabric.
pub(crate) fn place(terms: &Terms) -> (&str, FigureClass) {
    (terms.fabric.name(), terms.fabric.word())
}

/// Returns the drawing of a figure without points of its own.
pub(crate) fn blank(figure: &Figure, (fabric, class): (&str, FigureClass)) -> Drawing {
    let labels = figure.labels();
    let at = |x: f64| match (figure.measure, figure.sweep) {
        (Measure::LatencyOverMops, _) | (_, Sweep::Designs(_)) => x,
        _ => {
            let place = labels.iter().position(|label| label.parse() == Ok(x));
            place.map_or(f64::NAN, |place| place as f64)
        }
    };
    let mut paper: Vec<Line> = Vec::new();
    for point in figure.paper {
        let plotted = PlotPoint {
            x: at(point.x),
            y: point.y,
            low: point.y,
            high: point.y,
            median: None,
        };
        match paper.iter_mut().find(|line| line.name == point.series) {
            Some(line) => line.points.push(plotted),
            None => paper.push(Line {
                name: point.series.to_owned(),
                points: vec![plotted],
            }),
        }
    }
    let (fabric, word) = match figure.is_measured() {
        true => (fabric, class.name()),
        false => ("", ""),
    };
    Drawing {
        name: figure.name,
        title: figure.title,
        fabric: fabric.to_owned(),
        word: word.to_owned(),
        axes: [figure.x, figure.measure.label()],
        logarithmic: figure.measure.is_logarithmic(),
        bars: figure.has_bars(),
        labels: match figure.measure {
            Measure::LatencyOverMops => Vec::new(),
            _ => labels,
        },
        series: Vec::new(),
        paper,
        rows: Vec::new(),
        found: figure.found,
        here: String::new(),
        why: match class {
            FigureClass::Hardware if figure.is_measured() => HARDWARE,
            _ => figure.why,
        },
        missing: figure.missing.map(str::to_owned).into_iter().collect(),
        failed: 0,
        manifest: None,
        simulated: None,
    }
}

/// Adds the outcome of a point to its series, and the manifest to the drawing.
fn add(drawing: &mut Drawing, line: &mut Line, at: (&str, Measure), report: Report) {
    // One system over one fabric has one result.
    for outcome in report.results.iter().take(1) {
        add_point(drawing, line, at, outcome);
    }
    drawing.missing.extend(report.manifest.left_out.clone());
    drawing.manifest = Some(report.manifest);
}

fn add_point(
    drawing: &mut Drawing,
    line: &mut Line,
    (label, measure): (&str, Measure),
    outcome: &Outcome,
) {
    let place = drawing.labels.iter().position(|other| other == label);
    let (name, wrong) = (&line.name, outcome.errors + outcome.wrong_values);
    if wrong > 0 {
        drawing.failed += wrong;
        let failed = format!("{name} at {label}: {wrong} requests failed");
        drawing.missing.push(failed);
    }
    match plotted(outcome, place.unwrap_or(0), measure) {
        Some(point) => line.points.push(point),
        None => drawing
            .missing
            .push(format!("{name} at {label}: {UNANSWERED}; raise --seconds")),
    }
}

fn plotted(outcome: &Outcome, index: usize, measure: Measure) -> Option<PlotPoint> {
    let mops = outcome.ops_per_s / 1e6;
    if matches!(measure, Measure::Mops | Measure::Relative) {
        return Some(PlotPoint {
            x: index as f64,
            y: mops,
            low: outcome.ops_per_s_min / 1e6,
            high: outcome.ops_per_s_max / 1e6,
            median: None,
        });
    }
    let latency = outcome.latency_us?;
    let (x, y, median) = match measure {
        Measure::LatencyOverMops => (mops, latency.mean, Some(latency.p50)),
        _ => (index as f64, latency.p50, None),
    };
    Some(PlotPoint {
        x,
        y,
        low: latency.p5,
        high: latency.p95,
        median,
    })
}

/// Returns what is measured at one value of the x axis.
fn measure(
    figure: &Figure,
    load: Load,
    index: usize,
    seconds: f64,
    terms: &Terms,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    let mut config = Config {
        fabrics: vec![terms.fabric],
        program: terms.program.clone(),
        seconds,
        runs: 1,
        keys: KEYS,
        dist: Dist::Uniform,
        ..Config::default()
    };
    let SweepPoint {
        bytes,
        threads,
        clients,
        window: loaded,
        workers,
        put_percent: puts,
    } = figure.sweep.at(index);
    config.workers = workers.or(threads).or(config.workers);
    config.clients = clients.or(threads).unwrap_or(config.clients);
    match load {
        Load::Verb { .. } => verb(&config, &verb_plan(load, bytes, config.clients), watch),
        Load::Echo { level, .. } => {
            let plan = |level| {
                let mut plan = design_plan(load, bytes, level);
                if let Sweep::Designs(designs) = figure.sweep {
                    plan.designs = vec![designs[index].0];
                }
                plan
            };
            echo(&config, level, plan, watch)
        }
        Load::Herd {
            window,
            put_percent,
        } => {
            config.window = loaded.unwrap_or(window);
            config.value_size = bytes;
            config.mix = mix(puts.unwrap_or(put_percent));
            compare(&config, watch)
        }
        Load::Other {
            system,
            window,
            put_percent,
        } => {
            config.systems = vec![system];
            config.window = loaded.unwrap_or(window);
            config.value_size = bytes;
            config.mix = mix(puts.unwrap_or(put_percent));
            compare(&config, watch)
        }
        Load::Partitions { .. } => unreachable!("drawn from the distribution"),
    }
}

/// Measures an ECHO; without a level, payloads are inlined where they fit.
fn echo(
    config: &Config,
    level: Option<Level>,
    plan: impl Fn(Level) -> DesignPlan,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    if let Some(level) = level {
        return design(config, &plan(level), watch);
    }
    let inlined = design(config, &plan(Level::Inlined), watch);
    inlined.or_else(|error| match error {
        BenchError::Design(DesignError::Nothing(_)) => {
            design(config, &plan(Level::Unreliable), watch)
        }
        error => Err(error),
    })
}

/// Adds what an operation costs the server's CPUs, where the x axis has their number.
fn cores(drawing: &mut Drawing, (figure, name, label): (&Figure, &str, &str), report: &Report) {
    if !matches!(figure.sweep, Sweep::Workers(_)) {
        return;
    }
    if drawing.rows.is_empty() {
        let head = [
            "series",
            "server cores",
            "server CPU-seconds a million operations",
        ];
        drawing.rows.push(head.map(str::to_owned).to_vec());
    }
    let cost = report
        .results
        .first()
        .and_then(|outcome| outcome.cpu_ns_per_op.server);
    // A nanosecond an operation is a millisecond a million.
    let cost = cost.map_or_else(|| "not known".to_owned(), |ns| format!("{:.3}", ns / 1e3));
    drawing
        .rows
        .push(vec![name.to_owned(), label.to_owned(), cost]);
}

fn design_plan(load: Load, bytes: usize, level: Level) -> DesignPlan {
    let Load::Echo {
        design,
        window,
        accesses,
        prefetch,
        ..
    } = load
    else {
        return DesignPlan::default();
    };
    DesignPlan {
        designs: vec![design],
        levels: vec![level],
        payloads: vec![bytes],
        windows: vec![window],
        clients: vec![1],
        accesses: vec![accesses],
        prefetch: vec![prefetch],
    }
}

fn verb_plan(load: Load, bytes: usize, clients: usize) -> VerbPlan {
    let Load::Verb {
        verb,
        transport,
        direction,
        inline,
        all_to_all,
        window,
    } = load
    else {
        return VerbPlan::default();
    };
    VerbPlan {
        kinds: vec![verb],
        transports: vec![transport],
        inline: inline.into_iter().collect(),
        // As few completions as the window allows: the paper's verbs are selectively signaled.
        signaled: vec![window],
        payloads: vec![bytes],
        windows: vec![window],
        clients: vec![clients],
        directions: vec![direction],
        all_to_all,
        ..VerbPlan::default()
    }
}

fn mix(put_percent: u8) -> Mix {
    Mix::GetShare(1.0 - f64::from(put_percent) / 100.0)
}

/// Returns the load of each partition, the busiest first.
fn shares(zipf: bool, partitions: usize) -> Vec<PlotPoint> {
    let dist = if zipf {
        Dist::Zipf(0.99)
    } else {
        Dist::Uniform
    };
    let mut shares = partition_shares(dist, PARTITION_KEYS, partitions, DRAWS);
    shares.sort_by(|a, b| b.total_cmp(a));
    let point = |(index, share): (usize, f64)| {
        let y = share * partitions as f64;
        PlotPoint {
            x: index as f64,
            y,
            low: y,
            high: y,
            median: None,
        }
    };
    shares.into_iter().enumerate().map(point).collect()
}

/// Says the best of each series in a sentence.
pub(crate) fn here(drawing: &Drawing, measure: Measure) -> String {
    let best = |line: &Line| {
        let values = line.points.iter().map(|point| point.y);
        match measure {
            Measure::Mops | Measure::Relative => values.reduce(f64::max),
            Measure::LatencyUs | Measure::LatencyOverMops => values.reduce(f64::min),
        }
    };
    let unit = match measure {
        Measure::Mops => "Mops at most",
        Measure::Relative => "times the mean at most",
        Measure::LatencyUs | Measure::LatencyOverMops => "us at least",
    };
    let said = drawing.series.iter().filter_map(|line| {
        let best = best(line)?;
        Some(format!("{} {best:.2}", line.name))
    });
    let said: Vec<_> = said.collect();
    if said.is_empty() {
        return String::new();
    }
    let place = match measure {
        // Counted from draws of keys: no fabric has a part in it.
        Measure::Relative => "Of the keys drawn".to_owned(),
        _ => format!("Over {} ({})", drawing.fabric, drawing.word),
    };
    format!("{place}, {unit}: {}.", said.join(", "))
}

/// Measures Table 1: whether, and how fast, each transport carries each verb.
fn table(
    (drawing, failures): (&mut Drawing, &mut Failures),
    terms: &Terms,
    watch: &mut dyn FnMut(&Progress),
) {
    let transports = [VerbTransport::Rc, VerbTransport::Uc, VerbTransport::Ud];
    let verbs = [
        Verb::Send,
        Verb::Write,
        Verb::Read,
        Verb::FetchAdd,
        Verb::CompareSwap,
    ];
    drawing.rows = vec![["verb", "RC", "UC", "UD"].map(str::to_owned).to_vec()];
    let config = Config {
        fabrics: vec![terms.fabric],
        // Five verbs over three transports.
        seconds: (terms.seconds / 15.0 - OVERHEAD).max(SECONDS_MIN),
        runs: 1,
        ..Config::default()
    };
    for kind in verbs {
        let mut row = vec![kind.name().to_uppercase()];
        for transport in transports {
            let plan = VerbPlan {
                kinds: vec![kind],
                transports: vec![transport],
                ..VerbPlan::default()
            };
            row.push(match verb(&config, &plan, watch) {
                Ok(report) => {
                    let rate = report
                        .results
                        .first()
                        .map_or(0.0, |result| result.ops_per_s);
                    drawing.manifest = Some(report.manifest);
                    format!("yes ({:.2} Mops)", rate / 1e6)
                }
                Err(error) if cannot_here(&error) => "no".to_owned(),
                Err(error) => {
                    let at = format!("{} over {transport:?}", kind.name());
                    failures.add("Table 1", &at, error);
                    "failed".to_owned()
                }
            });
        }
        drawing.rows.push(row);
    }
}

#[cfg(test)]
mod tests;
