//! Threads that give the memory of ended domains back to the system.
//!
//! Punching a hole into a file takes the file's lock. A guest that writes to `up` by a system call
//! holds that lock for as long as a page of its own buffer takes to come, which may be for ever: so
//! nobody else waits for these threads. One is there always; when what it does takes long, others
//! are started for what waits, as many as that is, and end when nothing does.

use std::{
    collections::VecDeque,
    io,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::pd::Files;

/// What is called when the memory is given back, or the system keeps some of it.
pub(crate) type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// How long a domain waits for the threads that there are before more are started.
const PATIENCE: Duration = Duration::from_secs(1);
/// What such a thread needs is little, and there may be many.
const STACK_BYTES: usize = 128 << 10;

struct Queue {
    /// Bounded by the domains that there can be.
    waiting: VecDeque<(Files, Done)>,
    /// How many were ever taken out of it.
    taken: u64,
    /// Threads that wait for more.
    idle: usize,
    started: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    waiting: VecDeque::new(),
    taken: 0,
    idle: 0,
    started: false,
});
/// Something waits.
static MORE: Condvar = Condvar::new();
/// The same, for the thread that starts others.
static WATCH: Condvar = Condvar::new();

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Files {
    /// Gives the memory of both back. Waits for whoever holds the lock of one.
    pub(crate) fn discard(&self) -> io::Result<()> {
        let (up, down) = (self.up.discard(), self.down.discard());
        up.and(down)
    }
}

/// Starts the threads, once in a process: before anything is to be given back, and not on a thread
/// that waits for nothing.
pub(crate) fn start() -> io::Result<()> {
    let mut queue = queue();
    if !queue.started {
        spawn(work)?;
        spawn(watch)?;
        queue.started = true;
    }
    Ok(())
}

fn spawn(work: fn()) -> io::Result<()> {
    let thread = thread::Builder::new().name("discard".into());
    thread.stack_size(STACK_BYTES).spawn(work).map(drop)
}

/// Has the memory of `files` given back by a thread that nobody waits for.
pub(crate) fn elsewhere(files: Files, done: Done) {
    queue().waiting.push_back((files, done));
    MORE.notify_one();
    WATCH.notify_one();
}

fn work() {
    let mut queue = queue();
    loop {
        if let Some((files, done)) = queue.waiting.pop_front() {
            queue.taken += 1;
            drop(queue);
            let discarded = files.discard();
            drop(files);
            done(discarded);
            queue = self::queue();
        } else if queue.idle > 0 {
            return;
        } else {
            queue.idle += 1;
            let waited = MORE.wait_while(queue, |queue| queue.waiting.is_empty());
            queue = waited.unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }
}

fn watch() {
    let mut queue = queue();
    loop {
        let waited = WATCH.wait_while(queue, |queue| queue.waiting.is_empty());
        queue = waited.unwrap_or_else(PoisonError::into_inner);
        let taken = queue.taken;
        let stuck = |queue: &mut Queue| !queue.waiting.is_empty() && queue.taken == taken;
        let waited = WATCH.wait_timeout_while(queue, PATIENCE, stuck);
        let (waited, late) = waited.unwrap_or_else(PoisonError::into_inner);
        queue = waited;
        if late.timed_out() {
            for _ in 0..queue.waiting.len() {
                // Refused for want of threads: the next time, if any that wait are left.
                if spawn(work).is_err() {
                    break;
                }
            }
        }
    }
}
