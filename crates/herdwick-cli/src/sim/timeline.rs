//! `herdwick sim --timeline`: one run as an SVG over its virtual time.

use std::{fs, path::Path};

use herdwick_figures::Timeline;
use herdwick_sim_bench::{FaultReport, FaultRun, Report, Run};

/// Writes that of a run without faults.
pub(super) fn write_run(
    path: &Path,
    (run, profile): (&Run, &str),
    report: &Report,
) -> Result<(), String> {
    let title = format!(
        "{} on sim:{profile} (sim), {} clients, seed {}: {:.2} M/s",
        run.system.name(),
        run.clients,
        run.seed,
        report.outcome.mops
    );
    write(path, &Timeline::of_run(&title, report, run.span.measured))
}

/// Writes that of a run under faults.
pub(super) fn write_faults(
    path: &Path,
    (run, profile): (&FaultRun, &str),
    report: &FaultReport,
) -> Result<(), String> {
    let title = format!(
        "{} under faults on sim:{profile} (sim), {} clients, seed {}: {} requests answered",
        run.system.name(),
        run.clients,
        run.seed,
        report.answered
    );
    write(path, &Timeline::of_faults(&title, report))
}

fn write(path: &Path, timeline: &Timeline) -> Result<(), String> {
    let svg = timeline.to_svg().map_err(|error| error.to_string())?;
    fs::write(path, svg).map_err(|error| format!("writing {}: {error}", path.display()))
}
