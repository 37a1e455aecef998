//! What a session sleeps on: one or two descriptors, and a limit. Several sessions can sleep together.

use std::{os::fd::BorrowedFd, time::Duration};

use herdwick_fabric::{Armed, CqId, Port};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Most descriptors of one session: the fabric's and the lease socket's.
const FDS_MAX: usize = 2;

/// Descriptors to wait for, and how long at most.
#[derive(Debug)]
pub(crate) struct Sleep<'a> {
    fds: [Wanted<'a>; FDS_MAX],
    count: usize,
    limit: Duration,
}

/// A descriptor, and what is waited for there.
pub(crate) type Wanted<'a> = (BorrowedFd<'a>, PollFlags);

impl<'a> Sleep<'a> {
    pub(crate) fn on_one(fd: Wanted<'a>, limit: Duration) -> Self {
        Self {
            fds: [fd, fd],
            count: 1,
            limit,
        }
    }

    pub(crate) fn on_two(fds: [Wanted<'a>; FDS_MAX], limit: Duration) -> Self {
        Self {
            fds,
            count: FDS_MAX,
            limit,
        }
    }

    /// The descriptors.
    pub(crate) fn fds(&self) -> &[Wanted<'a>] {
        &self.fds[..self.count]
    }

    /// The longest time.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Sleeps until a descriptor is ready, or the limit has passed.
    pub(crate) fn run(self) {
        let mut fds = self
            .fds
            .map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
        sleep(&mut fds[..self.count], self.limit);
    }

    /// Sleeps until a descriptor of one of `all` is ready, or the shortest limit has passed.
    pub(crate) fn run_all(all: &[Self]) {
        let fds = all.iter().flat_map(Self::fds);
        let mut fds: Vec<_> = fds
            .map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
            .collect();
        let limit = all.iter().map(|one| one.limit).min();
        sleep(&mut fds, limit.unwrap_or_default());
    }
}

fn sleep(fds: &mut [PollFd<'_>], limit: Duration) {
    // A limit that the system cannot represent is none.
    let limit = Timespec::try_from(limit).ok();
    // An interrupted wait is a short one; every caller must expect that.
    let _ = poll(fds, limit.as_ref());
}

/// Sleeps until there is a completion in `cq`, or `limit` has passed.
pub(crate) fn doze(port: &mut impl Port, cq: CqId, limit: Duration) {
    if port.arm(cq) == Armed::Yes
        && let Some(fd) = port.wait_fd()
    {
        Sleep::on_one((fd, PollFlags::IN), limit).run();
    }
    port.disarm(cq);
}

/// Time that a wait spins before it sleeps (busy polling). A round trip takes a microsecond or two,
/// a sleeping worker some tens more to wake; sleeping meanwhile would add this thread's own wakeup.
/// A longer wait means that the worker is busy with something else.
const SPIN: Duration = Duration::from_micros(200);

/// Returns [`SPIN`], or zero where the worker would have to wait for this very CPU.
pub(crate) fn spin() -> Duration {
    let cpus = std::thread::available_parallelism();
    if cpus.is_ok_and(|cpus| cpus.get() > 1) {
        SPIN
    } else {
        Duration::ZERO
    }
}
