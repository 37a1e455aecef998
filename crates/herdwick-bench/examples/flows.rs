//! Many HERD clients of one worker over roce, each with its own queue pair and UDP port, compared
//! with plain datagrams over as many flows:
//!
//! ```text
//! cargo run --release -p herdwick-bench --example flows -- 2000 8 3
//! ```
//!
//! The arguments are the number of clients, the window of each, and the seconds to measure. The
//! example measures both systems five times, alternately. The worker runs on the first CPU, and one
//! thread on the second runs all clients. Each client and its lease need some descriptors and
//! memory.
#![forbid(unsafe_code)]

use std::{
    env::args,
    error::Error,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use herdwick::{Address, Answer, Fabric, Key, Mode, Op, Options, Put, Session};
use herdwick_check::Rng;
use herdwick_roce_udp::bare::BareEnd;
use herdwick_server::{Config, Leases, ListenOptions, Server, spawn};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const KEYS: u64 = 100_000;
const VALUE: [u8; 32] = [7; 32];
/// Bytes of a request packet, and of a reply packet with such a value.
const REQUEST: usize = 96;
const REPLY: usize = 76;
const RUNS: usize = 5;
/// Plain datagrams without an answer for this long count as lost.
const LOST_AFTER: Duration = Duration::from_millis(100);
const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let mut numbers = args().skip(1).map(|arg| arg.parse::<usize>());
    let mut next = |default| numbers.next().unwrap_or(Ok(default));
    let (clients, window, seconds) = (next(2000)?, next(8)?, next(3)?);
    let spell = Duration::from_secs(seconds as u64);
    let [worker, rest] = cpus()?;
    pin(worker)?;
    let server = serve(clients)?;
    pin(rest)?;
    let mut herd = Herd::dial(server.address(), clients, window, 4 * spell)?;
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        rates[0].push(rate(spell, || herd.visit())?);
        // The echo never sleeps, so it exists only while it is measured.
        let echo = Echo::start(worker)?;
        let mut bare = Bare::bind(echo.at, clients, window)?;
        rates[1].push(rate(spell, || bare.visit())?);
        echo.stop();
    }
    let [herd, bare] = rates.map(median);
    println!("{clients} clients, window {window}, medians of {RUNS} runs of {seconds} s");
    println!(
        "herd {:.0} k/s, bare {:.0} k/s: {:.2}",
        herd / 1e3,
        bare / 1e3,
        herd / bare
    );
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a program of its own is where time comes from"
)]
fn now() -> Instant {
    Instant::now()
}

/// Returns the first two CPUs that this thread may use.
fn cpus() -> Outcome<[usize; 2]> {
    let set = sched_getaffinity(None)?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    let two = cpus.next().zip(cpus.next());
    Ok(two.ok_or("two CPUs are needed")?.into())
}

/// Pins this thread, and every thread that it starts, to `cpu`.
fn pin(cpu: usize) -> Outcome<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

fn serve(clients: usize) -> Outcome<Server> {
    let leases = Leases {
        clients_max: clients + 1,
        ..Leases::default()
    };
    Ok(spawn(Config {
        fabrics: ListenOptions {
            roce: Some(LOOPBACK),
            ..ListenOptions::default()
        },
        workers: Some(1),
        memory_bytes: 4 << 30,
        connections_max: 2 * clients + 100,
        leases: Some(leases),
        ..Config::local()
    })?)
}

