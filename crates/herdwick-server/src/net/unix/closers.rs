//! Threads that close unix sockets with descriptors in them, so that no other thread waits for a
//! close.
//!
//! Dropping the last descriptor of a lingering TCP socket blocks for its linger time, unless a
//! signal arrives at the closing thread. So a close that takes long is interrupted, and the kernel
//! finishes the lingering. A close that no signal interrupts (the drain of a terminal, for example)
//! blocks its thread. Then further threads are started, up to [`CLOSERS_MAX`], of which the sockets
//! of one user occupy at most [`USER_CLOSERS_MAX`].

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use herdwick_mem::Interruptible;
use mio::net::UnixStream;
use signal_hook::consts::SIGURG;

/// Largest number of closing threads, and of those that one user's sockets occupy.
const CLOSERS_MAX: usize = 16;
const USER_CLOSERS_MAX: usize = 4;
/// Largest number of sockets that wait to be closed or are being closed, before accepting stops:
/// each holds a descriptor.
pub(super) const HELD_MAX: usize = 1024;
/// The same for one user.
pub(super) const USER_HELD_MAX: usize = 256;
/// How long a close may take before it is interrupted, and a further thread is started.
const STUCK_AFTER: Duration = Duration::from_millis(100);
/// Interval of further interruptions: at worst one for each descriptor in the socket.
const INTERRUPT_EVERY: Duration = Duration::from_millis(10);
/// Closing needs little stack.
const STACK_BYTES: usize = 128 << 10;

/// Sockets that wait to be closed, and the state of each thread.
struct Queue<T> {
    users: BTreeMap<u32, UserSockets<T>>,
    closers: [Closer; CLOSERS_MAX],
    /// Number of sockets ever taken from the queue.
    taken: u64,
    /// The user of the socket taken last; the next user is served next.
    last: u32,
    /// A thread waits for work.
    idle: bool,
    /// The thread that watches the others was started.
    watched: bool,
}

/// The sockets of one user; removed when there are none.
struct UserSockets<T> {
    waiting: VecDeque<T>,
    closing: usize,
}

/// One of the closing threads.
#[derive(Clone, Copy)]
struct Closer {
    started: bool,
    /// `None` until the thread runs.
    thread: Option<Interruptible>,
    /// What it is closing: the number of the socket, from `taken`, and its user.
    closes: Option<(u64, u32)>,
    /// The number of the socket it was closing at the last check.
    seen: u64,
    stuck: bool,
}

const VACANT: Closer = Closer {
    started: false,
    thread: None,
    closes: None,
    seen: 0,
    stuck: false,
};

impl<T> Queue<T> {
    const fn new() -> Self {
        Self {
            users: BTreeMap::new(),
            closers: [VACANT; CLOSERS_MAX],
            taken: 0,
            last: 0,
            idle: false,
            watched: false,
        }
    }

    fn push(&mut self, user: u32, socket: T) {
        let user = self.users.entry(user).or_insert_with(|| UserSockets {
            waiting: VecDeque::new(),
            closing: 0,
        });
        user.waiting.push_back(socket);
    }

    /// Returns how many sockets of `user` wait or are being closed.
    fn held(&self, user: u32) -> usize {
        let user = self.users.get(&user);
        user.map_or(0, |user| user.waiting.len() + user.closing)
    }

    /// Returns the next user in turn, of those that occupy fewer threads than they may.
    fn next(&self) -> Option<u32> {
        let may = |(id, user): (&u32, &UserSockets<T>)| {
            (!user.waiting.is_empty() && user.closing < USER_CLOSERS_MAX).then_some(*id)
        };
        // Users in turn, from the one behind the last on: the sockets of one do not hold up those
        // of another.
        let behind = self.users.range(self.last.saturating_add(1)..);
        behind.chain(&self.users).find_map(may)
    }

    fn take(&mut self, closer: usize) -> Option<T> {
        let id = self.next()?;
        let user = self.users.get_mut(&id)?;
        let socket = user.waiting.pop_front()?;
        user.closing += 1;
        self.taken += 1;
        self.last = id;
        self.closers[closer].closes = Some((self.taken, id));
        Some(socket)
    }

    /// Records that `closer` has closed its socket.
    fn done(&mut self, closer: usize) {
        let closer = &mut self.closers[closer];
        closer.stuck = false;
        let Some((_, id)) = closer.closes.take() else {
            return;
        };
        if let Some(user) = self.users.get_mut(&id) {
            user.closing -= 1;
            if user.closing == 0 && user.waiting.is_empty() {
                self.users.remove(&id);
            }
        }
    }

    fn is_busy(&self) -> bool {
        !self.users.is_empty()
    }

    fn stuck(&self) -> usize {
        self.closers.iter().filter(|closer| closer.stuck).count()
    }

    /// Marks the threads that are at the same socket as at the last check, and returns them.
    fn check(&mut self) -> Vec<Interruptible> {
        let mut late = Vec::new();
        for closer in &mut self.closers {
            let Some((socket, _)) = closer.closes else {
                continue;
            };
            closer.stuck = closer.seen == socket;
            closer.seen = socket;
            late.extend(closer.thread.filter(|_| closer.stuck));
        }
        late
    }

    /// Returns the index for one more thread, if there is work for it and every started thread is
    /// stuck.
    fn vacancy(&self) -> Option<usize> {
        self.next()?;
        let started = self.closers.iter().filter(|closer| closer.started).count();
        (!self.idle && started == self.stuck())
            .then(|| self.closers.iter().position(|closer| !closer.started))?
    }
}

