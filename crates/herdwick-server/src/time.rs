use std::time::{Duration, Instant, SystemTime};

use herdwick_mica::{Clock, Second};

/// The store's first second: 0 means "never" there, and memcached starts at 2 as well, so that
/// "one second ago" exists from the beginning.
const FIRST_SECOND: u32 = 2;

/// The server's one clock: monotonic since the start, so that a step of the wall clock moves no
/// deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    start: Instant,
    started_unix: u64,
}

impl Timer {
    #[expect(
        clippy::disallowed_methods,
        reason = "the server is the shell that reads the clocks"
    )]
    pub(crate) fn start() -> Self {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            start: Instant::now(),
            started_unix: wall.map_or(0, |since| since.as_secs()),
        }
    }

    /// Time since the start. Read once a pass.
    #[expect(
        clippy::disallowed_methods,
        reason = "the server is the shell that reads the clocks"
    )]
    pub(crate) fn now(&self) -> Duration {
        Instant::now() - self.start
    }

    /// `now` as the store counts it.
    pub(crate) fn clock(&self, now: Duration) -> Clock {
        let elapsed = u32::try_from(now.as_secs()).unwrap_or(u32::MAX);
        Clock {
            epoch_unix: self.started_unix.saturating_sub(u64::from(FIRST_SECOND)),
            second: Second(elapsed.saturating_add(FIRST_SECOND)),
        }
    }
}

/// Seconds since the start, of a clock made by [`Timer::clock`].
pub(crate) fn uptime(clock: Clock) -> u32 {
    clock.second.0 - FIRST_SECOND
}
