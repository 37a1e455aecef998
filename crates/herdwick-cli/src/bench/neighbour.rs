//! The process that `herdwick bench hostile` starts beside its client.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use herdwick_bench::{self as bench, Neighbour};

use crate::{client::Access, exit::Exit, say};

/// Arguments of the process that `herdwick bench hostile` starts; not for users.
#[derive(Args, Clone, Debug)]
pub(crate) struct NeighbourArgs {
    #[arg(value_enum)]
    kind: Kind,
    server: String,
    #[arg(value_delimiter = ',')]
    cpus: Vec<usize>,
    #[command(flatten)]
    access: Access,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Scribbler,
    Spinner,
}

/// Runs as a neighbour until standard input ends.
pub(crate) fn neighbour(args: &NeighbourArgs) -> ExitCode {
    let kind = match args.kind {
        Kind::Scribbler => Neighbour::Scribbler,
        Kind::Spinner => Neighbour::Spinner,
    };
    let joined = args.access.options().map_err(|error| error.to_string());
    let joined = joined.and_then(|access| {
        let joined = bench::neighbour(kind, &args.server, access, &args.cpus);
        joined.map_err(|error| error.to_string())
    });
    match joined {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say::complain(format_args!("bench-neighbour: {error}"));
            Exit::Failed.into()
        }
    }
}
