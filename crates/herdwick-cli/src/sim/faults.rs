//! `herdwick sim --faults`: runs of many seeds, and the smallest one that fails.

use std::{path::Path, process::ExitCode, time::Instant};

use herdwick_bench::COMMIT;
use herdwick_herd::RequestPath;
use herdwick_sim::Profile;
use herdwick_sim_bench::{FaultKind, FaultReport, FaultRun, Injected, RunError, shrink};

use super::timeline;
use crate::{exit::Exit, say};

/// Kinds of faults, as one word on the command line names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kinds(Vec<FaultKind>);

/// Reads the name of a kind, or `all`.
pub(crate) fn parse(word: &str) -> Result<Kinds, String> {
    if word == "all" {
        return Ok(Kinds(FaultKind::ALL.to_vec()));
    }
    let kind = FaultKind::ALL.into_iter().find(|kind| kind.name() == word);
    let kind = kind.ok_or_else(|| {
        let names = FaultKind::ALL.map(FaultKind::name).join(", ");
        format!("there are: all, {names}")
    })?;
    Ok(Kinds(vec![kind]))
}

/// What all seeds together did.
#[derive(Default)]
struct Sum {
    begun: u64,
    answered: u64,
    unknown: u64,
    keys: u64,
    hash: u64,
    injected: [Injected; FaultKind::ALL.len()],
}

impl Sum {
    fn add(&mut self, report: &FaultReport) {
        self.begun += report.begun;
        self.answered += report.answered;
        self.unknown += report.unknown;
        self.keys += report.keys;
        // Rotated: equal hashes would cancel each other.
        self.hash = self.hash.rotate_left(1) ^ report.trace;
        for (sum, injected) in self.injected.iter_mut().zip(report.injected) {
            sum.faults += injected.faults;
            sum.effects += injected.effects;
        }
    }
}

/// What the command line asks for.
pub(super) struct Asked<'a> {
    pub(super) run: FaultRun,
    /// Number of seeds, from the run's own on: at least 1.
    pub(super) seeds: u64,
    /// Print the hash of all events alone.
    pub(super) hash: bool,
    /// Where the timeline of the only seed is written.
    pub(super) timeline: Option<&'a Path>,
    /// The profile, and its name on the command line.
    pub(super) profile: (&'a Profile, &'a str),
}

/// Returns the kinds that the command line names, each once.
pub(super) fn kinds(words: &[Kinds]) -> Vec<FaultKind> {
    let mut kinds: Vec<FaultKind> = words
        .iter()
        .flat_map(|Kinds(kinds)| kinds)
        .copied()
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// Runs all seeds, or up to the first that fails.
pub(super) fn run(asked: &Asked<'_>) -> ExitCode {
    let Some(last) = asked.run.seed.checked_add(asked.seeds - 1) else {
        say::complain("--seed and --seeds: the last seed would be 2^64 or more");
        return Exit::Usage.into();
    };
    match seeds(asked, last) {
        Ok(Ok(lines)) => match say::report(lines) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                say::complain(error);
                Exit::Failed.into()
            }
        },
        Ok(Err(violation)) => {
            say::complain(violation);
            Exit::No.into()
        }
        Err(error) => {
            say::complain(error);
            Exit::Usage.into()
        }
    }
}

/// Returns the report, or what is wrong and how to see it again.
fn seeds(asked: &Asked<'_>, last: u64) -> Result<Result<String, String>, String> {
    let told = |error: RunError| error.to_string();
    let run = &asked.run;
    let mut sum = Sum::default();
    #[expect(
        clippy::disallowed_methods,
        reason = "the speed of this machine; no run depends on it"
    )]
    let began = Instant::now();
    for seed in run.seed..=last {
        let run = FaultRun {
            seed,
            ..run.clone()
        };
        let report = run.on(asked.profile.0).map_err(told)?;
        // Ahead of the check: a run with a violation is drawn, too.
        if let Some(path) = asked.timeline {
            timeline::write_faults(path, (&run, asked.profile.1), &report)?;
        }
        if report.violation.is_some() {
            let small = violated(&run, &report, asked.profile).map_err(told)?;
            return Ok(Err(small));
        }
        sum.add(&report);
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(Ok(summary(asked, last, &sum, seconds)))
}

fn summary(asked: &Asked<'_>, last: u64, sum: &Sum, seconds: f64) -> String {
    let run = &asked.run;
    if asked.hash {
        return format!("{:016x}\n", sum.hash);
    }
    let mut lines = format!(
        "{} under faults, seeds {} to {last} (sim)\n\
         requests  {}: {} answered, {} of unknown outcome\n\
         keys      {}, each with a linearizable history\n",
        run.system.name(),
        run.seed,
        sum.begun,
        sum.answered,
        sum.unknown,
        sum.keys,
    );
    lines.push_str("fault          times     effects\n");
    for (kind, injected) in FaultKind::ALL.into_iter().zip(&sum.injected) {
        if run.kinds.contains(&kind) {
            let Injected { faults, effects } = injected;
            lines.push_str(&format!("{:<10} {faults:>9} {effects:>11}\n", kind.name()));
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 requests")]
    let rate = sum.begun as f64 / seconds / 1000.0;
    lines.push_str(&format!(
        "hash      {:016x}\nspeed     {rate:.0} k requests/s of this machine, checked\n",
        sum.hash
    ));
    lines
}

fn violated(
    run: &FaultRun,
    report: &FaultReport,
    (profile, name): (&Profile, &str),
) -> Result<String, RunError> {
    let first = report.violation.as_deref().unwrap_or_default();
    // Shown at once: to make it smaller takes many runs.
    say::complain(format!("seed {}: {first}", run.seed));
    let small = shrink(run, report, profile)?;
    Ok(format!(
        "seed {}, commit {COMMIT}, made smaller in {} runs: {}\nreplay: {}",
        run.seed,
        small.tries,
        small.violation,
        replay(&small.run, name)
    ))
}

/// The command that runs it again.
fn replay(run: &FaultRun, profile: &str) -> String {
    let kinds: Vec<_> = run.kinds.iter().map(|kind| kind.name()).collect();
    let path = run.path.map(|path| match path {
        RequestPath::UcWrite => " --path uc",
        RequestPath::RcWrite => " --path rc",
        RequestPath::UdSend => " --path ud",
    });
    let only = run.only.as_ref().map(|only| {
        let numbers: Vec<_> = only.iter().map(u64::to_string).collect();
        // An option has a value, and no run has a fault 0.
        let none = if numbers.is_empty() { "0" } else { "" };
        format!(" --only {none}{}", numbers.join(","))
    });
    format!(
        "herdwick sim {} --profile {} --faults {} --seed {} --operations {} --workers {} --clients {} \
         --machines {} --window {}{}{}",
        run.system.name(),
        profile,
        kinds.join(","),
        run.seed,
        run.operations,
        run.workers,
        run.clients,
        run.machines,
        run.window,
        path.unwrap_or_default(),
        only.unwrap_or_default(),
    )
}
