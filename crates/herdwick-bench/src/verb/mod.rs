//! The verbs alone, without a system above them: any verb of Table 1 of the HERD paper on any fabric,
//! from clients to a server, from the server to clients, or between all of them.
//!
//! Each thread has a device and a port of its own, as a process would; both sides are threads of one
//! process, so that the CPU time of each is known. [`plan`] has the parameters and their combinations,
//! [`ends`] connects both sides of one, [`issue`] posts and [`respond`] receives.

mod arrivals;
mod ends;
mod error;
mod instant;
mod issue;
mod plan;
mod respond;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use herdwick_fabric::Device;
use herdwick_providers::{AnyDevice, AnyPort, End, VisitAll};

use crate::{
    BenchError, Config, Fabric, Progress,
    helper::Helper,
    host::{Placement, ProcessCpu, Stopwatch, allowed_cpus},
    lines::EndpointError,
    measure::Bout,
    report::{CpuPerOp, Outcome, Report, Run, Subject},
    study::{Points, Study, subject},
    target::DriveError,
    workload::Trace,
};

use self::{
    ends::{Ends, servers_export},
    plan::Point,
};
pub use error::VerbError;
pub use plan::{Direction, Verb, VerbPlan, parse_transport, parse_yes};

/// Measures every point of `plan` on each fabric of `config`.
///
/// # Errors
/// A value out of bounds, no point that the fabric can measure, or a failure of the fabric.
pub fn verb(
    config: &Config,
    plan: &VerbPlan,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    let space = config.checked()?;
    if let Some((option, given, max)) = plan.out_of_bounds() {
        return Err(VerbError::Bounds { option, given, max }.into());
    }
    let cpus = allowed_cpus();
    // The other side has the other half, however many threads there are.
    let placement = Placement::new(&cpus, config.workers().min((cpus.len() / 2).max(1)));
    let fabrics = config.echo_fabrics();
    let points = points(config, plan, &fabrics)?;
    if points.is_empty() {
        return Err(VerbError::Nothing(points.left_out().unwrap_or_default()).into());
    }
    let study = Study {
        config,
        space,
        placement: &placement,
    };
    let run = |fabric, point, name| run(&study, (fabric, point), name, watch);
    study.report(&points, &fabrics, run, outcome)
}

/// Returns the points of `plan` on each fabric.
fn points(
    config: &Config,
    plan: &VerbPlan,
    fabrics: &[Fabric],
) -> Result<Points<Point>, BenchError> {
    let mut points = Points::new();
    for fabric in fabrics {
        let device = open(*fabric, End::Client)?;
        let has = device.capabilities();
        for point in plan.points(config.workers(), has) {
            points.add(*fabric, (point, point.name()), point.obstacle(has));
        }
    }
    Ok(points)
}

fn open(fabric: Fabric, end: End) -> Result<AnyDevice, BenchError> {
    Ok(fabric.open(end).map_err(EndpointError::System)?)
}

/// Returns the outcome of a point's runs, and the share of messages that the last run with losses has lost.
fn outcome(fabric: Fabric, point: &Point, runs: Vec<(Run, Option<f64>)>) -> Outcome {
    let (runs, lost): (Vec<_>, Vec<_>) = runs.into_iter().unzip();
    let subject = Subject {
        system: point.verb.name().to_owned(),
        workers: Some(point.servers),
        clients: point.clients,
        window: Some(point.window),
        value_bytes: point.payload,
        verb: Some(point.described(lost.into_iter().flatten().last())),
        ..subject(fabric)
    };
    let mut outcome = Outcome::of(subject, &runs);
    // It is those who post that the cost is a share of.
    let issuers = point.clients as f64 / point.issuers() as f64;
    outcome.generator_share = outcome.generator_share.map(|share| share * issuers);
    outcome
}

