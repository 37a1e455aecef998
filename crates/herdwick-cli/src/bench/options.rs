//! The systems of `herdwick bench` that each option is for. An option that the systems named do not
//! read is refused: without effect it would give figures for something else than was asked for.
//! In a circle with `bench`, whose definition of the options the check reads.

use clap::{ArgMatches, parser::ValueSource};
use herdwick_bench::Fabric;

use super::{BenchArgs, System, failure::BenchFailure, verbs};

/// The options that not every system reads, by their identifiers, and the systems that do.
const READERS: [(&str, &[System]); 20] = [
    ("fabric", FABRICS),
    ("bare", SERVING),
    ("server", &[System::Herd, System::Hostile, System::Idle]),
    ("workload", SERVING),
    ("get_share", SERVING),
    (
        "dist",
        &[
            System::Store,
            System::Echo,
            System::Farm,
            System::FarmVar,
            System::Herd,
            System::Hostile,
        ],
    ),
    ("keys", KEYED),
    ("key_size", KEYED),
    ("value_size", KEYED),
    ("seconds", TIMED),
    ("clients", LOADED),
    ("window", LOADED),
    ("request_path", HERD_PATHS),
    ("connections", &[System::Herd]),
    ("idle_connections", &[System::Herd]),
    ("pipeline", &[System::Herd]),
    ("multiget", &[System::Herd]),
    ("batch", &[System::Store]),
    ("rate", LOADED),
    ("runs", TIMED),
];
const FABRICS: &[System] = &[
    System::Echo,
    System::Farm,
    System::FarmVar,
    System::Herd,
    System::Verbs,
];
const HERD_PATHS: &[System] = &[System::Echo, System::Herd, System::Hostile];
const SERVING: &[System] = &[
    System::Echo,
    System::Farm,
    System::FarmVar,
    System::Herd,
    System::Hostile,
];
const LOADED: &[System] = &[
    System::Echo,
    System::Farm,
    System::FarmVar,
    System::Herd,
    System::Hostile,
    System::Verbs,
];
const KEYED: &[System] = &[
    System::Store,
    System::Echo,
    System::Farm,
    System::FarmVar,
    System::Herd,
    System::Hostile,
    System::Cache,
];
const TIMED: &[System] = &[
    System::Store,
    System::Echo,
    System::Farm,
    System::FarmVar,
    System::Herd,
    System::Hostile,
    System::Idle,
    System::Verbs,
];

/// Options of a server that the benchmark starts, or of the bare store.
const OF_OWN_SERVER: [(&str, &[System]); 2] = [
    (
        "workers",
        &[System::Herd, System::Hostile, System::Idle, System::Verbs],
    ),
    (
        "memory",
        &[System::Store, System::Herd, System::Hostile, System::Idle],
    ),
];

/// Options of HERD's channels, and of TCP connections.
const OF_HERD: [&str; 2] = ["window", "request_path"];
const OF_TCP: [&str; 4] = ["connections", "idle_connections", "pipeline", "multiget"];

/// Checks that each option on the command line has an effect.
pub(super) fn check(args: &BenchArgs, given: &ArgMatches) -> Result<(), BenchFailure> {
    let is_given = |id: &&str| given.value_source(id) == Some(ValueSource::CommandLine);
    let of_verbs = verbs::OPTIONS.map(|id| (id, &[System::Verbs][..]));
    let all = READERS.iter().chain(&OF_OWN_SERVER).chain(&of_verbs);
    for (id, readers) in all.filter(|(id, _)| is_given(id)) {
        if !args.systems.iter().any(|system| readers.contains(system)) {
            return Err(BenchFailure::Unread {
                option: option(id),
                systems: names(&args.systems),
                readers: names(readers),
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
