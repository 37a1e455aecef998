//! Fabrics side by side on one server.

use std::collections::BTreeMap;

use crate::{
    BenchError, Config, Fabric, Progress, SEED,
    host::{LineRtt, Machine, Placement, line_rtt, pin},
    measure::Bout,
    report::{BeforeAfter, Manifest, Outcome, Report, Run, SCHEMA, Subject, Word},
    server::Server,
    tcp::{TcpOptions, TcpTarget},
    workload::{KeySpace, Trace},
};

/// Requests in flight while the keys are stored.
const FILL_PIPELINE: usize = 64;

/// Measures HERD's server over each fabric of `config`, run by run in turn.
///
/// # Errors
/// There is no server, it went away, or it refused to hold the keys.
pub fn herd(config: &Config, watch: &mut dyn FnMut(&Progress)) -> Result<Report, BenchError> {
    let space = config.checked()?;
    let placement = config.placement();
    let server = match &config.server {
        Some(address) => Server::find(address)?,
        None => Server::start(
            &config.program,
            &placement.server,
            config.workers(),
            config.memory_mb(),
        )?,
    };
    let seeds = (SEED..).take(config.clients);
    let trace = |seed| {
        Trace::new(
            config.mix,
            config.dist,
            config.keys,
            config.trace_steps,
            seed,
        )
    };
    let mut comparison = Comparison {
        config,
        space,
        placement: &placement,
        server: &server,
        traces: seeds.map(trace).collect(),
    };
    comparison.fill(watch)?;
    let before = rtt(&placement);
    let runs = comparison.runs(watch)?;
    let lines = BeforeAfter::lines(before, rtt(&placement));
    let results = config.fabrics.iter().zip(&runs);
    let results = results.map(|(fabric, runs)| Outcome::of(comparison.subject(*fabric), runs));
    Ok(Report {
        schema: SCHEMA,
        manifest: manifest(config, &placement, lines),
        results: results.collect(),
    })
}

struct Comparison<'a> {
    config: &'a Config,
    space: KeySpace,
    placement: &'a Placement,
    server: &'a Server,
    traces: Vec<Trace>,
}

impl Comparison<'_> {
    fn fill(&self, watch: &mut dyn FnMut(&Progress)) -> Result<(), BenchError> {
        let options = TcpOptions {
            connections: self.config.workers(),
            pipeline: FILL_PIPELINE,
            multiget: 1,
        };
        let target = TcpTarget::connect(self.server.address, options, self.space)?;
        let trace = Trace::fill(0..self.config.keys as u32);
        let bout = self.bout("fill".to_owned());
        // On a thread of its own, which may be pinned without this one being so.
        std::thread::scope(|scope| {
            let (sender, progress) = std::sync::mpsc::sync_channel(1);
            let filler = scope.spawn(move || {
                pin(bout.placement.client(0));
                let mut tell = |progress: &Progress| drop(sender.try_send(progress.clone()));
                bout.fill(target, trace, &mut tell)
            });
            progress.iter().for_each(|progress| watch(&progress));
            filler.join().unwrap_or(Err(BenchError::Panicked))
        })
    }

    /// The runs of each fabric, in the order of `config.fabrics`.
    fn runs(&mut self, watch: &mut dyn FnMut(&Progress)) -> Result<Vec<Vec<Run>>, BenchError> {
        let mut runs = vec![Vec::new(); self.config.fabrics.len()];
        for turn in 1..=self.config.runs {
            for (runs, fabric) in runs.iter_mut().zip(&self.config.fabrics) {
                let name = format!("{fabric} {turn}/{}", self.config.runs);
                let before = rtt(self.placement);
                let mut run = self.run(*fabric, name, watch)?;
                run.line_rtt_ns = BeforeAfter::lines(before, rtt(self.placement));
                runs.push(run);
            }
        }
        Ok(runs)
    }

    fn run(
        &mut self,
        fabric: Fabric,
        name: String,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Run, BenchError> {
        let mut traces = std::mem::take(&mut self.traces);
        let run = match fabric {
            Fabric::Tcp => self
                .tcp_targets()
                .and_then(|targets| self.bout(name).run(targets, &mut traces, watch)),
            Fabric::Shm => Err(BenchError::NoWay(fabric)),
        };
        self.traces = traces;
        run
    }

    /// The connections, spread over the clients; each client has one at least.
    fn tcp_targets(&self) -> Result<Vec<TcpTarget>, BenchError> {
        let Config {
            connections,
            clients,
            pipeline,
            multiget,
            ..
        } = *self.config;
        let target = |client: usize| {
            let share = (connections + client) / clients;
            let options = TcpOptions {
                connections: share.max(1),
                pipeline,
                multiget,
            };
            Ok(TcpTarget::connect(
                self.server.address,
                options,
                self.space,
            )?)
        };
        (0..clients).map(target).collect()
    }

    fn bout(&self, name: String) -> Bout<'_> {
        Bout {
            config: self.config,
            placement: self.placement,
            server_cpu: self.server.cpu.as_ref(),
            name,
        }
    }

    fn subject(&self, fabric: Fabric) -> Subject {
        let config = self.config;
        let tcp = |value| (fabric == Fabric::Tcp).then_some(value);
        Subject {
            system: "herd".to_owned(),
            fabric: fabric.name().to_owned(),
            server: Some(self.server.version.clone()),
            workers: self.server.workers,
            clients: config.clients,
            window: (fabric != Fabric::Tcp).then_some(config.window),
            connections: tcp(config.connections),
            pipeline: tcp(config.pipeline),
            multiget: tcp(config.multiget),
            ..subject(config, fabric.word())
        }
    }
}

/// The parts of a subject that every system has.
pub(crate) fn subject(config: &Config, word: Word) -> Subject {
    Subject {
        word: word.name().to_owned(),
        workload: config.mix.name().to_owned(),
        get_share: config.mix.get_share(),
        dist: config.dist.to_string(),
        keys: config.keys,
        key_bytes: config.key_size,
        value_bytes: config.value_size,
        ..Subject::default()
    }
}

pub(crate) fn manifest(
    config: &Config,
    placement: &Placement,
    line_rtt_ns: BeforeAfter,
) -> Manifest {
    let names = config.fabrics.iter().map(|fabric| fabric.name());
    let words: BTreeMap<_, _> = config
        .fabrics
        .iter()
        .map(|fabric| (fabric.word().name(), ()))
        .collect();
    Manifest {
        commit: env!("HERDWICK_COMMIT").to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: Machine::here(placement.cpus()),
        fabric: names.collect::<Vec<_>>().join(","),
        word: words.into_keys().collect::<Vec<_>>().join(","),
        line_rtt_ns,
        knobs: config.knobs(placement),
    }
}

/// The line round trip between server and client, where they have CPUs of their own.
pub(crate) fn rtt(placement: &Placement) -> Option<LineRtt> {
    placement.pair().map(line_rtt)
}