fn run(
    study: &Study<'_>,
    (fabric, point): (Fabric, Point),
    name: String,
    watch: &mut dyn FnMut(&Progress),
) -> Result<(Run, Option<f64>), BenchError> {
    let (exporters, importers) = match servers_export(&point) {
        true => (point.servers, point.clients),
        false => (point.clients, point.servers),
    };
    let first = open(fabric, End::Worker)?;
    let rest = (1..exporters).map(|_| open(fabric, End::Worker));
    let others = rest.chain((0..importers).map(|_| open(fabric, End::Client)));
    let others = others.collect::<Result<Vec<_>, _>>()?;
    let run = RunPoint {
        study,
        point,
        exporters,
        name,
        watch,
    };
    let (run, lost) = first.visit_all(others, run)?;
    let generator_ns_per_op = Some(instant::issue_ns(point));
    let run = Run {
        generator_ns_per_op,
        ..run
    };
    Ok((run, lost))
}

/// A run of one point.
struct RunPoint<'a, 'b> {
    study: &'a Study<'b>,
    point: Point,
    exporters: usize,
    name: String,
    watch: &'a mut dyn FnMut(&Progress),
}

impl VisitAll for RunPoint<'_, '_> {
    type Output = Result<(Run, Option<f64>), BenchError>;

    fn visit<D>(self, first: D, mut exporters: Vec<D>) -> Self::Output
    where
        D: Device<Port: Into<AnyPort> + 'static> + Send + 'static,
    {
        let importers = exporters.split_off(self.exporters - 1);
        exporters.insert(0, first);
        let timed = !exporters[0].capabilities().lossless;
        let ends = ends::connect(&self.point, exporters, importers).map_err(EndpointError::from)?;
        self.measure(ends, timed)
    }
}

impl RunPoint<'_, '_> {
    fn measure<D>(self, ends: Ends<D>, timed: bool) -> Result<(Run, Option<f64>), BenchError>
    where
        D: Device<Port: 'static> + Send + 'static,
    {
        let Study {
            config,
            space,
            placement,
        } = *self.study;
        let placement = match self.point.direction {
            Direction::Inbound => placement.clone(),
            // Those who post take the place of a bout's clients.
            Direction::Outbound => placement.reversed(),
        };
        let failures = Arc::new(AtomicU64::new(0));
        let mut helpers = Vec::with_capacity(ends.responders.len());
        for (index, mut responder) in ends.responders.into_iter().enumerate() {
            responder
                .start(Arc::clone(&failures))
                .map_err(DriveError::from)?;
            let clock = Stopwatch::start();
            let pass = move || {
                let now_ns = if timed { clock.ns() } else { 0 };
                responder.pass(Duration::from_nanos(now_ns));
            };
            let cpu = placement.server_cpu(index);
            helpers.push(Helper::start("target", cpu, pass).map_err(EndpointError::System)?);
        }
        let config = Config {
            clients: self.point.issuers(),
            ..config.clone()
        };
        let threads: Vec<_> = helpers.iter().map(Helper::thread_id).collect();
        let bout = Bout {
            config: &config,
            space,
            placement: &placement,
            server_cpu: Some(ProcessCpu::of_threads(threads)),
            batches_of: None,
            name: self.name,
        };
        let mut traces = vec![Trace::fill(0..1); config.clients];
        let counts = ends.counts;
        let run = bout.run(ends.issuers, &mut traces, self.watch)?;
        let lost = counts.lost();
        // Joined first, so that every failure is counted.
        drop(helpers);
        let failed = failures.load(Ordering::Relaxed);
        Ok((in_roles(run, self.point.direction, failed), lost))
    }
}

/// Returns the run with the CPU time of servers and clients in their places, and without what is not
/// measured of verbs.
fn in_roles(run: Run, direction: Direction, failures: u64) -> Run {
    let CpuPerOp { server, client } = run.cpu_ns_per_op;
    Run {
        hit_ratio: None,
        errors: run.errors + failures,
        cpu_ns_per_op: match direction {
            Direction::Inbound => run.cpu_ns_per_op,
            Direction::Outbound => CpuPerOp {
                server: client,
                client: server,
            },
        },
        ..run
    }
}

#[cfg(test)]
mod tests;
