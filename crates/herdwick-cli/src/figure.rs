//! `herdwick figure` and `herdwick report`: measure the figures of the HERD paper, and write them.

use std::{
    fs,
    io::{self, IsTerminal, Write, stderr},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use herdwick_bench::{Fabric, Progress};
use herdwick_figures::{
    DrawError, Drawing, FIGURES, Figure, FigureError, Terms, find, page, run, simulate, to_csv,
    to_svg, to_text, unmeasured,
};
use herdwick_sim::Profile;

use crate::{exit::Exit, say};

/// Measure a figure of the HERD paper on this host and draw it, with the points that the paper's text
/// gives.
///
/// Prints a chart, and writes figure-N-FABRIC.svg, .csv and .json; figure-8 and figure-14, which no fabric
/// has a part in. Table 1 has no .svg.
#[derive(Args, Clone, Debug)]
pub(crate) struct FigureArgs {
    /// Number of the figure, 2 to 14, or table1.
    #[arg(value_name = "N", value_parser = parse_figure)]
    figure: &'static str,
    #[command(flatten)]
    terms: FigureTerms,
    /// Directory to write to; made if it is not there.
    #[arg(long, default_value = ".", value_name = "DIR")]
    out: PathBuf,
    /// Seconds of measurement for all points of the figure together [default: 60].
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
}

/// Default of `--seconds`, which the points of a figure share.
const FIGURE_SECONDS: f64 = 60.0;
/// And of a report's, for each figure.
const REPORT_SECONDS: f64 = 30.0;
/// Default of `--minutes`.
const REPORT_MINUTES: f64 = 15.0;

/// Measure Table 1 and all figures of the HERD paper, and write them on one HTML page.
///
/// Writes index.html, which needs no other file, and the files of `herdwick figure`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    terms: FigureTerms,
    /// Directory to write to; made if it is not there.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Seconds of measurement for each figure [default: 30]; fewer if --minutes leaves fewer.
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Minutes that all figures may take. A figure for which no time is left is named as missing.
    #[arg(long, default_value_t = REPORT_MINUTES, value_name = "M")]
    minutes: f64,
}

#[derive(Args, Clone, Debug)]
struct FigureTerms {
    /// Fabric to measure on: shm, verbs, roce; or sim:PROFILE, as sim:apt, to run it on simulated RNICs in
    /// virtual time [default: shm].
    #[arg(long, value_parser = parse_place)]
    fabric: Option<Place>,
}

/// Where a figure comes from.
#[derive(Clone, Debug)]
enum Place {
    /// Measured on a fabric of this host.
    Here(Fabric),
    /// Simulated: the profile's name, and the profile.
    Simulated(String, Box<Profile>),
}

/// What `--fabric` begins with for the simulator.
const SIMULATOR: &str = "sim:";

fn parse_figure(text: &str) -> Result<&'static str, String> {
    let unknown = || format!("'{text}' is no figure of the paper: give 2 to 14, or table1");
    find(text).map(|figure| figure.name).ok_or_else(unknown)
}

fn parse_place(text: &str) -> Result<Place, String> {
    if let Some(name) = text.strip_prefix(SIMULATOR) {
        let profile = crate::sim::profile(name)?;
        return Ok(Place::Simulated(name.to_owned(), Box::new(profile)));
    }
    let names = herdwick_providers::Fabric::list(herdwick_providers::Fabric::name, ", ");
    match text.parse::<Fabric>() {
        Ok(fabric) if fabric.is_herd() => Ok(Place::Here(fabric)),
        Ok(_) => Err(format!("'{text}' has no verbs: give one of {names}")),
        Err(_) => Err(format!(
            "'{text}' is not one fabric: give one of {names}, or {SIMULATOR}apt"
        )),
    }
}

