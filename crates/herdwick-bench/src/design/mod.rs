//! ECHO in each of the designs of Fig 5 of the HERD paper: requests and replies as SENDs or WRITEs, with
//! the optimizations added one at a time; and, for Fig 7, with random memory accesses at the server. The
//! server returns each message; the client compares it with what it sent.
//!
//! [`plan`] has the parameters and their combinations. `bench echo` is HERD's own machines with an echo
//! in the store's place.

mod plan;

use std::time::Duration;

use herdwick_fabric::Device;
use herdwick_providers::{AnyPort, End, VisitAll};

use crate::{
    BenchError, Config, Fabric, Progress,
    helper::Helper,
    host::{ProcessCpu, Stopwatch},
    lines::EndpointError,
    measure::Bout,
    messages::{EchoClient, EchoServer, Work, connect},
    report::{Outcome, Report, Run, Subject},
    study::{Points, Study, subject},
    target::DriveError,
    workload::Trace,
};

use self::plan::DesignPoint;
pub use plan::{Design, DesignError, DesignPlan, Level};

/// Measures every point of `plan` on each fabric of `config`.
///
/// # Errors
/// A value out of bounds, no point that the fabric can measure, or a failure of the fabric.
pub fn design(
    config: &Config,
    plan: &DesignPlan,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    let space = config.checked()?;
    // One thread is the server: the other CPUs are the clients'.
    let placement = Config {
        workers: Some(1),
        ..config.clone()
    }
    .placement();
    let fabrics = config.echo_fabrics();
    let mut points = Points::new();
    for fabric in &fabrics {
        let device = fabric.open(End::Client).map_err(EndpointError::System)?;
        for point in plan.points()? {
            let obstacle = point.exchange().obstacle(device.capabilities());
            points.add(*fabric, (point, point.name()), obstacle);
        }
    }
    if points.is_empty() {
        return Err(DesignError::Nothing(points.left_out().unwrap_or_default()).into());
    }
    let study = Study {
        config,
        space,
        placement: &placement,
    };
    let run = |fabric, point, name| Ok((run(&study, (fabric, point), name, watch)?, ()));
    study.report(&points, &fabrics, run, outcome)
}

fn outcome(fabric: Fabric, point: &DesignPoint, runs: Vec<(Run, ())>) -> Outcome {
    let runs: Vec<_> = runs.into_iter().map(|(run, ())| run).collect();
    let subject = Subject {
        system: "echo".to_owned(),
        workers: Some(1),
        clients: point.clients,
        window: Some(point.window),
        value_bytes: point.payload,
        verb: Some(point.described()),
        ..subject(fabric)
    };
    Outcome::of(subject, &runs)
}

fn run(
    study: &Study<'_>,
    (fabric, point): (Fabric, DesignPoint),
    name: String,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Run, BenchError> {
    let open = |end| fabric.open(end).map_err(EndpointError::System);
    let server = open(End::Worker)?;
    let clients = (0..point.clients).map(|_| open(End::Client));
    let clients = clients.collect::<Result<_, _>>()?;
    let run = RunDesign {
        study,
        point,
        name,
        watch,
    };
    server.visit_all(clients, run)
}

/// A run of one point.
struct RunDesign<'a, 'b> {
    study: &'a Study<'b>,
    point: DesignPoint,
    name: String,
    watch: &'a mut dyn FnMut(&Progress),
}

impl VisitAll for RunDesign<'_, '_> {
    type Output = Result<Run, BenchError>;

    fn visit<D>(self, server: D, clients: Vec<D>) -> Self::Output
    where
        D: Device<Port: Into<AnyPort> + 'static> + Send + 'static,
    {
        let Study {
            config,
            space,
            placement,
        } = *self.study;
        let lossless = server.capabilities().lossless;
        let exchange = self.point.exchange();
        let (server, clients) =
            connect(&exchange, (server, clients), &mut ()).map_err(EndpointError::from)?;
        let mut server = EchoServer::new(server, self.work()?);
        server.start().map_err(DriveError::from)?;
        let clock = Stopwatch::start();
        let pass = move || {
            // A lossless fabric has no timers, so the clock need not be read.
            let now_ns = if lossless { 0 } else { clock.ns() };
            // A failed queue pair shows at the client, whose requests are not answered.
            let _ = server.pass(Duration::from_nanos(now_ns));
        };
        let helper = Helper::start("echo", placement.server_cpu(0), pass);
        let helper = helper.map_err(EndpointError::System)?;
        let targets = clients
            .into_iter()
            .map(|(channels, ())| EchoClient::new(channels, exchange.window, lossless));
        let targets = targets
            .collect::<Result<Vec<_>, _>>()
            .map_err(DriveError::from)?;
        let config = Config {
            clients: self.point.clients,
            ..config.clone()
        };
        let bout = Bout {
            config: &config,
            space,
            placement,
            server_cpu: Some(ProcessCpu::of_threads(vec![helper.thread_id()])),
            batches_of: None,
            name: self.name,
        };
        let mut traces = vec![Trace::fill(0..1); config.clients];
        let run = bout.run(targets, &mut traces, self.watch)?;
        Ok(Run {
            hit_ratio: None,
            ..run
        })
    }
}

impl RunDesign<'_, '_> {
    /// Returns the memory that the server accesses; `None`: a plain echo.
    fn work(&self) -> Result<Option<Work>, EndpointError> {
        let DesignPoint {
            accesses, prefetch, ..
        } = self.point;
        let work = (accesses > 0).then(|| Work::new(accesses, prefetch));
        Ok(work.transpose()?)
    }
}

#[cfg(test)]
mod tests;
