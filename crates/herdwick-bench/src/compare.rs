//! Systems and fabrics compared: each contender runs in turn, run by run, so that drift of the
//! machine affects all alike.

use std::collections::BTreeSet;

use herdwick_providers::End;

use crate::{
    BenchError, Config, Fabric, Progress, SEED, System,
    crowd::Crowd,
    host::{LineRtt, Machine, Placement, ProcessCpu, line_rtt, pin},
    hostile::{Neighbour, NeighbourProcess},
    in_process::RunInProcess,
    lines::{self, BareTarget, EndpointError, HerdTarget, MemoryTarget, clover},
    measure::Bout,
    progress::{on_cpus, on_own_thread},
    report::{BeforeAfter, FigureClass, Manifest, Outcome, Report, Run, SCHEMA, Subject},
    server::Server,
    target::Target,
    tcp::{self, TcpOptions, TcpTarget},
    workload::{KeySpace, Trace},
};

/// The commit that this is built from; `+changes` marks a tree that differs from it.
pub const COMMIT: &str = env!("HERDWICK_COMMIT");

/// Requests in flight on a TCP connection while the keys are stored.
const FILL_PIPELINE: usize = 64;

/// Measures each system and fabric of `config`.
///
/// # Errors
/// No server answers, it failed during the measurement, or it refused to store the keys.
pub fn compare(config: &Config, watch: &mut dyn FnMut(&Progress)) -> Result<Report, BenchError> {
    let space = config.checked()?;
    let placement = config.placement();
    let server = if config.needs_server() {
        Some(server(config, &placement)?)
    } else {
        None
    };
    let seeds = (SEED..).take(config.clients);
    let trace = |seed| {
        Trace::new(
            config.mix,
            config.dist,
            config.keys,
            config.trace_steps(),
            seed,
        )
    };
    let (contenders, left_out) = contenders(config, server.as_ref(), space);
    let mut comparison = Comparison {
        config,
        space,
        placement: &placement,
        contenders,
        server,
        traces: seeds.map(trace).collect(),
    };
    comparison.fill(watch)?;
    let before = rtt(&placement);
    let runs = comparison.runs(watch)?;
    let lines = BeforeAfter::lines(before, rtt(&placement));
    let contenders = &comparison.contenders;
    let fabrics: Vec<_> = contenders.iter().map(|(_, fabric)| *fabric).collect();
    let results = contenders.iter().zip(&runs);
    let results =
        results.map(|(contender, runs)| Outcome::of(comparison.subject(*contender), runs));
    Ok(Report {
        schema: SCHEMA,
        manifest: Manifest {
            left_out,
            ..manifest(config, &placement, &fabrics, lines)
        },
        results: results.collect(),
    })
}

type Contender = (System, Fabric);

pub(crate) fn server(config: &Config, placement: &Placement) -> Result<Server, BenchError> {
    Ok(match &config.server {
        Some(address) => Server::find(address, config.access.clone())?,
        None => Server::start(
            &config.program,
            &placement.server,
            (
                config.workers(),
                config.memory_mb(),
                config.connections_max(),
            ),
            &flags(config),
        )?,
    })
}

/// Returns the flags with which the own server offers the fabrics that are measured, and no others.
fn flags(config: &Config) -> Vec<&'static str> {
    let offered = |fabric| config.fabrics.contains(&Fabric::Herd(fabric));
    let fabrics = herdwick::Fabric::ALL.into_iter();
    let flags = fabrics.flat_map(|fabric| fabric.serve_options(offered(fabric)));
    let reads = config.systems.contains(&System::OneSided);
    let reads = reads.then_some("--one-sided-reads");
    flags.copied().chain(reads).collect()
}

