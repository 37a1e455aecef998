//! The `herdwick` command: parses, wires, launches.
#![forbid(unsafe_code)]

mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An in-memory cache that memcached clients and RDMA clients share.
#[derive(Parser, Debug)]
#[command(name = "herdwick", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Serve(serve::ServeArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
    }
}