/// Why no figure was written.
#[derive(Debug, thiserror::Error)]
enum FigureFailure {
    #[error("--seconds must be above 0")]
    Seconds,
    #[error("--minutes must be above 0")]
    Minutes,
    #[error(
        "figure {figure} is not measured, but drawn from constants or counted: leave out {option}"
    )]
    Useless {
        figure: &'static str,
        option: &'static str,
    },
    #[error("the simulator's time is virtual: leave out --seconds")]
    Virtual,
    #[error("{0} requests failed or had a wrong value; each figure names them")]
    Unsound(u64),
    #[error(transparent)]
    Measured(#[from] FigureError),
    #[error(transparent)]
    Drawn(#[from] DrawError),
    #[error("{} cannot be written: {source}; give another directory (--out)", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    #[error("cannot write to standard output: {0}")]
    Unshown(io::Error),
}

impl From<&FigureFailure> for Exit {
    fn from(failure: &FigureFailure) -> Self {
        match failure {
            FigureFailure::Seconds
            | FigureFailure::Minutes
            | FigureFailure::Useless { .. }
            | FigureFailure::Virtual => Self::Usage,
            FigureFailure::Unsound(_) => Self::No,
            FigureFailure::Measured(FigureError::Bench(error)) => error.into(),
            FigureFailure::Measured(FigureError::Late { .. })
            | FigureFailure::Drawn(_)
            | FigureFailure::Unwritable { .. }
            | FigureFailure::Unshown(_) => Self::Failed,
        }
    }
}

/// Runs `herdwick figure`.
pub(crate) fn figure(args: &FigureArgs) -> ExitCode {
    ended(measured(args).and_then(|drawings| sound(&drawings)))
}

fn measured(args: &FigureArgs) -> Result<Vec<Drawing>, FigureFailure> {
    let figures = || FIGURES.iter().filter(|figure| figure.name == args.figure);
    let options = [
        ("--fabric", args.terms.fabric.is_some()),
        ("--seconds", args.seconds.is_some()),
    ];
    for figure in figures().filter(|figure| !figure.is_measured()) {
        if let Some((option, _)) = options.iter().find(|(_, given)| *given) {
            let figure = figure.name;
            return Err(FigureFailure::Useless { figure, option });
        }
    }
    let must = |_, _: &_, error| Err(FigureFailure::Measured(error));
    let terms = (&args.terms, args.seconds, FIGURE_SECONDS);
    draw_all(figures(), terms, None, &args.out, must, |_| Ok(()))
}

/// Fails if a request failed.
fn sound(drawings: &[Drawing]) -> Result<(), FigureFailure> {
    match drawings.iter().map(|drawing| drawing.failed).sum() {
        0 => Ok(()),
        failed => Err(FigureFailure::Unsound(failed)),
    }
}

/// Runs `herdwick report`.
pub(crate) fn report(args: &ReportArgs) -> ExitCode {
    ended(reported(args))
}

fn reported(args: &ReportArgs) -> Result<(), FigureFailure> {
    let budget = Budget::new(args.minutes)?;
    // One figure that fails does not take the others along, unless none could be measured.
    let mut first = None;
    let without = |figure, terms: &_, error| {
        let drawing = unmeasured(figure, terms, &error);
        first.get_or_insert(error);
        Ok(drawing)
    };
    let path = args.out.join("index.html");
    // Written after each figure: a report that is interrupted has the figures until then.
    let so_far = |drawings: &[Drawing]| write(&path, &page(drawings)?);
    let terms = (&args.terms, args.seconds, REPORT_SECONDS);
    let drawings = draw_all(
        FIGURES.iter(),
        terms,
        Some(budget),
        &args.out,
        without,
        so_far,
    )?;
    let seconds = budget.begun.elapsed().as_secs();
    let written = format!("{}, after {seconds} s\n", path.display());
    say::report(written).map_err(FigureFailure::Unshown)?;
    let measured = drawings
        .iter()
        // A simulated drawing has no manifest.
        .any(|drawing| drawing.manifest.is_some() || drawing.simulated.is_some());
    match first.filter(|_| !measured) {
        Some(error) => Err(error.into()),
        None => sound(&drawings),
    }
}

/// The time that a report may take.
#[derive(Clone, Copy, Debug)]
struct Budget {
    begun: Instant,
    minutes: f64,
    whole: Duration,
}

#[expect(
    clippy::disallowed_methods,
    reason = "a command that measures is a shell"
)]
fn now() -> Instant {
    Instant::now()
}

