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
    /// Seconds that [`Timer::warp`] has added.
    skipped: i64,
    /// Where it has stopped the clock.
    paused: Option<Duration>,
}

/// A change to a clock, for tests (memcached's `debugtime`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warp {
    Pause,
    Resume,
    /// So many seconds on, or back.
    By(i64),
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
            skipped: 0,
            paused: None,
        }
    }

    /// Unix time of the start.
    pub(crate) fn started_unix(&self) -> u64 {
        self.started_unix
    }

    /// Time since the start. Read once a pass.
    #[expect(
        clippy::disallowed_methods,
        reason = "the server is the shell that reads the clocks"
    )]
    pub(crate) fn now(&self) -> Duration {
        Instant::now() - self.start
    }

    /// Changes what [`Timer::clock`] says from `now` on.
    pub(crate) fn warp(&mut self, warp: Warp, now: Duration) {
        match warp {
            Warp::Pause => self.paused = self.paused.or(Some(now)),
            Warp::Resume => self.paused = None,
            Warp::By(seconds) => self.skipped = self.skipped.saturating_add(seconds),
        }
    }

    /// `now` as the store counts it.
    pub(crate) fn clock(&self, now: Duration) -> Clock {
        let elapsed = self.paused.unwrap_or(now).as_secs();
        let elapsed = elapsed.saturating_add_signed(self.skipped);
        let elapsed = u32::try_from(elapsed).unwrap_or(u32::MAX);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warped_clock_stands_and_skips() {
        let mut timer = Timer::start();
        let second = |timer: &Timer, now| timer.clock(Duration::from_secs(now)).second.0;
        let at = second(&timer, 10);
        timer.warp(Warp::Pause, Duration::from_secs(10));
        assert_eq!(second(&timer, 20), at);
        timer.warp(Warp::By(5), Duration::from_secs(20));
        assert_eq!(second(&timer, 20), at + 5);
        timer.warp(Warp::Resume, Duration::from_secs(20));
        assert_eq!(second(&timer, 20), at + 15);
        timer.warp(Warp::By(i64::MIN), Duration::from_secs(20));
        assert_eq!(second(&timer, 20), FIRST_SECOND);
    }
}