/// Returns all contenders, in order. The second value is the reason why the best fabric is left out:
/// set if no fabrics are configured and the server does not offer it.
fn contenders(
    config: &Config,
    server: Option<&Server>,
    space: KeySpace,
) -> (Vec<Contender>, Option<String>) {
    let no_fabric = || {
        let dialled = HerdTarget::dial(&server?.remote, (Fabric::BEST, None), 1, space);
        dialled.err().map(|error| error.to_string())
    };
    let (mut contenders, mut left_out) = (Vec::new(), None);
    for system in &config.systems {
        match (system, &config.fabrics[..]) {
            (System::Beside(_) | System::OneSided, _) => {
                contenders.push((*system, Fabric::BEST));
            }
            (System::Bare, _) => contenders.push((*system, Fabric::BARE)),
            (
                System::Echo
                | System::Farm(_)
                | System::Pilaf
                | System::Memrdma
                | System::Clover
                | System::Emulated(_)
                | System::HerdPaper,
                _,
            ) => {
                let fabrics = config.echo_fabrics();
                contenders.extend(fabrics.into_iter().map(|fabric| (*system, fabric)));
            }
            (System::Herd | System::Crowded, []) => {
                let offered = [Fabric::BEST, Fabric::Tcp];
                left_out = no_fabric();
                let skip = usize::from(left_out.is_some());
                contenders.extend(offered[skip..].iter().map(|fabric| (*system, *fabric)));
            }
            (System::Herd | System::Crowded, fabrics) => {
                contenders.extend(fabrics.iter().map(|fabric| (*system, *fabric)));
            }
        }
    }
    (contenders, left_out)
}

struct Comparison<'a> {
    config: &'a Config,
    space: KeySpace,
    placement: &'a Placement,
    contenders: Vec<Contender>,
    server: Option<Server>,
    traces: Vec<Trace>,
}