static QUEUE: Mutex<Queue<UnixStream>> = Mutex::new(Queue::new());
/// Signals that a socket waits.
static MORE: Condvar = Condvar::new();
/// The same, for the thread that watches.
static WATCH: Condvar = Condvar::new();
/// Copies of the queue's counts, for readers that do not take the lock.
static HELD: AtomicUsize = AtomicUsize::new(0);
static STUCK: AtomicUsize = AtomicUsize::new(0);

fn queue() -> MutexGuard<'static, Queue<UnixStream>> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how many sockets wait or are being closed.
pub(super) fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// Returns how many threads have been closing one socket for long.
pub(super) fn stuck() -> usize {
    STUCK.load(Ordering::Relaxed)
}

/// Returns whether `user` has reached its limit of sockets.
pub(super) fn is_full(user: u32) -> bool {
    // The sockets of one user are among all: the lock is taken only where there are as many of all.
    held() >= USER_HELD_MAX && queue().held(user) >= USER_HELD_MAX
}

/// Queues `socket` of `user` to be closed.
pub(super) fn close(user: u32, socket: UnixStream) {
    // Relaxed, here and below: the counts publish nothing, and a limit that is passed by the calls
    // under way is still one.
    HELD.fetch_add(1, Ordering::Relaxed);
    let mut queue = queue();
    queue.push(user, socket);
    if !queue.watched {
        // Without this thread no stuck close is interrupted and no further thread started, so
        // sockets may go on waiting. They are counted, and the next call tries again.
        queue.watched = spawn(watch).is_ok();
    }
    start_closer(&mut queue);
    MORE.notify_one();
    WATCH.notify_one();
}

fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name("closer".into());
    thread.stack_size(STACK_BYTES).spawn(run).map(drop)
}

/// Starts one more thread if all existing ones are stuck, or none exists.
fn start_closer(queue: &mut Queue<UnixStream>) {
    if let Some(place) = queue.vacancy() {
        // If this fails, the next check tries again.
        queue.closers[place].started = spawn(move || work(place)).is_ok();
    }
}

fn work(place: usize) {
    let mut queue = queue();
    queue.closers[place].thread = Some(Interruptible::here());
    loop {
        if let Some(socket) = queue.take(place) {
            drop(queue);
            // The close itself, which may block: without the lock.
            drop(socket);
            HELD.fetch_sub(1, Ordering::Relaxed);
            queue = self::queue();
            queue.done(place);
            STUCK.store(queue.stuck(), Ordering::Relaxed);
        // One thread that waits is enough.
        } else if queue.idle {
            queue.closers[place] = VACANT;
            return;
        } else {
            queue.idle = true;
            let waited = MORE.wait_while(queue, |queue| queue.next().is_none());
            queue = waited.unwrap_or_else(PoisonError::into_inner);
            queue.idle = false;
        }
    }
}

fn watch() {
    // A signal interrupts a system call only if it has a handler. Registration fails only for
    // signals that cannot have one; then closes are not interrupted.
    let _ = signal_hook::flag::register(SIGURG, Arc::new(AtomicBool::new(false)));
    let mut queue = queue();
    loop {
        let waited = WATCH.wait_while(queue, |queue| !queue.is_busy());
        queue = waited.unwrap_or_else(PoisonError::into_inner);
        let pause = match queue.stuck() {
            0 => STUCK_AFTER,
            _ => INTERRUPT_EVERY,
        };
        // Only the end of all work ends the pause early.
        let waited = WATCH.wait_timeout_while(queue, pause, |queue| queue.is_busy());
        queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        for thread in queue.check() {
            // The thread cannot have ended: it needs the lock to do so.
            let _ = thread.interrupt();
        }
        STUCK.store(queue.stuck(), Ordering::Relaxed);
        start_closer(&mut queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closer_threads_are_shared_among_users() {
        let mut queue = Queue::new();
        for socket in 0..10 {
            queue.push(7, (7, socket));
        }
        queue.push(9, (9, 0));
        queue.push(u32::MAX, (u32::MAX, 0));
        assert_eq!((queue.held(7), queue.held(9), queue.held(8)), (10, 1, 0));
        let mut taken = Vec::new();
        taken.extend((0..CLOSERS_MAX).map_while(|closer| queue.take(closer)));
        // User 7 already occupies its share of threads, so its fifth socket waits.
        let max = (u32::MAX, 0);
        assert_eq!(taken, [(7, 0), (9, 0), max, (7, 1), (7, 2), (7, 3)]);
        queue.push(9, (9, 1));
        assert_eq!(queue.take(6), Some((9, 1)));
        assert_eq!((queue.held(7), queue.take(7)), (10, None));
        queue.done(0);
        assert_eq!((queue.held(7), queue.take(0)), (9, Some((7, 4))));
    }

    #[test]
    fn closer_threads_are_added_only_while_all_are_stuck() {
        let mut queue = Queue::new();
        assert_eq!(queue.vacancy(), None, "nothing to do");
        for socket in 0..2 * USER_CLOSERS_MAX {
            queue.push(7, socket);
        }
        for closer in 0..USER_CLOSERS_MAX {
            assert_eq!(queue.vacancy(), Some(closer));
            queue.closers[closer].started = true;
            queue.closers[closer].thread = Some(Interruptible::here());
            assert_eq!(queue.vacancy(), None, "the close may still be quick");
            assert!(queue.take(closer).is_some());
            // A socket taken since the last check is not stuck.
            assert_eq!((queue.check().len(), queue.vacancy()), (closer, None));
            assert_eq!(queue.check().len(), closer + 1);
            assert_eq!(queue.stuck(), closer + 1);
        }
        assert_eq!(queue.vacancy(), None, "one user has no more");
        queue.push(8, 0);
        assert_eq!(queue.vacancy(), Some(USER_CLOSERS_MAX));
        queue.done(1);
        assert_eq!((queue.stuck(), queue.vacancy()), (3, None));
    }
}
