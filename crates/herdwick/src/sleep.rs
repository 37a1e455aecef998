//! What a session sleeps on: one or two descriptors, and a limit. Several sessions can sleep together.

use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};

/// Most descriptors of one session: the fabric's and the lease socket's.
const FDS_MAX: usize = 2;

/// Descriptors to wait for, and how long at most.
#[derive(Debug)]
pub(crate) struct Sleep<'a> {
    fds: [PollFd<'a>; FDS_MAX],
    count: usize,
    limit: Duration,
}

impl<'a> Sleep<'a> {
    pub(crate) fn on_one(fd: PollFd<'a>, limit: Duration) -> Self {
        Self {
            fds: [fd.clone(), fd],
            count: 1,
            limit,
        }
    }

    pub(crate) fn on_two(fds: [PollFd<'a>; FDS_MAX], limit: Duration) -> Self {
        Self {
            fds,
            count: FDS_MAX,
            limit,
        }
    }

    /// Sleeps until a descriptor is ready, or the limit has passed.
    pub(crate) fn run(mut self) {
        sleep(&mut self.fds[..self.count], self.limit);
    }

    /// Sleeps until a descriptor of one of `all` is ready, or the shortest limit has passed.
    pub(crate) fn run_all(all: &[Self]) {
        let fds = all.iter().flat_map(|one| &one.fds[..one.count]);
        let mut fds: Vec<_> = fds.cloned().collect();
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