impl Comparison<'_> {
    /// Stores every key, through the fastest transport that is measured.
    fn fill(&self, watch: &mut dyn FnMut(&Progress)) -> Result<(), BenchError> {
        let Some(server) = &self.server else {
            return Ok(());
        };
        let herd = |(system, fabric): &&Contender| !system.is_in_process() && fabric.is_herd();
        if let Some((_, fabric)) = self.contenders.iter().find(herd) {
            let transport = (*fabric, self.config.request_path);
            let target =
                HerdTarget::dial(&server.remote, transport, self.config.window, self.space)?;
            return self.fill_by(target, watch);
        }
        let options = TcpOptions {
            connections: self.config.workers(),
            pipeline: FILL_PIPELINE,
            multiget: 1,
        };
        self.fill_by(
            TcpTarget::connect(&server.remote, options, self.space)?,
            watch,
        )
    }

    fn fill_by(
        &self,
        target: impl Target + Send,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<(), BenchError> {
        let trace = Trace::fill(0..self.config.keys as u32);
        let bout = self.bout("fill".to_owned());
        on_own_thread(watch, move |watch| {
            pin(bout.placement.client(0));
            bout.fill(target, trace, watch)
        })
    }

    /// Measures, and returns the runs of each contender, in order.
    fn runs(&mut self, watch: &mut dyn FnMut(&Progress)) -> Result<Vec<Vec<Run>>, BenchError> {
        let contenders = self.contenders.clone();
        let mut runs = vec![Vec::new(); contenders.len()];
        let generators: Vec<_> = contenders
            .iter()
            .map(|contender| self.generator_ns(*contender))
            .collect::<Result<_, _>>()?;
        for turn in 1..=self.config.runs {
            let parts = runs.iter_mut().zip(&contenders).zip(&generators);
            for ((runs, (system, fabric)), generator_ns) in parts {
                let name = format!(
                    "{} over {fabric}, {turn}/{}",
                    self.name(*system),
                    self.config.runs
                );
                let before = rtt(self.placement);
                let mut run = self.run((*system, *fabric), name, watch)?;
                run.line_rtt_ns = BeforeAfter::lines(before, rtt(self.placement));
                run.generator_ns_per_op = *generator_ns;
                run.checksum_ns_per_get = self.checksum_ns(*system, run.reads_per_get)?;
                runs.push(run);
            }
        }
        Ok(runs)
    }

    /// Returns the nanoseconds per operation that generator and check cost, measured on a client's
    /// CPU against a target that answers at once. `None` for the bare echo, which has neither.
    fn generator_ns(&self, (system, fabric): Contender) -> Result<Option<f64>, BenchError> {
        if system == System::Bare {
            return Ok(None);
        }
        let (config, space, cpus) = (self.config, self.space, self.placement.client(0));
        // A clone, since the position of the trace itself must not move: what it inserts (workload
        // D) is read by the runs.
        let mut trace = self.traces[0].clone();
        let measured = on_cpus(cpus, move || match fabric {
            Fabric::Tcp => tcp::generator_ns(&mut trace, space, tcp_options(config, 0)),
            _ => lines::generator_ns(&mut trace, space, config.window),
        });
        Ok(Some(measured??))
    }

    /// Returns the nanoseconds that the checksums of a GET take on a client's CPU, of a system that has them.
    fn checksum_ns(&self, system: System, reads: Option<f64>) -> Result<Option<f64>, BenchError> {
        let (System::Pilaf, Some(reads)) = (system, reads) else {
            return Ok(None);
        };
        let extent = self.space.key_size() + self.space.value_size();
        let measure = move || lines::pilaf::checksum_ns(reads, extent);
        on_cpus(self.placement.client(0), measure).map(Some)
    }

    fn run(
        &mut self,
        contender: Contender,
        name: String,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Run, BenchError> {
        let _crowd = match (contender, &self.server) {
            ((System::Crowded, _), Some(server)) => {
                Some(Crowd::gather(&server.remote, self.config.idle_connections)?)
            }
            _ => None,
        };
        // Taken, since a run moves them on while it borrows `self`.
        let mut traces = std::mem::take(&mut self.traces);
        let run = match (contender, &self.server) {
            ((System::Herd | System::Crowded, Fabric::Tcp), Some(server)) => self
                .tcp_targets(server)
                .and_then(|targets| self.bout(name).run(targets, &mut traces, watch)),
            ((System::Herd | System::Crowded, fabric), Some(server)) => self
                .herd_targets(fabric, server)
                .and_then(|targets| self.herd_bout(name).run(targets, &mut traces, watch)),
            ((System::Beside(neighbour), _), Some(server)) => {
                let _beside = self.neighbour(neighbour, server)?;
                self.herd_targets(Fabric::BEST, server)
                    .and_then(|targets| self.herd_bout(name).run(targets, &mut traces, watch))
            }
            ((System::OneSided, fabric), Some(server)) => self
                .memory_targets(fabric, server)
                .and_then(|targets| self.herd_bout(name).run(targets, &mut traces, watch)),
            ((System::Bare, _), _) => self
                .bare_targets()
                .and_then(|targets| self.echo_bout(name).run(targets, &mut traces, watch)),
            (contender, _) => self.run_in_process(contender, name, &mut traces, watch),
        };
        self.traces = traces;
        let cpu = self.server.as_ref().and_then(|server| server.cpu.as_ref());
        run.map(|run| Run {
            server_rss_mb: cpu.and_then(ProcessCpu::resident_mb),
            ..run
        })
    }

    /// Connects the TCP connections of each client.
    fn tcp_targets(&self, server: &Server) -> Result<Vec<TcpTarget>, BenchError> {
        let target = |client| {
            let options = tcp_options(self.config, client);
            Ok(TcpTarget::connect(&server.remote, options, self.space)?)
        };
        (0..self.config.clients).map(target).collect()
    }

    fn herd_targets(&self, fabric: Fabric, server: &Server) -> Result<Vec<HerdTarget>, BenchError> {
        let transport = (fabric, self.config.request_path);
        let target =
            |_| HerdTarget::dial(&server.remote, transport, self.config.window, self.space);
        (0..self.config.clients).map(target).collect()
    }

    fn memory_targets(
        &self,
        fabric: Fabric,
        server: &Server,
    ) -> Result<Vec<MemoryTarget>, BenchError> {
        let transport = (fabric, self.config.request_path);
        let target =
            |_| MemoryTarget::dial(&server.remote, transport, self.config.window, self.space);
        (0..self.config.clients).map(target).collect()
    }

    /// Starts the neighbour on the CPUs left over by the server and the clients, or on the clients'
    /// CPUs if there are none.
    fn neighbour(&self, kind: Neighbour, server: &Server) -> Result<NeighbourProcess, BenchError> {
        let Config {
            clients, program, ..
        } = self.config;
        let cpus = &self.placement.clients;
        let spare = cpus.get(*clients..).filter(|spare| !spare.is_empty());
        let cpus = spare.unwrap_or(cpus);
        let server = (&server.remote.address, &self.config.access_flags[..]);
        Ok(NeighbourProcess::start(program, kind, server, cpus)?)
    }

    /// Runs a system in this process, its code compiled for the fabric's provider.
    fn run_in_process(
        &self,
        (system, fabric): Contender,
        name: String,
        traces: &mut [Trace],
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Run, BenchError> {
        let fabric = fabric.session().unwrap_or(herdwick::Fabric::BEST);
        let open = |end| fabric.loopback(end).map_err(EndpointError::System);
        let worker = open(End::Worker)?;
        let ends: Vec<_> = match system {
            System::Clover => clover::ends(self.config.replicas, self.config.clients).collect(),
            _ => vec![End::Client; self.config.clients],
        };
        let clients = ends.into_iter().map(open);
        let clients = clients.collect::<Result<_, _>>()?;
        let run = RunInProcess {
            config: self.config,
            bout: self.echo_bout(name),
            system,
            cpus: self.echo_cpus(),
            traces,
            watch,
        };
        worker.visit_all(clients, run)
    }

    fn bare_targets(&self) -> Result<Vec<BareTarget>, BenchError> {
        let transport = (
            self.config.request_path.unwrap_or_default(),
            self.config.window,
        );
        let (clients, value_size) = (self.config.clients, self.space.value_size());
        Ok(BareTarget::endpoints(
            clients,
            transport,
            value_size,
            self.echo_cpus(),
        )?)
    }

    /// Returns the CPU of a server in this process.
    fn echo_cpus(&self) -> &[usize] {
        &self.placement.server[..1]
    }

    fn echo_bout(&self, name: String) -> Bout<'_> {
        Bout {
            server_cpu: None,
            ..self.bout(name)
        }
    }

    fn herd_bout(&self, name: String) -> Bout<'_> {
        Bout {
            batches_of: self.server.as_ref().map(|server| &server.remote),
            ..self.bout(name)
        }
    }

    fn bout(&self, name: String) -> Bout<'_> {
        Bout {
            config: self.config,
            space: self.space,
            placement: self.placement,
            server_cpu: self.server.as_ref().and_then(|server| server.cpu.clone()),
            batches_of: None,
            name,
        }
    }

    /// Returns the name of `system` in the report; a server that was found to be a memcached is
    /// named `memcached`.
    fn name(&self, system: System) -> &'static str {
        let memcached = |server: &Server| server.is_memcached;
        match system {
            System::Herd | System::Crowded if self.server.as_ref().is_some_and(memcached) => {
                "memcached"
            }
            system => system.name(),
        }
    }

    fn subject(&self, (system, fabric): Contender) -> Subject {
        let config = self.config;
        let tcp = |value| (fabric == Fabric::Tcp).then_some(value);
        let server = self.server.as_ref().filter(|_| !system.is_in_process());
        let beside = match system {
            System::Beside(neighbour) => Some(neighbour.name().to_owned()),
            System::Crowded => Some("crowd".to_owned()),
            _ => None,
        };
        Subject {
            beside,
            system: self.name(system).to_owned(),
            fabric: fabric.name().to_owned(),
            server: server.map(|server| server.version.clone()),
            workers: server.map_or(Some(1), |server| server.workers),
            clients: config.clients,
            window: fabric.is_herd().then_some(config.window),
            replicas: (system == System::Clover).then_some(config.replicas),
            connections: tcp(config.connections),
            pipeline: tcp(config.pipeline),
            multiget: tcp(config.multiget),
            ..subject(config, fabric.word())
        }
    }
}

