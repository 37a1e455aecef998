//! Runs a point of `herdwick sim` without faults.

use std::time::Duration;

use herdwick_fabric::Transport;
use herdwick_sim::verbs::{Direction, Flood, FloodVerb, Outcome, Span};
use herdwick_sim_bench::{Report, Run, System};

use super::{
    args::{Path, SimArgs, SimSubject, Verb},
    point::Point,
    timeline,
};

fn span(args: &SimArgs) -> Span {
    // A rate is over some time.
    let measured = Duration::from_micros(args.microseconds.max(1));
    Span {
        warm_up: measured,
        measured,
    }
}

/// What a point yields.
pub(super) struct Measured {
    pub(super) outcome: Outcome,
    /// Of a system.
    pub(super) report: Option<Report>,
}

pub(super) fn measure(args: &SimArgs, point: &Point<'_>) -> Result<Measured, String> {
    match point.what {
        SimSubject::System(system) => {
            let run = run_of(args, point, *system);
            let report = run.on(point.profile).map_err(|error| error.to_string())?;
            if let Some(path) = &args.timeline {
                timeline::write_run(path, (&run, &point.profile.name), &report)?;
            }
            Ok(Measured {
                outcome: report.outcome.clone(),
                report: Some(report),
            })
        }
        _ => {
            let outcome = flood(args, point).run(point.profile, args.seed, span(args));
            Ok(Measured {
                outcome: outcome.map_err(|error| error.to_string())?,
                report: None,
            })
        }
    }
}

fn flood(args: &SimArgs, point: &Point<'_>) -> Flood {
    Flood {
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
        payload: point.value_size,
        inline: !args.no_inline && point.value_size <= point.profile.rnic.inline_bytes_max,
        servers: point.workers,
        clients: point.clients,
        machines: args.machines,
        window: point.window,
        postlist: point.postlist,
        all_to_all: args.all_to_all,
    }
}

fn run_of(args: &SimArgs, point: &Point<'_>, system: System) -> Run {
    Run {
        system,
        path: args.path.unwrap_or(Path::Uc).of_requests(),
        workers: point.workers,
        clients: point.clients,
        machines: args.machines,
        postlist: point.postlist,
        window: point.window,
        keys: args.keys,
        value_bytes: point.value_size,
        put_percent: point.put,
        seed: args.seed,
        span: span(args),
    }
}

pub(super) fn us(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64() * 1e6
}