impl Budget {
    fn new(minutes: f64) -> Result<Self, FigureFailure> {
        let whole = Duration::try_from_secs_f64(minutes * 60.0);
        let whole = whole.map_err(|_| FigureFailure::Minutes)?;
        match whole.is_zero() {
            true => Err(FigureFailure::Minutes),
            false => Ok(Self {
                begun: now(),
                minutes,
                whole,
            }),
        }
    }

    /// Returns the seconds of the next figure: `seconds`, or its share of what is left after `spent` if
    /// that is less; `None` if a figure that takes as long as the `longest` until now would end too late.
    fn next(
        &self,
        seconds: f64,
        spent: Duration,
        (longest, left): (Duration, usize),
    ) -> Option<f64> {
        let rest = self.whole.checked_sub(spent)?;
        let share = rest.as_secs_f64() / left.max(1) as f64;
        (longest <= rest).then_some(seconds.min(share))
    }

    fn plan(&self, seconds: Option<f64>) -> String {
        let each = seconds.map_or_else(String::new, |seconds| format!(", {seconds} s for each"));
        let minutes = self.minutes;
        format!(
            "Table 1 and the figures 2 to 14{each}; at most {minutes} min, or a little more\n\n"
        )
    }
}

fn ended(result: Result<(), FigureFailure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say::complain(&failure);
            Exit::from(&failure).into()
        }
    }
}

/// Measures, prints and writes each figure, and passes all until then to `so_far`; `otherwise` handles a
/// figure of which nothing could be measured.
fn draw_all(
    figures: impl Iterator<Item = &'static Figure>,
    (terms, seconds, default): (&FigureTerms, Option<f64>, f64),
    budget: Option<Budget>,
    out: &Path,
    mut otherwise: impl FnMut(&'static Figure, &Terms, FigureError) -> Result<Drawing, FigureFailure>,
    so_far: impl Fn(&[Drawing]) -> Result<(), FigureFailure>,
) -> Result<Vec<Drawing>, FigureFailure> {
    if seconds.is_some() && matches!(terms.fabric, Some(Place::Simulated(..))) {
        return Err(FigureFailure::Virtual);
    }
    let seconds = seconds.unwrap_or(default);
    if !(seconds > 0.0 && seconds.is_finite()) {
        return Err(FigureFailure::Seconds);
    }
    can_write(out).map_err(unwritable(out))?;
    let (fabric, simulated) = match &terms.fabric {
        None => (Fabric::BEST, None),
        Some(Place::Here(fabric)) => (*fabric, None),
        // A fabric has no part in the figures that are not simulated.
        Some(Place::Simulated(name, profile)) => (Fabric::BEST, Some((name.as_str(), &**profile))),
    };
    let mut terms = Terms {
        fabric,
        seconds,
        program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("herdwick")),
    };
    if let Some(budget) = budget {
        let each = simulated.is_none().then_some(seconds);
        say::report(budget.plan(each)).map_err(FigureFailure::Unshown)?;
    }
    let figures: Vec<_> = figures.collect();
    let (mut drawings, mut longest) = (Vec::new(), Duration::ZERO);
    for (done, figure) in figures.iter().enumerate() {
        let begun = now();
        let place = (longest, figures.len() - done);
        let drawn = match has_time(figure, budget, seconds, place) {
            Ok(share) => {
                terms.seconds = share;
                draw(figure, simulated, &terms)
            }
            Err(late) => Err(late),
        };
        let drawing = drawn.or_else(|error| otherwise(figure, &terms, error))?;
        longest = longest.max(begun.elapsed());
        save(&drawing, out)?;
        say::report(format_args!("{}\n", to_text(&drawing))).map_err(FigureFailure::Unshown)?;
        drawings.push(drawing);
        so_far(&drawings)?;
    }
    Ok(drawings)
}

