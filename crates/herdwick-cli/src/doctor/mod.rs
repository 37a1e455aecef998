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

use self::report::{Fabric, Report};
use crate::{exit::Exit, serve::lease_directory};

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
            eprintln!("herdwick: cannot write to standard output: {error}");
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
    Report {
        fabrics: BTreeMap::from([
            ("shm", Fabric::new(shm::checks(lease_directory))),
            ("roce", Fabric::new(roce::checks())),
            ("verbs", Fabric::new(verbs::checks()).optional()),
        ]),
        host: host::checks(),
    }
}
