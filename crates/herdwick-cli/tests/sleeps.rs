//! Wakeups between a client and a worker that both sleep between requests: each of ten thousand
//! sleeps is ended.
//!
//! A lost wakeup would go unnoticed: the client's retry and the worker's tick hide it. So whenever
//! an answer is missing, the tests check which side sleeps.

mod common;
#[path = "hostile/raw.rs"]
#[allow(dead_code, reason = "only the parts that write and read as one should")]
mod raw;

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{Ordering, fence},
        mpsc,
    },
    thread,
    time::Duration,
};

use common::{Chance, Clock, Folder, Server, TIMEOUT};
use herdwick::{Answer, Key, Op, Session};
use herdwick_mem::Words;
use raw::{Channel, NOT_FOUND, Raw};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, kill_process},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// Sleeps of each side in each of the two tests: ten thousand in total.
const SLEEPS: u64 = 5_000;
/// Checks that find the worker asleep with a request pending, after which the wakeup counts as
/// lost.
const CHECKS: u32 = 200;

/// Range, in spins, by which the time of a request varies around the moment at which the worker
/// goes to sleep.
const JITTER: usize = 32;

/// The server is stopped at every eighth request, until the client sleeps. Without that, a client
/// would hardly ever sleep on a host whose worker wakes up and answers faster than a client goes to
/// sleep.
const STOPPED: u64 = 8;

/// A thread, by its directory in /proc.
struct Sleeper(PathBuf);

impl Sleeper {
    fn worker(server: &Server) -> Self {
        let tasks = Path::new("/proc")
            .join(server.pid().to_string())
            .join("task");
        let mut tasks = fs::read_dir(tasks)
            .unwrap()
            .map(|task| task.unwrap().path());
        let name = |task: &PathBuf| fs::read_to_string(task.join("comm")).unwrap();
        Self(tasks.find(|task| name(task) == "worker-0\n").unwrap())
    }

    fn this() -> Self {
        Self(fs::canonicalize("/proc/thread-self").unwrap())
    }

    fn is_asleep(&self) -> bool {
        let stat = fs::read_to_string(self.0.join("stat")).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('S')
    }

    /// Returns how often it has gone to sleep (voluntary context switches).
    fn sleeps(&self) -> u64 {
        let status = fs::read_to_string(self.0.join("status")).unwrap();
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse().unwrap()
    }
}

/// One test at a time: each takes two CPUs.
static ALONE: Mutex<()> = Mutex::new(());

/// Starts a server that may use one CPU only, so that its worker always falls asleep after the same
/// time.
fn start_on_one_cpu(folder: &Folder) -> Server {
    let allowed = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(first.unwrap());
    sched_setaffinity(None, &one).unwrap();
    let server = Server::start(folder, 1);
    sched_setaffinity(None, &allowed).unwrap();
    server
}

/// Pins each thread to its own CPU if there are two; returns whether there are. On a single CPU the
/// woken thread preempts the one that wakes it, which then finds the answer before it sleeps.
fn keep_apart(worker: &Sleeper, client: &Sleeper) -> bool {
    let allowed = sched_getaffinity(None).unwrap();
    let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let cpus: Vec<usize> = cpus.take(2).collect();
    for (thread, cpu) in [worker, client].into_iter().zip(&cpus) {
        let mut set = CpuSet::new();
        set.set(*cpu);
        let id: i32 = thread
            .0
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        sched_setaffinity(Pid::from_raw(id), &set).unwrap();
    }
    cpus.len() == 2
}

/// A thread that lets a stopped server go on when the client sleeps.
struct Releaser(mpsc::Sender<()>);

impl Releaser {
    fn new(server: &Server, client: Sleeper) -> Self {
        let server = Pid::from_raw(server.pid().cast_signed()).unwrap();
        let (sender, stopped) = mpsc::channel();
        thread::spawn(move || {
            for () in stopped {
                let clock = Clock::start();
                while !client.is_asleep() && clock.now() < TIMEOUT {}
                // It is gone if the test failed.
                let _ = kill_process(server, Signal::CONT);
            }
        });
        Self(sender)
    }
}

/// A worker and this thread, which exchange requests until both have slept often enough.
struct Night<'a> {
    _alone: MutexGuard<'static, ()>,
    server: &'a Server,
    releaser: Releaser,
    /// How often the server was stopped, which counts as a sleep of the worker in /proc.
    stops: u64,
    worker: Sleeper,
    client: Sleeper,
    before: [u64; 2],
    /// Number of threads that have to sleep: the worker, and the client if it has its own CPU.
    sleepers: usize,
    chance: Chance,
    rounds: u64,
    /// Spins after which the worker was last about to sleep.
    delay: usize,
}

impl<'a> Night<'a> {
    fn new(server: &'a Server) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (worker, client) = (Sleeper::worker(server), Sleeper::this());
        // Before this thread is pinned, as the releaser is then not.
        let releaser = Releaser::new(server, Sleeper::this());
        let apart = keep_apart(&worker, &client);
        Self {
            _alone: alone,
            server,
            releaser,
            stops: 0,
            sleepers: if apart { 2 } else { 1 },
            before: [worker.sleeps(), client.sleeps()],
            worker,
            client,
            chance: Chance::new(4),
            rounds: 0,
            delay: 0,
        }
    }