/// Returns the seconds that a figure gets. One that is not measured needs none.
fn has_time(
    figure: &Figure,
    budget: Option<Budget>,
    seconds: f64,
    place: (Duration, usize),
) -> Result<f64, FigureError> {
    let Some(budget) = budget.filter(|_| figure.is_measured()) else {
        return Ok(seconds);
    };
    let late = FigureError::Late {
        figure: figure.name.replace(' ', ""),
        minutes: budget.minutes,
    };
    budget
        .next(seconds, budget.begun.elapsed(), place)
        .ok_or(late)
}

/// Measures or simulates a figure.
fn draw(
    figure: &'static Figure,
    simulated: Option<(&str, &Profile)>,
    terms: &Terms,
) -> Result<Drawing, FigureError> {
    // What no RNIC has a part in is drawn all the same.
    let drawn = match simulated.filter(|_| figure.is_measured()) {
        Some(profile) => Ok(simulate(figure, profile)),
        None => run(figure, terms, &mut |progress| show(figure, progress)),
    };
    if stderr().is_terminal() {
        let _ = write!(stderr(), "\r\x1b[K");
    }
    drawn
}

/// Makes the directory, and for a moment a file in it, so that a wrong directory fails before the
/// measurement, not after it.
fn can_write(out: &Path) -> io::Result<()> {
    fs::create_dir_all(out)?;
    let probe = out.join(format!(".herdwick-{}", std::process::id()));
    fs::write(&probe, "")?;
    fs::remove_file(&probe)
}

fn show(figure: &Figure, progress: &Progress) {
    if stderr().is_terminal() {
        // Errors are ignored: the progress line is dispensable.
        let _ = write!(stderr(), "\r\x1b[K{}: {progress}", figure.name);
    }
}

/// Writes the files of a figure.
fn save(drawing: &Drawing, out: &Path) -> Result<(), FigureFailure> {
    let name = match drawing.name {
        "table 1" => "table-1".to_owned(),
        name => format!("figure-{name}"),
    };
    let name = match drawing.fabric.as_str() {
        "" => name,
        // A simulated one is `sim:` and a name, or the path of a profile.
        fabric => format!("{name}-{}", fabric.replace([':', '/'], "-")),
    };
    let path = |end: &str| out.join(format!("{name}.{end}"));
    write(&path("csv"), &to_csv(drawing))?;
    let json = serde_json::to_string_pretty(drawing).unwrap_or_default();
    write(&path("json"), &(json + "\n"))?;
    to_svg(drawing)?.map_or(Ok(()), |svg| write(&path("svg"), &svg))
}

fn write(path: &Path, text: &str) -> Result<(), FigureFailure> {
    fs::write(path, text).map_err(unwritable(path))
}

fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> FigureFailure {
    let path = path.to_owned();
    move |source| FigureFailure::Unwritable { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_with_failed_requests_has_the_code_of_a_no() {
        let terms = Terms {
            fabric: Fabric::BEST,
            seconds: 1.0,
            program: PathBuf::new(),
        };
        let mut drawing = run(find("8").unwrap(), &terms, &mut |_| ()).unwrap();
        assert!(sound(&[drawing.clone()]).is_ok());
        drawing.failed = 3;
        let failure = sound(&[drawing]).unwrap_err();
        assert_eq!(Exit::from(&failure), Exit::No);
        assert!(failure.to_string().starts_with("3 requests failed"));
    }

    #[test]
    fn figures_share_what_is_left_of_a_report() {
        let budget = Budget::new(15.0).unwrap();
        let seconds = Duration::from_secs;
        // As the default has it: 14 figures of 30 s fit.
        let first = budget.next(30.0, Duration::ZERO, (Duration::ZERO, 14));
        assert_eq!(first, Some(30.0));
        assert_eq!(
            budget.next(30.0, seconds(700), (seconds(60), 10)),
            Some(20.0)
        );
        // One as long as the longest would end after the budget.
        assert_eq!(
            budget.next(30.0, seconds(850), (seconds(50), 1)),
            Some(30.0)
        );
        assert_eq!(budget.next(30.0, seconds(851), (seconds(50), 1)), None);
        assert_eq!(budget.next(30.0, seconds(901), (Duration::ZERO, 1)), None);
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Budget::new(wrong).is_err(), "{wrong}");
        }
    }
}