/// Returns answers per second. Calls `visit`, which returns its number of answers, for a warm-up
/// and then for `spell`; the warm-up is not counted.
fn rate(spell: Duration, mut visit: impl FnMut() -> Outcome<u64>) -> Outcome<f64> {
    let mut measured = 0.0;
    for spell in [spell / 5, spell] {
        let (start, mut answers) = (now(), 0);
        while start.elapsed() < spell {
            answers += visit()?;
        }
        measured = answers as f64 / start.elapsed().as_secs_f64();
    }
    Ok(measured)
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn key(n: u64) -> String {
    format!("key:{n:012}")
}

/// The HERD clients.
struct Herd {
    /// Sessions, each with its number of requests in flight.
    sessions: Vec<(Session, usize)>,
    window: usize,
    start: Instant,
    /// State of a linear congruential generator.
    chance: Rng,
}

impl Herd {
    /// Connects the clients. The deadline of a request includes `pause`: requests stay in flight
    /// while the plain datagrams are measured.
    fn dial(
        at: &herdwick_server::Address,
        clients: usize,
        window: usize,
        pause: Duration,
    ) -> Outcome<Self> {
        let address: Address = at.to_string().parse()?;
        let options = Options {
            only: Some(Fabric::Roce),
            window,
            deadline: Duration::from_secs(20) + pause,
            ..Options::default()
        };
        let start = now();
        fill(Session::dial(&address, &options)?, start)?;
        let mut sessions = Vec::new();
        for _ in 0..clients {
            let session = Session::dial(&address, &options)?;
            if let Some(reason) = session.fallback() {
                return Err(format!("client {}: {reason}", sessions.len()).into());
            }
            sessions.push((session, 0));
        }
        Ok(Self {
            sessions,
            window,
            start,
            chance: Rng::new(1),
        })
    }

    /// Takes every client's answers and refills its window with 95 % GETs; returns the number of
    /// answers.
    fn visit(&mut self) -> Outcome<u64> {
        let (mut answers, mut wrong) = (0, 0);
        for (session, flying) in &mut self.sessions {
            let now = self.start.elapsed();
            session.poll(now, &mut |_, answer| {
                *flying -= 1;
                match answer {
                    Answer::Done | Answer::Hit(_) => answers += 1,
                    _ => wrong += 1,
                }
            });
            while *flying < self.window {
                let drawn = self.chance.bits();
                let op = match drawn % 20 {
                    0 => Op::Store(Mode::Set, Put::new(&VALUE)),
                    _ => Op::Get,
                };
                let name = key(drawn / 20 % KEYS);
                let key = Key::new(name.as_bytes())?;
                if session.submit(now, key, &op).is_none() {
                    break;
                }
                *flying += 1;
            }
            session.flush(now);
        }
        if wrong > 0 {
            return Err(format!("{wrong} requests were not answered as they should be").into());
        }
        Ok(answers)
    }
}

/// Stores every key.
fn fill(mut session: Session, start: Instant) -> Outcome<()> {
    let (mut key_next, mut flying, mut wrong) = (0, 0_u32, 0_u32);
    while key_next < KEYS || flying > 0 {
        let now = start.elapsed();
        while key_next < KEYS {
            let name = key(key_next);
            let put = Op::Store(Mode::Set, Put::new(&VALUE));
            if session
                .submit(now, Key::new(name.as_bytes())?, &put)
                .is_none()
            {
                break;
            }
            (key_next, flying) = (key_next + 1, flying + 1);
        }
        session.flush(now);
        session.poll(now, &mut |_, answer| {
            flying -= 1;
            wrong += u32::from(!matches!(answer, Answer::Done));
        });
    }
    if wrong > 0 {
        return Err(format!("{wrong} of {KEYS} keys were not stored").into());
    }
    Ok(())
}

/// The clients of the bare echo.
struct Bare {
    /// Sockets, each with its number of datagrams in flight and the time of its last answer.
    ends: Vec<(BareEnd, usize, Instant)>,
    to: SocketAddr,
    window: usize,
    gso_batch: Vec<u8>,
}

impl Bare {
    fn bind(to: SocketAddr, clients: usize, window: usize) -> Outcome<Self> {
        let end = |_| Ok((BareEnd::bind(LOOPBACK)?, 0, now()));
        let ends = (0..clients).map(end).collect::<Outcome<Vec<_>>>()?;
        Ok(Self {
            ends,
            to,
            window,
            gso_batch: vec![0; REQUEST * BareEnd::BATCH],
        })
    }

    /// Does the same as [`Herd::visit`] with plain datagrams.
    fn visit(&mut self) -> Outcome<u64> {
        let mut answers = 0;
        for (end, flying, heard) in &mut self.ends {
            let came = end.receive(|_, _, _| ());
            let time = now();
            if came > 0 {
                *heard = time;
            } else if time - *heard > LOST_AFTER {
                *flying = 0;
            }
            answers += came as u64;
            *flying = flying.saturating_sub(came);
            let room = (self.window - *flying).min(BareEnd::BATCH);
            if room > 0 && end.send(self.to, &self.gso_batch[..REQUEST * room], REQUEST)? {
                *flying += room;
            }
        }
        Ok(answers)
    }
}

/// The echo server of the plain datagrams, on its own thread.
struct Echo {
    at: SocketAddr,
    over: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Echo {
    fn start(cpu: usize) -> Outcome<Self> {
        let mut end = BareEnd::bind(LOOPBACK)?;
        let (at, over) = (end.local(), Arc::new(AtomicBool::new(false)));
        let ends = Arc::clone(&over);
        let replies = vec![0; REPLY * BareEnd::BATCH];
        let thread = thread::spawn(move || {
            let _ = pin(cpu);
            while !ends.load(Ordering::Relaxed) {
                end.echo(&replies, REPLY);
            }
        });
        Ok(Self { at, over, thread })
    }

    fn stop(self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}
