//! `herdwick doctor`: reports which fabrics work on this host; for each that does not, why, and
//! what to type. It reads the system and runs trials in its own process; it changes nothing.

mod host;
mod lease;
mod report;

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use herdwick_providers::Fabric;

use self::report::{FabricReport, Report};
use crate::{exit::Exit, say, serve::lease_directory};

/// Report which fabrics work on this host and, for each that does not, why and what to type.
///
/// Exit code 1 if a fabric does not work, but for one whose device is optional (verbs).
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Directory for the lease socket, as for `herdwick serve --shm-dir` [default: the same]
    #[arg(long = "shm-dir", value_name = "DIR")]
    shm_directory: Option<PathBuf>,
}

pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    let report = examine(&lease_directory(args.shm_directory.as_deref()));
    match show(&report, args.json) {
        Ok(()) if report.all_fabrics_work() => ExitCode::SUCCESS,
        Ok(()) => Exit::No.into(),
        Err(error) => {
            say::complain(format_args!("cannot write to standard output: {error}"));
            Exit::Failed.into()
        }
    }
}

fn show(report: &Report, json: bool) -> io::Result<()> {
    let text = if json {
        report.to_json()? + "\n"
    } else {
        report.to_text()
    };
    io::stdout().lock().write_all(text.as_bytes())
}

fn examine(lease_directory: &Path) -> Report {
    let examined = Fabric::ALL.map(|fabric| {
        let mut checks = fabric.doctor();
        if fabric.is_local() {
            checks.insert("lease_socket_dir", lease::check(lease_directory));
        }
        let found = FabricReport::new(checks);
        // A device that may be lost may also be absent.
        let found = if fabric.may_be_lost() {
            found.optional()
        } else {
            found
        };
        (fabric.name(), found)
    });
    Report {
        fabrics: BTreeMap::from(examined),
        host: host::checks(),
    }
}