    /// Returns whether the test goes on, and if so, waits until the next request is due. Every
    /// other request is due when the worker sleeps, the others just before or after it goes to
    /// sleep, as estimated from `parked`.
    fn lasts(&mut self, parked: impl Fn() -> bool) -> bool {
        self.rounds += 1;
        if self.rounds.is_multiple_of(1000) {
            let slept = self.slept();
            if slept[..self.sleepers].iter().all(|slept| *slept >= SLEEPS) {
                println!("{} rounds, slept {slept:?} times", self.rounds);
                return false;
            }
            assert!(self.rounds < 20 * SLEEPS, "slept {slept:?} times only");
        }
        if self.rounds.is_multiple_of(2) {
            let clock = Clock::start();
            while !self.worker.is_asleep() {
                assert!(clock.now() < TIMEOUT, "the worker never sleeps");
            }
            if self.sleepers == 2 && self.rounds.is_multiple_of(STOPPED) {
                self.stops += 1;
                self.server.freeze();
                self.releaser.0.send(()).unwrap();
            }
        } else {
            let spins = self.delay + self.chance.below(JITTER);
            (0..spins).for_each(|_| std::hint::spin_loop());
            self.delay = match parked() {
                true => self.delay.saturating_sub(JITTER / 4),
                false => self.delay + JITTER / 4,
            };
        }
        true
    }

    fn slept(&self) -> [u64; 2] {
        let [worker, client] = self.before;
        let worker = self.worker.sleeps() - worker - self.stops;
        [worker, self.client.sleeps() - client]
    }

    /// Panics if the worker keeps sleeping while `answered` finds no answer.
    fn check(&self, mut answered: impl FnMut() -> bool) {
        for _ in 0..CHECKS {
            // An awake worker may answer any moment; one that sleeps must have answered before.
            if !self.worker.is_asleep() || answered() {
                return;
            }
        }
        panic!("the worker sleeps with a request pending");
    }
}

/// Waits for the answer to the one request in flight. `now` advances with each wait, so that every
/// wait sleeps.
fn answer(session: &mut Session, now: &mut Duration, night: &Night<'_>) {
    let mut answered = false;
    let mut check = |session: &mut Session, now| {
        session.poll(now, &mut |_, answer| {
            assert_eq!(answer, Answer::Miss);
            answered = true;
        });
        answered
    };
    let clock = Clock::start();
    loop {
        *now += Duration::from_micros(100);
        session.wait(*now);
        if check(session, *now) {
            return;
        }
        night.check(|| check(session, *now));
        assert!(clock.now() < TIMEOUT, "no answer");
    }
}

#[test]
fn client_and_worker_wake_each_other() {
    let folder = Folder::new();
    let server = start_on_one_cpu(&folder);
    let mut session = server.session(32);
    let mut night = Night::new(&server);
    let mut now = Duration::ZERO;
    let worker = Sleeper::worker(&server);
    while night.lasts(|| worker.is_asleep()) {
        now += Duration::from_millis(1);
        let key = Key::new(b"key").unwrap();
        session.submit(now, key, &Op::Get).unwrap();
        session.flush(now);
        answer(&mut session, &mut now, &night);
    }
    assert_eq!(session.broken(), None);
}

/// A client written from `docs/wire.md` that never repeats a request: only the worker can wake it.
struct Patient {
    raw: Raw,
    /// The value of the client's parked word.
    parked: u64,
}

impl Patient {
    fn channel(&mut self) -> &mut Channel {
        &mut self.raw.channels[0]
    }

    /// Sleeps until the wakeup descriptor becomes readable, unless there is an answer already.
    fn reply(&mut self, night: &Night<'_>) -> raw::Reply {
        loop {
            self.parked += 1;
            let parked = self.parked;
            self.channel().up.store_release(0, parked);
            // Orders the store of the parked word before the poll; the worker orders its reply
            // before its load of the word, so at least one of them sees the other's store.
            fence(Ordering::SeqCst);
            let mut found = self.channel().poll();
            if found.is_none() {
                let mut rung = self.sleep();
                found = self.channel().poll();
                // The worker wakes after it has replied: the host may have stopped it in between.
                let clock = Clock::start();
                while !rung && found.is_some() {
                    assert!(clock.now() < TIMEOUT, "answered, and not woken");
                    rung = self.sleep();
                }
            }
            self.parked += 1;
            let parked = self.parked;
            self.channel().up.store_release(0, parked);
            if let Some(reply) = found {
                return reply;
            }
            night.check(|| {
                found = self.channel().poll();
                found.is_some()
            });
            if let Some(reply) = found {
                return reply;
            }
        }
    }

    /// Waits; returns whether the wakeup descriptor became readable within a tenth of a second.
    fn sleep(&mut self) -> bool {
        let wakeup = &self.channel().wakeup;
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        let mut fds = [PollFd::new(wakeup, PollFlags::IN)];
        let rung = poll(&mut fds, Some(&limit)).unwrap() > 0;
        if rung {
            let _ = (&*wakeup).read(&mut [0; 64]);
        }
        rung
    }
}

#[test]
fn client_without_retries_is_woken_each_time() {
    let folder = Folder::new();
    let server = start_on_one_cpu(&folder);
    let raw = Raw::take(&server.address, 8);
    let get = raw.get(b"key");
    let mut patient = Patient { raw, parked: 0 };
    let mut night = Night::new(&server);
    let board = patient.channel().board.clone();
    while night.lasts(|| board.load(0) & 1 == 1) {
        let sequence = patient.channel().submit(&get);
        let reply = patient.reply(&night);
        assert_eq!((reply.sequence, reply.status()), (sequence, NOT_FOUND));
    }
}