/// Returns the TCP options of client `client`: its share of the connections, at least one.
fn tcp_options(config: &Config, client: usize) -> TcpOptions {
    TcpOptions {
        // Rounded so that the shares of all clients add up to `connections`.
        connections: ((config.connections + client) / config.clients).max(1),
        pipeline: config.pipeline,
        multiget: config.multiget,
    }
}

/// Returns the parts of a subject that are common to all systems.
pub(crate) fn subject(config: &Config, word: FigureClass) -> Subject {
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
    fabrics: &[Fabric],
    line_rtt_ns: BeforeAfter,
) -> Manifest {
    let names: BTreeSet<_> = fabrics.iter().map(|fabric| fabric.name()).collect();
    let words: BTreeSet<_> = fabrics.iter().map(|fabric| fabric.word().name()).collect();
    let join = |set: BTreeSet<&str>| set.into_iter().collect::<Vec<_>>().join(",");
    Manifest {
        commit: COMMIT.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: Machine::here(placement.cpus()),
        fabric: join(names),
        word: join(words),
        line_rtt_ns,
        knobs: config.knobs(placement, fabrics),
        left_out: None,
    }
}

/// Measures the cache-line round trip between a CPU of the server and one of the clients; `None` if
/// they share one.
pub(crate) fn rtt(placement: &Placement) -> Option<LineRtt> {
    placement.pair().map(line_rtt)
}
