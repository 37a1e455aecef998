//! Threads that close unix sockets with descriptors in them, for which nobody else waits.
//!
//! To drop the last descriptor of a TCP socket that lingers takes as long as its owner said, unless
//! a signal comes for the thread that waits: so a close that takes long is interrupted, and what
//! lingers is the kernel's to end. What no signal ends (a terminal that is drained, say) holds its
//! thread. Then others are started, up to [`CLOSERS_MAX`], of which the sockets of one user have
//! [`USER_CLOSERS_MAX`].

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

/// Most threads that close, and most that sockets of one user hold.
const CLOSERS_MAX: usize = 16;
const USER_CLOSERS_MAX: usize = 4;
/// Most sockets that wait to be closed, or are, before no more are accepted: each is a descriptor.
pub(super) const HELD_MAX: usize = 1024;
/// The same, of one user.
pub(super) const USER_HELD_MAX: usize = 256;
/// How long a close may take before it is interrupted, and a further thread started for what waits.
const STUCK_AFTER: Duration = Duration::from_millis(100);
/// How often it is interrupted from then on: once for each descriptor, at worst.
const INTERRUPT_EVERY: Duration = Duration::from_millis(10);
/// What such a thread needs is little.
const STACK_BYTES: usize = 128 << 10;

/// Sockets that wait to be closed, and what each thread does.
struct Queue<T> {
    users: BTreeMap<u32, User<T>>,
    closers: [Closer; CLOSERS_MAX],
    /// How many were ever taken to be closed.
    taken: u64,
    /// Whose socket was taken last: the next user's is taken next.
    last: u32,
    /// A thread waits for more.
    idle: bool,
    /// The thread that watches the others was started.
    watched: bool,
}

/// Sockets of one user, as long as there are any.
struct User<T> {
    waiting: VecDeque<T>,
    closing: usize,
}

/// One of the threads there may be.
#[derive(Clone, Copy)]
struct Closer {
    started: bool,
    /// `None` until it runs.
    thread: Option<Interruptible>,
    /// What it closes: the how-manieth it was, and whose.
    closes: Option<(u64, u32)>,
    /// What it closed when it was last looked at.
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
        let user = self.users.entry(user).or_insert_with(|| User {
            waiting: VecDeque::new(),
            closing: 0,
        });
        user.waiting.push_back(socket);
    }

    /// Sockets of `user` that wait or are being closed.
    fn held(&self, user: u32) -> usize {
        let user = self.users.get(&user);
        user.map_or(0, |user| user.waiting.len() + user.closing)
    }

    /// Whose turn it is, of those that do not hold all threads they may.
    fn next(&self) -> Option<u32> {
        let may = |(id, user): (&u32, &User<T>)| {
            (!user.waiting.is_empty() && user.closing < USER_CLOSERS_MAX).then_some(*id)
        };
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

    /// What `closer` took is closed.
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

    /// Who has been at the same socket since the last look.
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

    /// A place for one more thread, if there is something for it to do.
    fn vacancy(&self) -> Option<usize> {
        self.next()?;
        let started = self.closers.iter().filter(|closer| closer.started).count();
        (!self.idle && started == self.stuck())
            .then(|| self.closers.iter().position(|closer| !closer.started))?
    }
}

static QUEUE: Mutex<Queue<UnixStream>> = Mutex::new(Queue::new());
/// Something waits.
static MORE: Condvar = Condvar::new();
/// The same, for the thread that watches.
static WATCH: Condvar = Condvar::new();
/// Sockets that wait or are being closed, and threads that are stuck, for those who only look.
static HELD: AtomicUsize = AtomicUsize::new(0);
static STUCK: AtomicUsize = AtomicUsize::new(0);

fn queue() -> MutexGuard<'static, Queue<UnixStream>> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many sockets wait or are being closed.
pub(super) fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// How many threads have been at one socket for long.
pub(super) fn stuck() -> usize {
    STUCK.load(Ordering::Relaxed)
}

/// Whether so many sockets of `user` wait that there may be no more.
pub(super) fn is_full(user: u32) -> bool {
    held() >= USER_HELD_MAX && queue().held(user) >= USER_HELD_MAX
}

/// Has `socket` of `user` closed.
pub(super) fn close(user: u32, socket: UnixStream) {
    HELD.fetch_add(1, Ordering::Relaxed);
    let mut queue = queue();
    queue.push(user, socket);
    if !queue.watched {
        // Without it what waits goes on waiting, and is counted; the next one tries again.
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

/// Starts one more if all that there are, if any, are stuck.
fn start_closer(queue: &mut Queue<UnixStream>) {
    if let Some(place) = queue.vacancy() {
        // Refused for want of threads: the next look tries again.
        queue.closers[place].started = spawn(move || work(place)).is_ok();
    }
}

fn work(place: usize) {
    let mut queue = queue();
    queue.closers[place].thread = Some(Interruptible::here());
    loop {
        if let Some(socket) = queue.take(place) {
            drop(queue);
            drop(socket);
            HELD.fetch_sub(1, Ordering::Relaxed);
            queue = self::queue();
            queue.done(place);
            STUCK.store(queue.stuck(), Ordering::Relaxed);
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
    // A signal without a handler interrupts nothing. Refused only for signals that have none: then
    // closes take as long as they take.
    let _ = signal_hook::flag::register(SIGURG, Arc::new(AtomicBool::new(false)));
    let mut queue = queue();
    loop {
        let waited = WATCH.wait_while(queue, |queue| !queue.is_busy());
        queue = waited.unwrap_or_else(PoisonError::into_inner);
        let pause = match queue.stuck() {
            0 => STUCK_AFTER,
            _ => INTERRUPT_EVERY,
        };
        let waited = WATCH.wait_timeout_while(queue, pause, |queue| queue.is_busy());
        queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        for thread in queue.check() {
            // It cannot have ended: it takes the lock first.
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
    fn users_take_turns_and_none_holds_all_threads() {
        let mut queue = Queue::new();
        for socket in 0..10 {
            queue.push(7, (7, socket));
        }
        queue.push(9, (9, 0));
        queue.push(u32::MAX, (u32::MAX, 0));
        assert_eq!((queue.held(7), queue.held(9), queue.held(8)), (10, 1, 0));
        let mut taken = Vec::new();
        taken.extend((0..CLOSERS_MAX).map_while(|closer| queue.take(closer)));
        // The fifth of user 7 waits, though there are threads.
        let max = (u32::MAX, 0);
        assert_eq!(taken, [(7, 0), (9, 0), max, (7, 1), (7, 2), (7, 3)]);
        queue.push(9, (9, 1));
        assert_eq!(queue.take(6), Some((9, 1)));
        assert_eq!((queue.held(7), queue.take(7)), (10, None));
        queue.done(0);
        assert_eq!((queue.held(7), queue.take(0)), (9, Some((7, 4))));
    }

    #[test]
    fn more_threads_are_started_only_while_all_are_stuck() {
        let mut queue = Queue::new();
        assert_eq!(queue.vacancy(), None, "nothing to do");
        for socket in 0..2 * USER_CLOSERS_MAX {
            queue.push(7, socket);
        }
        for closer in 0..USER_CLOSERS_MAX {
            assert_eq!(queue.vacancy(), Some(closer));
            queue.closers[closer].started = true;
            queue.closers[closer].thread = Some(Interruptible::here());
            assert_eq!(queue.vacancy(), None, "it may be quick");
            assert!(queue.take(closer).is_some());
            // Whatever it closes now is new.
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
