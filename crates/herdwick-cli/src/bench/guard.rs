//! The process that ends a server of `herdwick bench` when the benchmark is killed.

use std::process::ExitCode;

use clap::Args;
use herdwick_bench as bench;

use crate::{exit::Exit, say};

/// Arguments of the process that `herdwick bench` starts beside each server; not for users.
#[derive(Args, Clone, Debug)]
pub(crate) struct GuardArgs {
    /// The server's process.
    pid: i32,
}

/// Runs as a guard until the server or standard input ends.
pub(crate) fn guard(args: &GuardArgs) -> ExitCode {
    match bench::guard(args.pid) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say::complain(format_args!("bench-guard: process {}: {error}", args.pid));
            Exit::Failed.into()
        }
    }
}
