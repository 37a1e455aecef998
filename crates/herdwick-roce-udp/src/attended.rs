//! A port driven by a thread of its own, for programs that lend memory but run no poll loop.

use std::{
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use herdwick_fabric::Port;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::{Errno, read, write},
};

use crate::RocePort;

/// A port whose passes a thread makes: peers WRITE, READ and do atomics in its memory whether or
/// not its owner polls.
///
/// The thread sleeps until packets arrive or a timer expires. Each use of the port costs a lock and
/// a wakeup, so a poll loop should use the port itself.
pub struct Attended {
    shared: Arc<AttendedPort>,
    thread: Option<JoinHandle<()>>,
}

struct AttendedPort {
    port: Mutex<RocePort>,
    /// An eventfd, written when the port was used and when the thread has to end.
    wakeup: OwnedFd,
    over: AtomicBool,
}

impl Attended {
    /// Moves `port` into a thread, which reads the clock itself from now on.
    ///
    /// # Errors
    /// The operating system lacks descriptors or threads.
    pub fn start(port: RocePort) -> io::Result<Self> {
        // A descriptor of its own: the thread polls it while the port is locked by others.
        let socket = port.socket().try_clone_to_owned()?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(AttendedPort {
            port: Mutex::new(port),
            wakeup: eventfd(0, flags)?,
            over: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new().name("roce".to_owned());
        Ok(Self {
            thread: Some(thread.spawn(move || theirs.attend(&socket))?),
            shared,
        })
    }

    /// Calls `work` with the port: to create, post, poll. Only the thread makes passes.
    pub fn with<T>(&self, work: impl FnOnce(&mut RocePort) -> T) -> T {
        let result = self.shared.locked(work);
        // The thread must send what was posted and set its timers.
        // After the lock is free, so that the thread does not wake only to wait for it.
        self.shared.ring();
        result
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        // Pairs with the acquire load in `attend`.
        self.shared.over.store(true, Ordering::Release);
        // After the flag: the thread that wakes finds it.
        self.shared.ring();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Attended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attended").finish_non_exhaustive()
    }
}

impl AttendedPort {
    fn locked<T>(&self, work: impl FnOnce(&mut RocePort) -> T) -> T {
        // No call of the port leaves it half changed, so it is usable after a panic in `work`.
        work(&mut self.port.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ring(&self) {
        // The write fails only when the counter is at its maximum; the descriptor is readable then.
        let _ = write(&self.wakeup, &1_u64.to_le_bytes());
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the thread is the shell that reads the clock"
    )]
    fn attend(&self, socket: &OwnedFd) {
        let start = Instant::now();
        // Pairs with the release in `Attended::drop`.
        while !self.over.load(Ordering::Acquire) {
            // A wakeup after this read is handled by the pass below, or ends the next sleep.
            // Nothing to read is the usual case.
            // Before the pass: one write stands for all uses of the port until here.
            let _ = read(&self.wakeup, &mut [0; 8]);
            let now = start.elapsed();
            let progress = self.locked(|port| port.progress(now));
            // While packets come, the thread polls without sleeping.
            if !progress.moved {
                // A deadline that has passed means no sleep.
                self.rest(socket, progress.deadline.map(|at| at.saturating_sub(now)));
            }
        }
    }

    /// Sleeps until a packet arrives, the eventfd is written, or `limit` has passed.
    fn rest(&self, socket: &OwnedFd, limit: Option<Duration>) {
        let mut fds = [
            PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.wakeup.as_fd(), PollFlags::IN),
        ];
        // One that is too far away for a timespec means no limit.
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // An interrupted rest makes one more pass. What else is refused would be each time, and the
        // thread would spin.
        if let Err(errno) = poll(&mut fds, limit.as_ref())
            && errno != Errno::INTR
        {
            panic!("waiting for packets (poll): {errno}");
        }
    }
}
