//! Threads that give the memory of ended domains back to the system.
//!
//! Punching a hole into a file takes the file's lock. A client that writes to `up` by a system call
//! holds that lock until a page of its own buffer is faulted in, which may be for ever: so no other
//! thread waits for these. One of them always runs; when its work takes long, further threads are
//! started, one for each waiting domain, and end when no domain waits.

use std::{
    collections::VecDeque,
    io,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::files::Files;

/// Called when the memory is given back, or the system has refused to take some of it.
pub(crate) type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Time that a domain waits for the running threads before more are started.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Such a thread needs little stack, and there may be many.
const STACK_BYTES: usize = 128 << 10;

struct Queue {
    /// Bounded by the number of domains.
    waiting: VecDeque<(Files, Done)>,
    /// Number of domains ever taken out of the queue.
    taken: u64,
    /// Threads that wait for a domain.
    idle: usize,
    started: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    waiting: VecDeque::new(),
    taken: 0,
    idle: 0,
    started: false,
});
/// Signaled when a domain waits.
static MORE: Condvar = Condvar::new();
/// The same, for the thread that starts others.
static WATCH: Condvar = Condvar::new();

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the threads, once in a process. Call it before any memory is to be given back, and not on
/// a thread that must not wait.
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

/// Makes another thread give back the memory of `files`, without waiting for it.
pub(crate) fn elsewhere(files: Files, done: Done) {
    queue().waiting.push_back((files, done));
    MORE.notify_one();
    // Also to the watcher, which measures from now how long the domain waits.
    WATCH.notify_one();
}

fn work() {
    let mut queue = queue();
    loop {
        if let Some((files, done)) = queue.waiting.pop_front() {
            queue.taken += 1;
            // The hole punch may wait for ever; a thread that queues a domain must not wait with it.
            drop(queue);
            let discarded = files.discard();
            // Before `done`: its receiver may count on the mapping being gone.
            drop(files);
            done(discarded);
            queue = self::queue();
        } else if queue.idle > 0 {
            // One idle thread is enough; the others, started for a slow domain, end.
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
        // Progress by any thread is enough: the watcher looks for domains that none takes.
        let taken = queue.taken;
        let stuck = |queue: &mut Queue| !queue.waiting.is_empty() && queue.taken == taken;
        let waited = WATCH.wait_timeout_while(queue, TIMEOUT, stuck);
        let (waited, late) = waited.unwrap_or_else(PoisonError::into_inner);
        queue = waited;
        if late.timed_out() {
            // One each, since each of the waiting domains may be stuck as well.
            for _ in 0..queue.waiting.len() {
                // The system refuses more threads: try again after the next timeout, if domains
                // still wait.
                if spawn(work).is_err() {
                    break;
                }
            }
        }
    }
}
