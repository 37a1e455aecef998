//! Bystanders: clients that only read a little, all along, to measure how long each read waits and
//! how much of that is the host's fault.
//!
//! The machines that run the tests are shared and stall by themselves. So the time of a read is
//! reduced by the time that the reader's thread and the workers waited for a CPU according to the
//! kernel (`schedstat`), and by how late a thread on each CPU woke at that time, which also shows a
//! host that took the CPU itself away. The rest is time in which the server could run, and either
//! worked for others or slept.

use std::{
    fs, iter,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, mpsc},
    time::Duration,
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{
    common::value,
    stage::{Stage, rest},
    transports::Kind,
};

/// Longest time of a read, apart from the host's share.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(50);
const KEYS: usize = 16;
const PAUSE: Duration = Duration::from_millis(2);
/// Lateness that is worth recording.
const LATE: Duration = Duration::from_millis(2);

/// A read that took long.
#[derive(Clone, Copy, Debug)]
struct Slow {
    begin: Duration,
    end: Duration,
    /// Time that the threads in question waited for a CPU.
    queued: Duration,
}

/// Records of the bystanders and alarms.
#[derive(Default)]
pub(crate) struct Waits {
    reads: Mutex<Reads>,
    /// When a thread woke too late, and by how much.
    late: Mutex<Vec<(Duration, Duration)>>,
}

#[derive(Default)]
struct Reads {
    count: u64,
    longest: Vec<(Kind, Duration)>,
    slow: Vec<(Kind, Slow)>,
}

impl Waits {
    fn note(&self, kind: Kind, slow: Slow) {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        reads.count += 1;
        let took = slow.end - slow.begin;
        match reads.longest.iter_mut().find(|(of, _)| *of == kind) {
            Some((_, longest)) => *longest = took.max(*longest),
            None => reads.longest.push((kind, took)),
        }
        if took > WAIT_MAX {
            reads.slow.push((kind, slow));
        }
    }

    /// Returns how late a thread woke at most between two instants.
    fn lateness(&self, slow: &Slow) -> Duration {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let then = late
            .iter()
            .filter(|(end, by)| *end >= slow.begin && *end - *by <= slow.end);
        then.map(|(_, by)| *by).max().unwrap_or_default()
    }

    /// Returns how late a thread woke at most.
    pub(crate) fn latest(&self) -> Duration {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        late.iter().map(|(_, by)| *by).max().unwrap_or_default()
    }

    /// Prints a summary. Returns the reads that took too long without the host's fault.
    pub(crate) fn report(&self) -> Vec<String> {
        let reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = self.latest();
        println!(
            "bystanders: {} reads, the longest {:.1?}; {} above {WAIT_MAX:?}; a thread woke up to \
             {latest:.1?} late",
            reads.count,
            reads.longest,
            reads.slow.len()
        );
        let mut blamed = Vec::new();
        for (kind, slow) in &reads.slow {
            let (took, late) = (slow.end - slow.begin, self.lateness(slow));
            let ours = took.saturating_sub(slow.queued).saturating_sub(late);
            let line = format!(
                "over {kind:?} at {:.1?}: {took:.1?}, of which {:.1?} in queues for a CPU, threads \
                 {late:.1?} late: {ours:.1?} is the server's",
                slow.begin, slow.queued
            );
            if ours > WAIT_MAX {
                blamed.push(line);
            }
        }
        blamed
    }
}

/// The kernel's records of how long threads waited for a CPU: the server's workers, and this
/// thread.
struct Queues(Vec<PathBuf>);

impl Queues {
    fn new(server: u32) -> Self {
        let tasks = Path::new("/proc").join(server.to_string()).join("task");
        let tasks = fs::read_dir(tasks)
            .unwrap()
            .map(|task| task.unwrap().path());
        let name = |task: &PathBuf| fs::read_to_string(task.join("comm")).unwrap();
        let workers = tasks.filter(|task| name(task).starts_with("worker"));
        let this = fs::canonicalize("/proc/thread-self").unwrap();
        let all = workers.chain([this]).map(|task| task.join("schedstat"));
        Self(all.collect())
    }

    /// Returns the total wait; a thread that has ended counts nothing.
    fn waited(&self) -> Duration {
        let nanos = |path: &PathBuf| -> Option<u64> {
            fs::read_to_string(path)
                .ok()?
                .split(' ')
                .nth(1)?
                .parse()
                .ok()
        };
        Duration::from_nanos(self.0.iter().filter_map(nanos).sum())
    }
}

/// Connects over one transport, drops `connecting`, and reads until the soak is over.
pub(crate) fn read(
    stage: &Stage,
    waits: &Waits,
    kind: Kind,
    server: u32,
    connecting: mpsc::Sender<()>,
) {
    // A busy host may have answered too late, or not have ended the leases of earlier clients yet.
    let connected = iter::repeat_with(|| stage.places.connect(kind));
    let Some(mut transport) = connected.take_while(|_| stage.lasts()).flatten().next() else {
        return;
    };
    drop(connecting);
    let keys: Vec<String> = (0..KEYS)
        .map(|n| format!("bystander:{kind:?}:{n}"))
        .collect();
    let queues = Queues::new(server);
    let mut turn = 0;
    while stage.lasts() {
        let key = &keys[turn % KEYS];
        if (turn / KEYS).is_multiple_of(50) {
            transport.set(key, &stored(key, turn), 0);
        }
        let before = queues.waited();
        let begin = stage.clock.now();
        let found = transport.get(key);
        let end = stage.clock.now();
        let queued = queues.waited().saturating_sub(before);
        waits.note(kind, Slow { begin, end, queued });
        match found {
            Some(found) => assert!(found == stored(key, turn), "{key}"),
            None => stage.missed(key, (turn / KEYS / 50) as u64),
        }
        turn += 1;
        rest(PAUSE);
    }
}

/// Returns the value that was stored last under `key`.
fn stored(key: &str, turn: usize) -> Vec<u8> {
    value(key, (turn / KEYS / 50) as u64, 200)
}

/// The CPUs that this process may use.
pub(crate) fn cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect()
}

/// Wakes on one CPU each millisecond, and records late wakeups.
pub(crate) fn alarm(stage: &Stage, waits: &Waits, cpu: usize) {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).unwrap();
    let tick = Duration::from_millis(1);
    while stage.lasts() {
        let begin = stage.clock.now();
        rest(tick);
        let end = stage.clock.now();
        let by = (end - begin).saturating_sub(tick);
        if by > LATE {
            let mut late = waits.late.lock().unwrap_or_else(PoisonError::into_inner);
            late.push((end, by));
        }
    }
}
