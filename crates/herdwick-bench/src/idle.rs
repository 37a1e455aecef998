//! A server at rest: the CPU time that it uses, and the latency of the first request after the
//! rest.

use std::{io::Write, time::Duration};

use herdwick::{Client, Options};
use herdwick_memcache::reply::Reply;

use crate::{
    BenchError, Config, DriveError, Fabric, Progress,
    compare::{manifest, rtt, server, subject},
    counters::RunCounters,
    host::{Placement, Stopwatch, pin},
    progress::on_own_thread,
    remote::{Blocking, Remote},
    replies::ReplyReader,
    report::{BeforeAfter, Outcome, Report, Run, SCHEMA, Subject},
    server::Server,
};

/// Idle sessions over shared memory.
pub const IDLE_SESSIONS: usize = 16;
/// Idle TCP connections.
pub const IDLE_CONNECTIONS: usize = 100;
/// Slots of each session; never more than one request is in flight.
const WINDOW: usize = 8;
/// Pause between the first requests of two clients, long enough for the worker to sleep again.
const APART: Duration = Duration::from_millis(10);
/// Seconds that the server's CPU time is normalized to.
const PER_S: f64 = 10.0;
const KEY: &str = "herdwick-bench-idle";
const VALUE: &[u8] = b"awake";

/// Lets a server rest for `config.seconds`, `config.runs` times, with [`IDLE_SESSIONS`] and
/// [`IDLE_CONNECTIONS`] attached. After each rest it sends one request on each session and on as
/// many connections.
///
/// # Errors
/// No server answers, or it does not offer shared memory.
pub fn idle(config: &Config, watch: &mut dyn FnMut(&Progress)) -> Result<Report, BenchError> {
    config.checked()?;
    let placement = config.placement();
    let server = server(config, &placement)?;
    on_own_thread(watch, move |watch| {
        pin(placement.client(0));
        Attached::attach(server)?.report(config, &placement, watch)
    })
}

/// The server and the clients attached to it.
struct Attached {
    server: Server,
    sessions: Vec<Client>,
    connections: Vec<BlockingConnection>,
}

impl Attached {
    fn attach(server: Server) -> Result<Self, BenchError> {
        let sessions = (0..IDLE_SESSIONS).map(|_| session(&server.remote));
        let connections = (0..IDLE_CONNECTIONS).map(|_| BlockingConnection::new(&server.remote));
        Ok(Self {
            sessions: sessions.collect::<Result<_, _>>()?,
            connections: connections.collect::<Result<_, _>>()?,
            server,
        })
    }

