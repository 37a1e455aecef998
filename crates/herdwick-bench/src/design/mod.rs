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
    compare::{manifest, rtt},
    helper::Helper,
    host::{Placement, ProcessCpu, Stopwatch},
    lines::EndpointError,
    measure::Bout,
    messages::{EchoClient, EchoServer, Work, connect},
    report::{BeforeAfter, Manifest, Outcome, Report, Run, SCHEMA, Subject},
    target::DriveError,
    workload::{KeySpace, Trace},
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
    let placement = Config {
        workers: Some(1),
        ..config.clone()
    }
    .placement();
    let fabrics = config.echo_fabrics();
    let (mut can, mut cannot) = (Vec::new(), Vec::new());
    for fabric in &fabrics {
        let device = fabric.open(End::Client).map_err(EndpointError::System)?;
        for point in plan.points()? {
            match point.exchange().obstacle(device.capabilities()) {
                None => can.push((*fabric, point)),
                Some(why) => cannot.push(format!("{} over {fabric}: {why}", point.name())),
            }
        }
    }
    let left_out = (!cannot.is_empty()).then(|| cannot.join("; "));
    if can.is_empty() {
        return Err(DesignError::Nothing(left_out.unwrap_or_default()).into());
    }
    let study = DesignStudy {
        config,
        space,
        placement: &placement,
    };
    let before = rtt(&placement);
    let results = study.outcomes(&can, watch)?;
    let lines = BeforeAfter::lines(before, rtt(&placement));
    let mut manifest = Manifest {
        left_out,
        ..manifest(config, &placement, &fabrics, lines)
    };
    manifest.knobs.workload = "verb".to_owned();
    Ok(Report {
        schema: SCHEMA,
        manifest,
        results,
    })
}

struct DesignStudy<'a> {
    config: &'a Config,
    space: KeySpace,
    placement: &'a Placement,
}

impl DesignStudy<'_> {
    /// Runs all points in turn, again for each run, so that drift of the machine affects all alike.
    fn outcomes(
        &self,
        points: &[(Fabric, DesignPoint)],
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Vec<Outcome>, BenchError> {
        let mut runs = vec![Vec::new(); points.len()];
        for turn in 1..=self.config.runs {
            for ((fabric, point), runs) in points.iter().zip(&mut runs) {
                let name = format!(
                    "{} over {fabric}, {turn}/{}",
                    point.name(),
                    self.config.runs
                );
                let before = rtt(self.placement);
                let mut run = self.run(*fabric, *point, name, watch)?;
                run.line_rtt_ns = BeforeAfter::lines(before, rtt(self.placement));
                runs.push(run);
            }
        }
        let outcomes = points.iter().zip(&runs);
        let outcome = |((fabric, point), runs): (&(Fabric, DesignPoint), &Vec<Run>)| {
            let subject = Subject {
                system: "echo".to_owned(),
                fabric: fabric.name().to_owned(),
                word: fabric.word().name().to_owned(),
                workload: "verb".to_owned(),
                workers: Some(1),
                clients: point.clients,
                window: Some(point.window),
                value_bytes: point.payload,
                verb: Some(point.described()),
                ..Subject::default()
            };
            Outcome::of(subject, runs)
        };
        Ok(outcomes.map(outcome).collect())
    }

    fn run(
        &self,
        fabric: Fabric,
        point: DesignPoint,
        name: String,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Run, BenchError> {
        let open = |end| fabric.open(end).map_err(EndpointError::System);
        let server = open(End::Worker)?;
        let clients = (0..point.clients).map(|_| open(End::Client));
        let clients = clients.collect::<Result<_, _>>()?;
        let run = RunDesign {
            study: self,
            point,
            name,
            watch,
        };
        server.visit_all(clients, run)
    }
}

/// A run of one point.
struct RunDesign<'a, 'b> {
    study: &'a DesignStudy<'b>,
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
        let DesignStudy {
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
