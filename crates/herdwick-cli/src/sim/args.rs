//! The options of `herdwick sim`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, value_parser};
use herdwick_herd::RequestPath;
use herdwick_sim_bench::System;

use super::faults;
use crate::{lists, units::count};

/// Run HERD, FaRM-KV, Pilaf, Clover or the verbs alone on simulated RNICs, in virtual time.
///
/// The machines are those that run on every fabric. What they post, poll and receive takes the time that
/// is in the profile (docs/sim.md). The same options give the same run on every machine. Options with several
/// values, separated by commas, make a run of each combination, and a table.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(mut_args(lists::separated))]
pub(crate) struct SimArgs {
    /// System to run: verbs, herd, herd-paper (without --faults alone), farm, farm-var, pilaf or clover (with
    /// --faults alone). Or fit, which searches for the parameters of a profile with which the verbs have the
    /// rates of papers, and compares them. Or a scenario: a file that ends in .toml and has these options
    /// (docs/sim.md).
    #[arg(required = true, num_args = 1, value_name = "SYSTEM,..", value_parser = subject)]
    pub(super) what: Vec<SimSubject>,
    /// The RNIC and its host: a name, or a file that ends in .toml.
    #[arg(long, default_value = "apt", value_name = "PROFILE,..")]
    pub(super) profile: Vec<String>,
    /// Server cores.
    #[arg(long, default_value = "6", value_name = "N,..", value_parser = count::<usize>)]
    pub(super) workers: Vec<usize>,
    /// Client processes.
    #[arg(long, default_value = "51", value_name = "N,..", value_parser = count::<usize>)]
    pub(super) clients: Vec<usize>,
    /// Client machines, which share the clients.
    #[arg(long, default_value_t = 17, value_name = "N", value_parser = count::<usize>)]
    pub(super) machines: usize,
    /// Requests in flight of each client; with verbs, of each thread that posts.
    #[arg(long, default_value = "4", value_name = "N,..", value_parser = count::<usize>)]
    pub(super) window: Vec<usize>,
    /// Keys, drawn uniformly.
    #[arg(long, default_value_t = 65_536, value_name = "N", value_parser = count::<u32>)]
    pub(super) keys: u32,
    /// Bytes of a value; with verbs, of a payload.
    #[arg(long, default_value = "32", value_name = "B,..", value_parser = count::<usize>)]
    pub(super) value_size: Vec<usize>,
    /// PUTs, in percent of the requests.
    #[arg(long, default_value = "5", value_name = "PERCENT,..", value_parser = count::<u8>)]
    pub(super) put: Vec<u8>,
    /// Maximum number of replies that a worker of HERD posts as one postlist; 1: as in its paper. With verbs:
    /// messages that a thread posts as one.
    #[arg(long, default_value = "1", value_name = "N,..", value_parser = count::<usize>)]
    pub(super) postlist: Vec<usize>,
    /// Request path of HERD [default: uc; with --faults, drawn from the seed].
    #[arg(long, value_enum)]
    pub(super) path: Option<Path>,
    /// With verbs: the verb to post.
    #[arg(long, value_enum, default_value = "write")]
    pub(super) verb: Verb,
    /// With verbs: the servers post, and not the clients.
    #[arg(long)]
    pub(super) outbound: bool,
    /// With verbs: each thread posts to every thread of the other side, at random.
    #[arg(long)]
    pub(super) all_to_all: bool,
    /// With verbs: payloads are fetched from memory.
    #[arg(long)]
    pub(super) no_inline: bool,
    /// Seed of the network and the load.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = count::<u64>)]
    pub(super) seed: u64,
    /// Virtual time that is measured, in microseconds, after as much that is not.
    #[arg(long, default_value_t = 500, value_name = "US", value_parser = count::<u64>)]
    pub(super) microseconds: u64,
    /// Print the hash of all events and nothing else.
    #[arg(long)]
    pub(super) hash: bool,
    /// Write the run as a timeline, an SVG: the rate and the latency in the time that is measured, or under faults
    /// the rate in the whole time, and when each fault happened. Of one run of a system.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["capacity", "hash"])]
    pub(super) timeline: Option<PathBuf>,
    /// Print a capacity table: how many cores, RNICs and clients serve so many million requests a second. Each
    /// number of --workers is a row; the number of clients is searched for.
    #[arg(long, value_name = "MOPS", requires = "p99", conflicts_with_all = ["clients", "faults", "hash"], value_parser = positive)]
    pub(super) capacity: Option<f64>,
    /// With --capacity: the 99th percentile of the latency is at most so many microseconds.
    #[arg(long, value_name = "US", requires = "capacity", value_parser = positive)]
    pub(super) p99: Option<f64>,
    /// Run under faults: `all`, or kinds of them, as `loss,kill,tear` (docs/sim.md). Exit code 1 if the
    /// history of a key is not linearizable, or a request fails after the last fault.
    #[arg(long, value_name = "KINDS,..", value_parser = faults::parse)]
    pub(super) faults: Vec<faults::Kinds>,
    /// With faults: number of runs, each with its own seed.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "faults", value_parser = value_parser!(u64).range(1..))]
    pub(super) seeds: u64,
    /// With faults: number of requests of a run.
    #[arg(long, default_value_t = 20_000, value_name = "N", requires = "faults", value_parser = value_parser!(u64).range(1..))]
    pub(super) operations: u64,
    /// With faults: the faults of the seed's schedule to inject, by their numbers; `0`: none.
    #[arg(long, value_name = "NUMBERS,..", requires = "faults")]
    pub(super) only: Option<Vec<u64>>,
}

/// What is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SimSubject {
    Verbs,
    System(System),
    /// The fit of the profiles.
    Fit,
    /// What a file says.
    Scenario(PathBuf),
}

impl SimSubject {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Verbs => "verbs".to_owned(),
            Self::System(system) => system.name().to_owned(),
            Self::Fit => "fit".to_owned(),
            Self::Scenario(path) => path.display().to_string(),
        }
    }
}

pub(super) fn subject(word: &str) -> Result<SimSubject, String> {
    if word.ends_with(".toml") {
        return Ok(SimSubject::Scenario(word.into()));
    }
    let mut systems = System::ALL.into_iter();
    match systems.find(|system| system.name() == word) {
        Some(system) => Ok(SimSubject::System(system)),
        None if word == "verbs" => Ok(SimSubject::Verbs),
        None if word == "fit" => Ok(SimSubject::Fit),
        None => {
            let names = System::ALL.map(System::name).join(", ");
            Err(format!("there are verbs, {names}, fit, and files (*.toml)"))
        }
    }
}

/// HERD's request paths; with verbs, the transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Path {
    /// UC: requests are WRITEs.
    Uc,
    /// RC: requests are WRITEs.
    Rc,
    /// UD: requests are SENDs.
    Ud,
}

impl Path {
    pub(super) fn of_requests(self) -> RequestPath {
        match self {
            Self::Uc => RequestPath::UcWrite,
            Self::Rc => RequestPath::RcWrite,
            Self::Ud => RequestPath::UdSend,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Verb {
    Write,
    Read,
    Send,
    FetchAdd,
}

/// Reads a number above 0.
fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match number > 0.0 && number.is_finite() {
        true => Ok(number),
        false => Err("not above 0".to_owned()),
    }
}
