//! The `herdwick` command: parses the command line and runs a subcommand. Folders: `serve` (flags,
//! configuration file, log, process), `top`, `doctor`; `client` has `get`, `set` and the like,
//! `servers` what they connect to.
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod client;
mod doctor;
mod exit;
mod figure;
mod lists;
mod manual;
mod say;
mod serve;
mod servers;
mod sim;
mod tls;
mod top;
mod units;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// An in-memory cache that memcached clients and RDMA clients share.
#[derive(Parser, Debug)]
#[command(name = "herdwick", version, propagate_version = true, after_help = exit::TABLE)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Serve(Box<serve::ServeArgs>),
    Get(client::GetArgs),
    Set(client::SetArgs),
    Delete(client::DeleteArgs),
    Stats(client::StatsArgs),
    Locate(servers::LocateArgs),
    Top(top::TopArgs),
    Doctor(doctor::DoctorArgs),
    Bench(Box<bench::BenchArgs>),
    Figure(figure::FigureArgs),
    Report(figure::ReportArgs),
    Sim(sim::SimArgs),
    Man(manual::ManArgs),
    Completions(manual::CompletionsArgs),
    #[command(hide = true)]
    BenchNeighbour(bench::NeighbourArgs),
    #[command(hide = true)]
    BenchGuard(bench::guard::GuardArgs),
}

fn main() -> ExitCode {
    // Kept, since `bench` has to know which options were given.
    let matches = Cli::command().get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.format(&mut Cli::command()).exit(),
    };
    // Of the subcommand.
    let given = matches.subcommand().map_or(&matches, |(_, given)| given);
    match cli.command {
        Command::Serve(args) => {
            let command = Cli::command();
            let serve = command.find_subcommand("serve");
            serve::run(&args, serve.unwrap_or(&command))
        }
        Command::Get(args) => {
            let set = |options: &mut herdwick::Options| args.set(options);
            servers::run_with(&args.servers, set, |cluster| client::get(cluster, &args))
        }
        Command::Set(args) => servers::run(&args.servers, |cluster| client::set(cluster, &args)),
        Command::Delete(args) => {
            servers::run(&args.servers, |cluster| client::delete(cluster, &args))
        }
        Command::Stats(args) => {
            servers::run(&args.servers, |cluster| client::stats(cluster, &args))
        }
        Command::Locate(args) => servers::locate(&args),
        Command::Top(args) => top::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(args) => bench::run(&args, given),
        Command::Figure(args) => figure::figure(&args),
        Command::Report(args) => figure::report(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Man(args) => manual::man(&args, Cli::command()),
        Command::Completions(args) => manual::completions(&args, Cli::command()),
        Command::BenchNeighbour(args) => bench::neighbour(&args),
        Command::BenchGuard(args) => bench::guard::guard(&args),
    }
}