    fn report(
        mut self,
        config: &Config,
        placement: &Placement,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Report, BenchError> {
        let before = rtt(placement);
        let (mut rest, mut counters) = (
            RestTime::default(),
            [RunCounters::new(), RunCounters::new()],
        );
        for run in 1..=config.runs {
            watch(&Progress {
                what: format!("rest {run}/{}", config.runs),
                operations: counters.iter().map(RunCounters::operations).sum(),
                seconds: rest.seconds,
                of: None,
            });
            rest.take(config.seconds, &self.server);
            self.wake(&mut counters)?;
        }
        let lines = BeforeAfter::lines(before, rtt(placement));
        let fabrics = [Fabric::BEST, Fabric::Tcp];
        let outcome = |(fabric, counters): (&Fabric, &RunCounters)| Outcome {
            runs: config.runs,
            ..Outcome::of(self.subject(config, *fabric), &[rest.run(counters, lines)])
        };
        Ok(Report {
            schema: SCHEMA,
            results: fabrics.iter().zip(&counters).map(outcome).collect(),
            manifest: manifest(config, placement, &fabrics, lines),
        })
    }

    /// Sends one request on each session and on as many connections, with a pause before each.
    fn wake(&mut self, [by_herd, by_tcp]: &mut [RunCounters; 2]) -> Result<(), BenchError> {
        let clock = Stopwatch::start();
        for session in &mut self.sessions {
            sleep(APART);
            let start_ns = clock.ns();
            let value = session.get(KEY).map_err(|error| no_transport(&error))?;
            count(by_herd, value.as_deref(), start_ns, clock.ns());
        }
        for connection in self.connections.iter_mut().take(IDLE_SESSIONS) {
            sleep(APART);
            let start_ns = clock.ns();
            let value = connection.get()?;
            count(by_tcp, value.as_deref(), start_ns, clock.ns());
        }
        Ok(())
    }

    fn subject(&self, config: &Config, fabric: Fabric) -> Subject {
        let tcp = fabric == Fabric::Tcp;
        Subject {
            system: "idle".to_owned(),
            fabric: fabric.name().to_owned(),
            server: Some(self.server.version.clone()),
            workload: "first".to_owned(),
            get_share: 1.0,
            keys: 1,
            key_bytes: KEY.len(),
            value_bytes: VALUE.len(),
            workers: self.server.workers,
            clients: if tcp { IDLE_CONNECTIONS } else { IDLE_SESSIONS },
            ..subject(config, fabric.word())
        }
    }
}

fn session(server: &Remote) -> Result<Client, BenchError> {
    let options = Options {
        window: WINDOW,
        ..server.options.clone()
    };
    let mut client = Client::connect_with(&server.address.to_string(), options)
        .map_err(|error| no_transport(&error))?;
    client
        .set(KEY, VALUE)
        .map_err(|error| no_transport(&error))?;
    let fallback = client.session().and_then(|session| session.fallback());
    match fallback {
        Some(reason) => Err(no_transport(reason)),
        None => Ok(client),
    }
}

fn no_transport(reason: &dyn std::fmt::Display) -> BenchError {
    BenchError::NoTransport {
        fabric: Fabric::BEST,
        reason: reason.to_string(),
    }
}

/// A plain memcached connection.
struct BlockingConnection(ReplyReader<Blocking>);

impl BlockingConnection {
    fn new(server: &Remote) -> Result<Self, BenchError> {
        let stream = server.connect_blocking().map_err(DriveError::from)?;
        Ok(Self(ReplyReader::new(stream, VALUE.len())))
    }

    fn get(&mut self) -> Result<Option<Vec<u8>>, BenchError> {
        let command = format!("get {KEY}\r\n");
        let sent = self.0.get_mut().write_all(command.as_bytes());
        sent.map_err(DriveError::Io)?;
        let mut value = None;
        loop {
            // A value is followed by `END`.
            let next = self.0.next(|reply| match reply {
                Reply::Value(found) => Some(Some(found.data.to_vec())),
                Reply::End => Some(None),
                _ => None,
            })?;
            match next {
                Some(found) => value = Some(found),
                None => return Ok(value),
            }
        }
    }
}

fn count(counters: &mut RunCounters, value: Option<&[u8]>, start_ns: u64, end_ns: u64) {
    match value {
        Some(VALUE) => counters.hits += 1,
        Some(_) => counters.wrong_values += 1,
        None => counters.misses += 1,
    }
    counters.latency(start_ns, end_ns);
}

/// Duration and CPU time of the rests.
#[derive(Clone, Copy, Default)]
struct RestTime {
    seconds: f64,
    cpu_ns: Option<u64>,
}

impl RestTime {
    fn take(&mut self, seconds: f64, server: &Server) {
        let cpu_ns = || server.cpu.as_ref()?.ns();
        let (clock, before) = (Stopwatch::start(), cpu_ns());
        sleep(Duration::from_secs_f64(seconds));
        self.seconds += clock.ns() as f64 / 1e9;
        if let (Some(before), Some(after)) = (before, cpu_ns()) {
            *self.cpu_ns.get_or_insert(0) += after.saturating_sub(before);
        }
    }

    fn run(&self, counters: &RunCounters, line_rtt_ns: BeforeAfter) -> Run {
        let cpu_ms = |ns| ns as f64 / 1e6 / self.seconds * PER_S;
        Run {
            ops_per_s: counters.operations() as f64 / self.seconds,
            hit_ratio: counters.hit_ratio(),
            wrong_values: counters.wrong_values,
            idle_cpu_ms: self.cpu_ns.map(cpu_ms),
            line_rtt_ns,
            latency_us: crate::report::Latency::of(counters.latencies()),
            latencies_ns: Some(counters.latencies().clone()),
            ..Run::default()
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "resting is what is measured")]
fn sleep(time: Duration) {
    std::thread::sleep(time);
}
