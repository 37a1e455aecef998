//! `herdwick sim`: systems, and the verbs alone, on simulated RNICs in virtual time.

use std::{fs, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum, value_parser};
use herdwick_fabric::Transport;
use herdwick_herd::RequestPath;
use herdwick_sim::{
    Profile, ProfileError,
    verbs::{Direction, Flood, FloodVerb, Outcome, Span},
};
use herdwick_sim_bench::{FaultRun, Run, System};

mod faults;

use crate::{exit::Exit, say};

/// Run HERD, FaRM-KV, Pilaf, Clover or the verbs alone on simulated RNICs, in virtual time.
///
/// The machines are those that run on every fabric. What they post, poll and receive takes the time that
/// is in the profile (docs/sim.md). The same options give the same run on every machine.
#[derive(Args, Debug)]
pub(crate) struct SimArgs {
    /// System to run.
    #[arg(value_enum)]
    what: SimSubject,
    /// The RNIC and its host: a name, or a file that ends in .toml.
    #[arg(long, default_value = "apt", value_name = "PROFILE")]
    profile: String,
    /// Server cores.
    #[arg(long, default_value_t = 6, value_name = "N")]
    workers: usize,
    /// Client processes.
    #[arg(long, default_value_t = 51, value_name = "N")]
    clients: usize,
    /// Client machines, which share the clients.
    #[arg(long, default_value_t = 17, value_name = "N")]
    machines: usize,
    /// Requests in flight of each client; with verbs, of each thread that posts.
    #[arg(long, default_value_t = 4, value_name = "N")]
    window: usize,
    /// Keys, drawn uniformly.
    #[arg(long, default_value_t = 65_536, value_name = "N")]
    keys: u32,
    /// Bytes of a value; with verbs, of a payload.
    #[arg(long, default_value_t = 32, value_name = "B")]
    value_size: usize,
    /// PUTs, in percent of the requests.
    #[arg(long, default_value_t = 5, value_name = "PERCENT")]
    put: u8,
    /// Maximum number of replies that a worker of HERD posts as one postlist; 1: as in its paper. With verbs:
    /// messages that a thread posts as one.
    #[arg(long, default_value_t = 1, value_name = "N")]
    postlist: usize,
    /// Request path of HERD [default: uc; with --faults, drawn from the seed].
    #[arg(long, value_enum)]
    path: Option<Path>,
    /// With verbs: the verb to post.
    #[arg(long, value_enum, default_value = "write")]
    verb: Verb,
    /// With verbs: the servers post, and not the clients.
    #[arg(long)]
    outbound: bool,
    /// With verbs: each thread posts to every thread of the other side, at random.
    #[arg(long)]
    all_to_all: bool,
    /// With verbs: payloads are fetched from memory.
    #[arg(long)]
    no_inline: bool,
    /// Seed of the network and the load.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Virtual time that is measured, in microseconds, after as much that is not.
    #[arg(long, default_value_t = 500, value_name = "US")]
    microseconds: u64,
    /// Print the hash of all events and nothing else.
    #[arg(long)]
    hash: bool,
    /// Run under faults: `all`, or kinds of them, as `loss,kill,tear` (docs/sim.md). Exit code 1 if the
    /// history of a key is not linearizable, or a request fails after the last fault.
    #[arg(long, value_delimiter = ',', value_name = "KINDS", value_parser = faults::parse)]
    faults: Vec<faults::Kinds>,
    /// With faults: number of runs, each with its own seed.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "faults", value_parser = value_parser!(u64).range(1..))]
    seeds: u64,
    /// With faults: number of requests of a run.
    #[arg(long, default_value_t = 20_000, value_name = "N", requires = "faults", value_parser = value_parser!(u64).range(1..))]
    operations: u64,
    /// With faults: the faults of the seed's schedule to inject, by their numbers; `0`: none.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NUMBERS",
        requires = "faults"
    )]
    only: Option<Vec<u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SimSubject {
    Verbs,
    Herd,
    /// HERD with the request format of its paper; without --faults alone.
    HerdPaper,
    Farm,
    FarmVar,
    Pilaf,
    /// With --faults alone.
    Clover,
}

/// HERD's request paths; with verbs, the transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Path {
    /// UC: requests are WRITEs.
    Uc,
    /// RC: requests are WRITEs.
    Rc,
    /// UD: requests are SENDs.
    Ud,
}

