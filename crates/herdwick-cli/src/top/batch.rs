//! `herdwick top --json`: two samples, and one JSON object with the rates between them.

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::mpsc,
    time::{Duration, Instant},
};

use herdwick::{Client, Error, Options};
use serde_json::{Value, json};

use super::sample::{LEASES, STATS, Sample, State};
use crate::{client, exit::Exit};

/// Takes two samples, `interval` apart, and prints the object.
pub(super) fn run(server: &str, options: &Options, interval: Duration) -> ExitCode {
    let state = match look_twice(server, options, interval) {
        Ok(state) => state,
        Err(error) => {
            eprintln!("herdwick: {}", client::error_text(server, &error));
            return Exit::from(&error).into();
        }
    };
    match writeln!(io::stdout().lock(), "{:#}", object(&state)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("herdwick: cannot write to standard output: {error}");
            Exit::Failed.into()
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the shell that reads the clock"
)]
fn look_twice(server: &str, options: &Options, interval: Duration) -> Result<State, Error> {
    let mut client = Client::connect_with(server, options.clone())?;
    let mut state = State::new(server);
    state.take(Ok(Sample::take(&mut client, &mut Instant::now)?));
    // Nothing is ever sent: this waits for the interval, and a signal can end the process.
    let (_sender, nothing) = mpsc::channel::<()>();
    let _ = nothing.recv_timeout(interval);
    state.take(Ok(Sample::take(&mut client, &mut Instant::now)?));
    Ok(state)
}

/// Returns what the screen would show, in base units: rates per second, bytes, microseconds. A
/// value that the server does not report is null.
fn object(state: &State) -> Value {
    let rate = |names: &[&str]| json!(state.rate(names));
    let fabrics = state.fabrics().into_iter().map(|fabric| {
        let numbers = json!({ "requests_per_s": fabric.requests, "batch": fabric.batch });
        (fabric.name, numbers)
    });
    let workers = state.workers().into_iter().map(|worker| {
        json!({
            "worker": worker.number,
            "items": worker.items,
            "connections": worker.connections,
            "gets_per_s": worker.gets,
            "sets_per_s": worker.sets,
            "forwarded_per_s": worker.forwarded,
            "sleeps_per_s": worker.sleeps,
        })
    });
    let hot = state.hot().into_iter();
    let hot = hot.map(|(key, rate)| json!({ "key": key, "requests_per_s": rate }));
    json!({
        "server": state.server,
        "version": state.text(STATS.version),
        "uptime_s": state.number(STATS.uptime),
        "requests_per_s": state.requests(),
        "gets_per_s": rate(&[STATS.get_hits, STATS.get_misses]),
        "sets_per_s": rate(&[STATS.cmd_set]),
        "hit_ratio": state.hit_ratio(),
        "evictions_per_s": rate(&[STATS.evictions]),
        "items": state.number(STATS.curr_items),
        "bytes": state.number(STATS.bytes),
        "limit_bytes": state.number(STATS.limit_maxbytes),
        "connections": state.number(STATS.curr_connections),
        "read_bytes_per_s": rate(&[STATS.bytes_read, STATS.fabric_bytes_read]),
        "written_bytes_per_s": rate(&[STATS.bytes_written, STATS.fabric_bytes_written]),
        "leases": state.number(LEASES.leases),
        "round_trip_us": state.round_trip().map(|time| time.as_micros() as u64),
        "fabrics": fabrics.collect::<serde_json::Map<_, _>>(),
        "workers": workers.collect::<Vec<_>>(),
        "hot_keys": hot.collect::<Vec<_>>(),
    })
}
