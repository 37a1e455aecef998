//! The server's clock: monotonic time since the start, and the store's seconds derived from it.

use std::time::{Duration, SystemTime};

use herdwick_request::{Clock, Second};
use rustix::time::{ClockId, clock_gettime};

/// The store's first second. The store uses 0 for "never"; memcached starts at 2 as well, so that
/// "one second ago" exists from the beginning.
const FIRST_SECOND: u32 = 2;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Returns the time since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the server is the shell that reads the clocks"
)]
pub(crate) fn unix_time() -> Duration {
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // A wall clock before 1970 counts as 1970.
    wall.unwrap_or_default()
}

/// Returns the host's monotonic clock.
#[inline]
#[expect(
    clippy::disallowed_methods,
    reason = "the server is the shell that reads the clocks"
)]
pub(crate) fn monotonic() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned());
    // tv_nsec is below 10^9 (clock_gettime(2)).
    Duration::new(seconds, u32::try_from(nanos).unwrap_or(0))
}

/// The server's clock: monotonic since the start, so that a step of the wall clock moves no
/// deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerClock {
    /// The host's monotonic clock at the start.
    start: Duration,
    started_unix: u64,
    /// The part of that second which had passed, so that the store's seconds begin with those of the
    /// wall clock, and an absolute exptime is over as soon as its second has begun.
    started_within: Duration,
    /// The store's second at the start.
    first: Second,
    /// Seconds added by [`ServerClock::warp`].
    skipped: i64,
    /// The time at which [`ServerClock::warp`] stopped the clock.
    paused: Option<Duration>,
}

/// A change of the clock, for tests (memcached's `debugtime`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warp {
    Pause,
    Resume,
    /// Add this many seconds; negative values subtract.
    By(i64),
}

impl ServerClock {
    pub(crate) fn start() -> Self {
        Self::resume(None)
    }

    /// Continues an earlier clock, given the Unix time of its second 0 and the last second it is
    /// known to have reached. Never returns an earlier second than that, whatever the wall clock
    /// shows.
    pub(crate) fn resume(earlier: Option<(u64, Second)>) -> Self {
        let started = unix_time();
        let started_unix = started.as_secs();
        let first = earlier.map_or(Second(FIRST_SECOND), |(epoch_unix, last)| {
            let now = started_unix.saturating_sub(epoch_unix);
            last.max(Second(u32::try_from(now).unwrap_or(u32::MAX)))
        });
        Self {
            start: monotonic(),
            started_unix,
            started_within: Duration::from_nanos(started.subsec_nanos().into()),
            first: first.max(Second(FIRST_SECOND)),
            skipped: 0,
            paused: None,
        }
    }

    /// Returns the Unix time of the start.
    pub(crate) fn started_unix(&self) -> u64 {
        self.started_unix
    }

    /// Returns the time since the start. Read once a pass.
    #[inline]
    pub(crate) fn now(&self) -> Duration {
        // Not by `Instant`, which is the same clock: its reading and its difference are calls, and cost 40
        // instructions more.
        monotonic().saturating_sub(self.start)
    }

    /// Changes what [`ServerClock::clock`] returns from `now` on.
    pub(crate) fn warp(&mut self, warp: Warp, now: Duration) {
        match warp {
            // A second pause does not move the time at which the clock was stopped.
            Warp::Pause => self.paused = self.paused.or(Some(now)),
            Warp::Resume => self.paused = None,
            Warp::By(seconds) => self.skipped = self.skipped.saturating_add(seconds),
        }
    }

    /// Returns the nanoseconds of the host's monotonic clock at which the store's second 0 began, for readers
    /// in other processes; 0 if it began before that clock, or if the store's clock is stopped.
    pub(crate) fn second_zero(&self) -> u64 {
        if self.paused.is_some() {
            return 0;
        }
        // In this order: readers are ahead of the store by the time between, and so find an item expired
        // no later than the store does.
        let host = monotonic();
        let elapsed = self.now() + self.started_within;
        let seconds = i128::from(self.first.0) + i128::from(self.skipped);
        let zero = host.as_nanos().cast_signed()
            - elapsed.as_nanos().cast_signed()
            - seconds * i128::from(NANOS_PER_SECOND);
        u64::try_from(zero).unwrap_or(0)
    }

    /// Converts `now` to the store's clock.
    pub(crate) fn clock(&self, now: Duration) -> Clock {
        let elapsed = self.paused.unwrap_or(now) + self.started_within;
        let elapsed = elapsed.as_secs();
        // `debugtime` may subtract more than has passed: the clock stops at its first second.
        let elapsed = elapsed.saturating_add_signed(self.skipped);
        let elapsed = u32::try_from(elapsed).unwrap_or(u32::MAX);
        Clock {
            epoch_unix: self.started_unix.saturating_sub(u64::from(self.first.0)),
            second: Second(elapsed.saturating_add(self.first.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_begin_with_those_of_the_wall_clock() {
        let timer = ServerClock {
            started_unix: 1_700_000_000,
            started_within: Duration::from_millis(900),
            ..ServerClock::start()
        };
        for (now, unix) in [(0, 0), (99, 0), (100, 1), (1099, 1), (1100, 2)] {
            let clock = timer.clock(Duration::from_millis(now));
            let at = clock.epoch_unix + u64::from(clock.second.0);
            assert_eq!(at, 1_700_000_000 + unix, "{now} ms after the start");
        }
    }

    #[test]
    fn debug_clock_pauses_and_jumps() {
        let mut timer = ServerClock::start();
        let second = |timer: &ServerClock, now| timer.clock(Duration::from_secs(now)).second.0;
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

    #[test]
    fn readers_count_the_same_seconds() {
        let mut timer = ServerClock::start();
        for warp in [Warp::Resume, Warp::By(77), Warp::By(-70)] {
            timer.warp(warp, timer.now());
            let before = timer.clock(timer.now()).second.0;
            let since = monotonic().as_nanos() - u128::from(timer.second_zero());
            let read = u32::try_from(since / u128::from(NANOS_PER_SECOND)).unwrap();
            let after = timer.clock(timer.now()).second.0;
            assert!((before..=after + 1).contains(&read), "{read} of {before}");
        }
        timer.warp(Warp::Pause, timer.now());
        assert_eq!(timer.second_zero(), 0);
        let long_ago = (timer.started_unix() - (1 << 30), Second(7));
        let timer = ServerClock::resume(Some(long_ago));
        assert_eq!(timer.second_zero(), 0, "before the host's clock began");
    }

    #[test]
    fn resumed_clock_never_goes_back() {
        let now = ServerClock::start().started_unix();
        let clock = |earlier| ServerClock::resume(Some(earlier)).clock(Duration::ZERO);
        let later = clock((now - 1000, Second(10)));
        assert!((1000..1010).contains(&later.second.0), "{later:?}");
        assert_eq!(later.epoch_unix, now - 1000);
        let behind = clock((now + 5000, Second(70)));
        assert_eq!(behind.second, Second(70));
        assert!(behind.epoch_unix.abs_diff(now - 70) < 10);
    }
}