impl Path {
    fn of_requests(self) -> RequestPath {
        match self {
            Self::Uc => RequestPath::UcWrite,
            Self::Rc => RequestPath::RcWrite,
            Self::Ud => RequestPath::UdSend,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Verb {
    Write,
    Read,
    Send,
    FetchAdd,
}

/// Runs it.
pub(crate) fn run(args: &SimArgs) -> ExitCode {
    let profile = match profile(&args.profile) {
        Ok(profile) => profile,
        Err(error) => {
            say::complain(error);
            return Exit::Usage.into();
        }
    };
    if !args.faults.is_empty() {
        return under_faults(args, &profile);
    }
    let lines = match args.what {
        SimSubject::Verbs => verbs(args, &profile),
        SimSubject::Herd => system(args, &profile, System::Herd),
        SimSubject::HerdPaper => system(args, &profile, System::HerdPaper),
        SimSubject::Farm => system(args, &profile, System::Farm),
        SimSubject::FarmVar => system(args, &profile, System::FarmVar),
        SimSubject::Pilaf => system(args, &profile, System::Pilaf),
        SimSubject::Clover => system(args, &profile, System::Clover),
    };
    match lines.map(say::report) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            say::complain(error);
            Exit::Failed.into()
        }
        Err(error) => {
            say::complain(error);
            Exit::Usage.into()
        }
    }
}

fn under_faults(args: &SimArgs, profile: &Profile) -> ExitCode {
    let system = match args.what {
        SimSubject::Verbs => {
            say::complain("faults are for systems: give herd, farm, farm-var, pilaf or clover");
            return Exit::Usage.into();
        }
        SimSubject::Herd => System::Herd,
        SimSubject::HerdPaper => System::HerdPaper,
        SimSubject::Farm => System::Farm,
        SimSubject::FarmVar => System::FarmVar,
        SimSubject::Pilaf => System::Pilaf,
        SimSubject::Clover => System::Clover,
    };
    faults::run(&faults::Asked {
        run: FaultRun {
            system,
            path: args.path.map(Path::of_requests),
            workers: args.workers,
            clients: args.clients,
            machines: args.machines,
            window: args.window,
            seed: args.seed,
            operations: args.operations,
            kinds: faults::kinds(&args.faults),
            only: args.only.clone(),
        },
        seeds: args.seeds,
        hash: args.hash,
        profile: (profile, &args.profile),
    })
}

/// Returns the profile of this name, or of this file.
pub(crate) fn profile(name: &str) -> Result<Profile, String> {
    let told = |error: ProfileError| error.to_string();
    if !name.ends_with(".toml") {
        return Profile::named(name).map_err(told);
    }
    let text = fs::read_to_string(name).map_err(|error| format!("reading {name}: {error}"))?;
    Profile::parse(&text).map_err(told)
}

fn span(args: &SimArgs) -> Span {
    let measured = Duration::from_micros(args.microseconds.max(1));
    Span {
        warm_up: measured,
        measured,
    }
}

fn verbs(args: &SimArgs, profile: &Profile) -> Result<String, String> {
    let flood = Flood {
        direction: if args.outbound {
            Direction::Outbound
        } else {
            Direction::Inbound
        },
        verb: match args.verb {
            Verb::Write => FloodVerb::Write,
            Verb::Read => FloodVerb::Read,
            Verb::Send => FloodVerb::Send,
            Verb::FetchAdd => FloodVerb::FetchAdd,
        },
        transport: match args.path.unwrap_or(Path::Uc) {
            Path::Uc => Transport::Uc,
            Path::Rc => Transport::Rc,
            Path::Ud => Transport::Ud,
        },
        payload: args.value_size,
        inline: !args.no_inline && args.value_size <= profile.rnic.inline_bytes_max,
        servers: args.workers,
        clients: args.clients,
        machines: args.machines,
        window: args.window,
        postlist: args.postlist,
        all_to_all: args.all_to_all,
    };
    let outcome = flood.run(profile, args.seed, span(args));
    let outcome = outcome.map_err(|error| error.to_string())?;
    Ok(manifest(args, profile, "verbs", &outcome, ""))
}

fn system(args: &SimArgs, profile: &Profile, system: System) -> Result<String, String> {
    let run = Run {
        system,
        path: args.path.unwrap_or(Path::Uc).of_requests(),
        workers: args.workers,
        clients: args.clients,
        machines: args.machines,
        postlist: args.postlist,
        window: args.window,
        keys: args.keys,
        value_bytes: args.value_size,
        put_percent: args.put,
        seed: args.seed,
        span: span(args),
    };
    let report = run.on(profile).map_err(|error| error.to_string())?;
    let cores: Vec<_> = report
        .busy
        .iter()
        .map(|busy| format!("{:.0} %", 100.0 * busy))
        .collect();
    let outcome = &report.outcome;
    let us = |ns: u64| Duration::from_nanos(ns).as_secs_f64() * 1e6;
    let [mean, p5] = [outcome.mean_ns(), outcome.percentile_ns(5)].map(us);
    let [p95, p99] = [95, 99].map(|percent| us(outcome.percentile_ns(percent)));
    let more = format!(
        "latency   mean {mean:.2} us, p5 {p5:.2}, p95 {p95:.2}, p99 {p99:.2}\n\
         cores     {} busy\n\
         steady    second half {:+.1} %\n\
         failed    {} of {}; replies refused by a full send queue: {}\n",
        cores.join(", "),
        report.drift_percent() + 0.0,
        report.failed,
        report.answered + report.failed,
        report.refused,
    );
    Ok(manifest(args, profile, system.name(), outcome, &more))
}

/// The report of a run; `sim` marks that nothing of it was measured on hardware.
fn manifest(
    args: &SimArgs,
    profile: &Profile,
    what: &str,
    outcome: &Outcome,
    more: &str,
) -> String {
    let hash = format!("{:016x}", outcome.trace);
    if args.hash {
        return format!("{hash}\n");
    }
    format!(
        "{what} on sim:{} (sim: {})\n\
         rate      {:.2} M/s\n\
         {more}\
         events    {}, hash {hash}, seed {}\n",
        profile.name, profile.about, outcome.mops, outcome.events, args.seed,
    )
}
