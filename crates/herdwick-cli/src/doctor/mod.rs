//! `herdwick doctor`: reports which fabrics work on this host; for each that does not, why, and
//! what to type. It reads the system and runs trials in its own process; it changes nothing.

mod host;
mod report;
mod roce;
mod shm;
mod verbs;

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use herdwick_providers as providers;

use self::report::{Checks, FabricReport, Report};
use crate::{exit::Exit, say, serve::lease_directory};

/// Report which fabrics work on this host and, for each that does not, why and what to type.
///
/// Exit code 1 if shm or roce does not work; an RDMA device is optional.
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
    let examined = providers::Fabric::ALL.map(|fabric| {
        let found = FabricReport::new(checks(fabric, lease_directory));
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

fn checks(fabric: providers::Fabric, lease_directory: &Path) -> Checks {
    match fabric {
        providers::Fabric::Shm => shm::checks(lease_directory),
        providers::Fabric::Verbs => verbs::checks(),
        providers::Fabric::Roce => roce::checks(),
    }
}
