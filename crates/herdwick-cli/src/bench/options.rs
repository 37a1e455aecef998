//! The systems of `herdwick bench` that each option is for. An option that the systems named do not
//! read is refused: without effect it would give figures for something else than was asked for.
//! Circular import with `bench`, whose definition of the options the check reads.

use clap::{ArgMatches, Args, Command, ValueEnum, parser::ValueSource};
use herdwick_bench::Fabric;

use super::{BenchArgs, System, failure::BenchFailure, verbs::VerbArgs};

/// Returns whether a system reads an option.
type OptionReaders = fn(System) -> bool;

/// The options that not every system reads, by their identifiers, and the systems that do.
const READERS: [(&str, OptionReaders); 24] = [
    ("fabric", |system| {
        in_process(system) || matches!(system, System::Herd | System::Verbs)
    }),
    ("bare", serves),
    ("server", |system| {
        matches!(
            system,
            System::Herd | System::OneSided | System::Hostile | System::Idle
        )
    }),
    ("workload", serves),
    ("get_share", serves),
    ("dist", |system| serves(system) || system == System::Store),
    ("keys", has_keys),
    ("key_size", has_keys),
    ("value_size", has_keys),
    ("seconds", timed),
    ("clients", loaded),
    ("window", loaded),
    ("herd", |system| {
        matches!(system, System::Herd | System::HerdPaper)
    }),
    ("inline_below", |system| system == System::HerdPaper),
    ("replicas", |system| system == System::Clover),
    ("request_path", |system| {
        matches!(
            system,
            System::Echo | System::Herd | System::OneSided | System::Hostile
        )
    }),
    ("connections", is_herd),
    ("idle_connections", is_herd),
    ("pipeline", is_herd),
    ("multiget", is_herd),
    ("batch", |system| system == System::Store),
    ("published", |system| system == System::Store),
    ("rate", loaded),
    ("runs", timed),
];

fn is_herd(system: System) -> bool {
    system == System::Herd
}

/// Whether its server is a thread of the benchmark.
fn in_process(system: System) -> bool {
    matches!(
        system,
        System::Echo
            | System::Farm
            | System::FarmVar
            | System::Pilaf
            | System::Memrdma
            | System::Clover
            | System::PilafEmOpt
            | System::FarmEm
            | System::FarmEmVar
            | System::HerdPaper
    )
}

/// Whether clients send it a mix of requests.
fn serves(system: System) -> bool {
    in_process(system) || matches!(system, System::Herd | System::OneSided | System::Hostile)
}

fn loaded(system: System) -> bool {
    serves(system) || system == System::Verbs
}

fn has_keys(system: System) -> bool {
    serves(system) || matches!(system, System::Store | System::Cache)
}

fn timed(system: System) -> bool {
    loaded(system) || matches!(system, System::Store | System::Idle)
}

fn has_store(system: System) -> bool {
    matches!(
        system,
        System::Store | System::Herd | System::OneSided | System::Hostile | System::Idle
    )
}

/// Options of a server that the benchmark starts, or of the bare store.
const OF_OWN_SERVER: [(&str, OptionReaders); 2] = [
    ("workers", |system| {
        matches!(
            system,
            System::Herd | System::OneSided | System::Hostile | System::Idle | System::Verbs
        )
    }),
    ("memory", has_store),
];

/// Options of HERD's channels, and of TCP connections.
const OF_HERD: [&str; 2] = ["window", "request_path"];
const OF_TCP: [&str; 4] = ["connections", "idle_connections", "pipeline", "multiget"];

/// Checks that each option on the command line has an effect.
pub(super) fn check(args: &BenchArgs, given: &ArgMatches) -> Result<(), BenchFailure> {
    // A default is not given.
    let is_given = |id: &&str| given.value_source(id) == Some(ValueSource::CommandLine);
    let is_verbs: OptionReaders = |system| system == System::Verbs;
    // From their definition: an option added there is checked, too.
    let verbs = VerbArgs::augment_args(Command::new("verbs"));
    let ids = verbs.get_arguments().map(|it| it.get_id().as_str());
    let of_verbs = ids.map(|id| (id, is_verbs));
    let all = READERS.into_iter().chain(OF_OWN_SERVER).chain(of_verbs);
    for (id, reads) in all.filter(|(id, _)| is_given(id)) {
        if !args.systems.iter().any(|system| reads(*system)) {
            let readers = System::value_variants().iter().copied();
            return Err(BenchFailure::Unread {
                option: option(id),
                systems: names(&args.systems),
                readers: names(&readers.filter(|system| reads(*system)).collect::<Vec<_>>()),
            });
        }
    }
    if args.server.is_some()
        && let Some((id, _)) = OF_OWN_SERVER.iter().find(|(id, _)| is_given(id))
    {
        return Err(BenchFailure::ForeignServer { option: option(id) });
    }
    check_traces(args, is_given)?;
    check_fabrics(args, is_given)
}

/// With traces, keys and values are those of the traces.
fn check_traces(args: &BenchArgs, is_given: impl Fn(&&str) -> bool) -> Result<(), BenchFailure> {
    let is_cache = matches!(args.systems[..], [System::Cache]);
    if !is_cache && !args.trace.is_empty() {
        return Err(BenchFailure::Unread {
            option: option("trace"),
            systems: names(&args.systems),
            readers: names(&[System::Cache]),
        });
    }
    let of_keys = ["keys", "key_size", "value_size"];
    match of_keys.iter().find(|id| is_given(id)) {
        Some(id) if is_cache && !args.trace.is_empty() => {
            Err(BenchFailure::OfTrace { option: option(id) })
        }
        _ => Ok(()),
    }
}

/// Checks options of one transport against the transports that are named.
fn check_fabrics(args: &BenchArgs, is_given: impl Fn(&&str) -> bool) -> Result<(), BenchFailure> {
    let only_herd = |system: &System| matches!(system, System::Herd);
    if args.fabric.is_empty() || !args.systems.iter().all(only_herd) {
        return Ok(());
    }
    let tcp = args.fabric.contains(&Fabric::Tcp);
    // `--bare` has a window, and datagrams as long as a path's requests.
    let herd = args.bare || args.fabric.iter().any(|fabric| *fabric != Fabric::Tcp);
    let unread = [(herd, &OF_HERD[..], "shm"), (tcp, &OF_TCP[..], "tcp")];
    for (has, ids, fabric) in unread {
        if let Some(id) = ids.iter().find(|id| !has && is_given(id)) {
            return Err(BenchFailure::OtherFabric {
                option: option(id),
                fabric,
            });
        }
    }
    Ok(())
}

/// Returns the option as it is typed.
fn option(id: &str) -> String {
    format!("--{}", id.replace('_', "-"))
}

fn names(systems: &[System]) -> String {
    let names = systems.iter().map(System::name);
    names.collect::<Vec<_>>().join(", ")
}
