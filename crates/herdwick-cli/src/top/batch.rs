//! `herdwick top --json`: two samples, and one JSON object with the rates between them.

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::mpsc,
    time::{Duration, Instant},
};

use herdwick::{Client, Error, Options};
use serde_json::{Value, json};

use super::sample::{LEASES, MeasuredCommand, OFFLOAD, STATS, Sample, State};
use crate::{client, exit::Exit, say};

/// Takes two samples, `interval` apart, and prints the object.
pub(super) fn run(server: &str, options: &Options, interval: Duration) -> ExitCode {
    let state = match look_twice(server, options, interval) {
        Ok(state) => state,
        Err(error) => {
            say::complain(client::error_text(server, &error));
            return Exit::from(&error).into();
        }
    };
    match writeln!(io::stdout().lock(), "{:#}", object(&state)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say::complain(format_args!("cannot write to standard output: {error}"));
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

/// Returns a number with three decimals at most, and without decimals if it is whole.
fn rounded(number: Option<f64>) -> Value {
    let Some(number) = number else {
        return Value::Null;
    };
    let thousandths = (number * 1000.0).round();
    match thousandths % 1000.0 == 0.0 {
        // Counters are below 2^64, which f64 rounds; rates are far below.
        true => json!((thousandths / 1000.0) as u64),
        false => json!(thousandths / 1000.0),
    }
}

fn latency(of: MeasuredCommand) -> Value {
    json!({
        "fabric": of.transport,
        "command": of.command,
        "requests": rounded(Some(of.count)),
        "p50_us": rounded(Some(of.p50)),
        "p99_us": rounded(Some(of.p99)),
        "p999_us": rounded(Some(of.p999)),
        "max_us": rounded(Some(of.max)),
    })
}

/// Returns what the screen would show, in base units: rates per second, bytes, microseconds. A
/// value that the server does not report is null.
fn object(state: &State) -> Value {
    let rate = |names: &[&str]| rounded(state.rate(names));
    let number = |name| rounded(state.number(name));
    let fabrics = state.fabrics().into_iter().map(|fabric| {
        let numbers = json!({
            "requests_per_s": rounded(fabric.requests),
            "batch": rounded(fabric.batch),
        });
        (fabric.name, numbers)
    });
    let workers = state.workers().into_iter().map(|worker| {
        json!({
            "worker": worker.number,
            "items": rounded(Some(worker.items)),
            "connections": rounded(Some(worker.connections)),
            "gets_per_s": rounded(worker.gets),
            "sets_per_s": rounded(worker.sets),
            "forwarded_per_s": rounded(worker.forwarded),
            "executed_in_place_per_s": rounded(worker.executed_in_place),
            "sleeps_per_s": rounded(worker.sleeps),
        })
    });
    // A server without a secondary store has none of these.
    let secondary = state.number(OFFLOAD.connected).map(|connected| {
        json!({
            "connected": connected > 0.0,
            "popular_keys": number(OFFLOAD.keys),
            "changes_under_way": number(OFFLOAD.under_way),
            "offloadable": rounded(state.offloadable()),
            "delay_p50_us": number(OFFLOAD.delay_p50),
            "delay_p99_us": number(OFFLOAD.delay_p99),
            "staleness_max_us": number(OFFLOAD.staleness_max),
        })
    });
    let latencies = state.latencies().into_iter().map(latency);
    let hot = state.hot().into_iter();
    let hot = hot.map(|(key, rate)| json!({ "key": key, "requests_per_s": rounded(Some(rate)) }));
    json!({
        "server": state.server,
        "version": state.text(STATS.version),
        "uptime_s": number(STATS.uptime),
        "requests_per_s": rounded(state.requests()),
        "gets_per_s": rate(&[STATS.get_hits, STATS.get_misses]),
        "sets_per_s": rate(&[STATS.cmd_set]),
        "hit_ratio": rounded(state.hit_ratio()),
        "evictions_per_s": rate(&[STATS.evictions]),
        "items": number(STATS.curr_items),
        "bytes": number(STATS.bytes),
        "limit_bytes": number(STATS.limit_maxbytes),
        "connections": number(STATS.curr_connections),
        "read_bytes_per_s": rate(&[STATS.bytes_read, STATS.fabric_bytes_read]),
        "written_bytes_per_s": rate(&[STATS.bytes_written, STATS.fabric_bytes_written]),
        "leases": number(LEASES.leases),
        "secondary_store": secondary,
        "round_trip_us": state.round_trip().map(|time| time.as_micros() as u64),
        "fabrics": fabrics.collect::<serde_json::Map<_, _>>(),
        "workers": workers.collect::<Vec<_>>(),
        "latencies": latencies.collect::<Vec<_>>(),
        "hot_keys": hot.collect::<Vec<_>>(),
    })
}
