//! `herdwick sim`: systems, and the verbs alone, on simulated RNICs in virtual time.

mod args;
mod capacity;
mod faults;
mod fit;
mod measure;
mod point;
mod scenario;
mod sweep;
mod timeline;

use std::{fmt::Display, fs, process::ExitCode};

use herdwick_sim::{Profile, ProfileError};
use herdwick_sim_bench::{FaultRun, Report};

use crate::{exit::Exit, say};
pub(crate) use args::SimArgs;
use args::{Path, SimSubject};
use measure::{Measured, measure, us};
use point::{Point, points};

/// Runs it.
pub(crate) fn run(args: &SimArgs) -> ExitCode {
    let scenario = args.what.iter().find_map(|what| match what {
        SimSubject::Scenario(path) => Some(path),
        _ => None,
    });
    let Some(path) = scenario else {
        return run_all(args);
    };
    let runs = scenario::read(path, args);
    match runs {
        // Lazily: nothing runs behind one that failed.
        Ok(runs) => runs
            .iter()
            .map(run_all)
            .find(|code| *code != ExitCode::SUCCESS)
            .unwrap_or(ExitCode::SUCCESS),
        Err(error) => usage(error),
    }
}

fn usage(error: impl Display) -> ExitCode {
    say::complain(error);
    Exit::Usage.into()
}

/// Runs each combination of what the options list.
fn run_all(args: &SimArgs) -> ExitCode {
    let profiles = args
        .profile
        .iter()
        .map(|name| Ok((&name[..], profile(name)?)));
    let profiles: Result<Vec<(&str, Profile)>, String> = profiles.collect();
    let profiles = match profiles {
        Ok(profiles) => profiles,
        Err(error) => return usage(error),
    };
    if args.what.contains(&SimSubject::Fit) {
        return tell(fit::table(args, &profiles));
    }
    let points = points(args, &profiles);
    if args.timeline.is_some()
        && let Err(error) = one_system(args, &points)
    {
        return usage(error);
    }
    if !args.faults.is_empty() {
        let mut codes = points.iter().map(|point| under_faults(args, point));
        return codes
            .find(|code| *code != ExitCode::SUCCESS)
            .unwrap_or(ExitCode::SUCCESS);
    }
    let lines = match (args.capacity.zip(args.p99), &points[..]) {
        (Some(asked), points) => capacity::table(args, points, asked),
        (None, [point]) => report(args, point),
        (None, points) => sweep::table(args, points),
    };
    tell(lines)
}

/// Refuses a timeline of anything but one run of a system.
fn one_system(args: &SimArgs, points: &[Point<'_>]) -> Result<(), &'static str> {
    match points {
        [point] if args.seeds == 1 => match point.what {
            SimSubject::System(_) => Ok(()),
            _ => Err("--timeline is of a system: give one of them instead of verbs"),
        },
        _ => Err("--timeline is of one run: give each option one value, and no --seeds"),
    }
}

fn tell(lines: Result<String, String>) -> ExitCode {
    match lines.map(say::report) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            say::complain(error);
            Exit::Failed.into()
        }
        Err(error) => usage(error),
    }
}

fn under_faults(args: &SimArgs, point: &Point<'_>) -> ExitCode {
    let SimSubject::System(system) = point.what else {
        return usage("faults are for systems: give herd, farm, farm-var, pilaf or clover");
    };
    faults::run(&faults::Asked {
        run: FaultRun {
            system: *system,
            path: args.path.map(Path::of_requests),
            workers: point.workers,
            clients: point.clients,
            machines: args.machines,
            window: point.window,
            seed: args.seed,
            operations: args.operations,
            kinds: faults::kinds(&args.faults),
            only: args.only.clone(),
        },
        seeds: args.seeds,
        hash: args.hash,
        timeline: args.timeline.as_deref(),
        profile: (point.profile, point.profile_name),
    })
}

/// Returns the profile of this name, or of this file.
pub(crate) fn profile(name: &str) -> Result<Profile, String> {
    let told = |error: ProfileError| error.to_string();
    if !name.ends_with(".toml") {
        return Profile::named(name).map_err(told);
    }
    let text = fs::read_to_string(name).map_err(|error| format!("reading {name}: {error}"))?;
    Profile::parse(&text).map_err(told)
}

/// The report of one run; `sim` marks that nothing of it was measured on hardware.
fn report(args: &SimArgs, point: &Point<'_>) -> Result<String, String> {
    let Measured { outcome, report } = measure(args, point)?;
    let hash = format!("{:016x}", outcome.trace);
    if args.hash {
        return Ok(format!("{hash}\n"));
    }
    let more = report.map_or_else(String::new, |report| details(&report));
    let profile = point.profile;
    Ok(format!(
        "{} on sim:{} (sim: {})\n\
         rate      {:.2} M/s\n\
         {more}\
         events    {}, hash {hash}, seed {}\n",
        point.what.name(),
        profile.name,
        profile.about,
        outcome.mops,
        outcome.events,
        args.seed,
    ))
}

fn details(report: &Report) -> String {
    let cores = report
        .busy
        .iter()
        .map(|busy| format!("{:.0} %", 100.0 * busy));
    let cores: Vec<_> = cores.collect();
    let outcome = &report.outcome;
    let [mean, p5] = [outcome.mean_ns(), outcome.percentile_ns(5)].map(us);
    let [p95, p99] = [95, 99].map(|percent| us(outcome.percentile_ns(percent)));
    format!(
        "latency   mean {mean:.2} us, p5 {p5:.2}, p95 {p95:.2}, p99 {p99:.2}\n\
         cores     {} busy\n\
         steady    second half {:+.1} %\n\
         failed    {} of {}; replies refused by a full send queue: {}\n",
        cores.join(", "),
        // Without the sum an exact zero may be shown as -0.0.
        report.drift_percent() + 0.0,
        report.failed,
        report.answered + report.failed,
        report.refused,
    )
}
