//! Deadlines of blocking steps: dialling, and claiming a lease.

use std::{
    io,
    time::{Duration, Instant},
};

use rustix::event::Timespec;

/// The longest single wait: below the limits of every system call. A longer wait is split.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// A deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due(Option<Instant>);

impl Due {
    /// Returns the deadline `span` from now; none if the clock cannot represent it.
    pub(crate) fn after(span: Duration) -> Self {
        Self(clock().checked_add(span))
    }

    /// Returns the time left, which is never zero: a timeout of zero means no timeout to a socket.
    ///
    /// # Errors
    /// `TimedOut` if no time is left.
    pub(crate) fn left(self) -> io::Result<Duration> {
        let left = self
            .0
            .map_or(WAIT_MAX, |at| at.saturating_duration_since(clock()));
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(left.min(WAIT_MAX))
    }

    /// As [`Due::left`], for `poll`.
    pub(crate) fn timespec(self) -> io::Result<Timespec> {
        let left = self.left()?;
        Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    /// Returns the earlier of this deadline and `span` from now.
    pub(crate) fn within(self, span: Duration) -> Self {
        match (self, Self::after(span)) {
            (Self(None), other) | (other, Self(None)) => other,
            (Self(Some(one)), Self(Some(other))) => Self(Some(one.min(other))),
        }
    }

    /// Returns a deadline after a quarter of the time left, but not before `least` nor after `most`
    /// from now: for a step that may get no answer, and without which the rest goes on. A caller
    /// with a longer deadline gives it more.
    pub(crate) fn quarter(self, least: Duration, most: Duration) -> Self {
        let quarter = self
            .0
            .map_or(most, |at| at.saturating_duration_since(clock()) / 4);
        self.within(quarter.clamp(least, most))
    }

    /// Returns a deadline after half of the time left: for an attempt that leaves the other half to
    /// the next one.
    pub(crate) fn half(self) -> Self {
        Self(self.0.map(|at| {
            let now = clock();
            // One that is over stays so: half of nothing is left.
            now + at.saturating_duration_since(now) / 2
        }))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "dialling blocks, and must end in time"
)]
pub(crate) fn clock() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_beyond_the_clock_never_expires() {
        let never = Due::after(Duration::MAX);
        assert_eq!(never.left().unwrap(), WAIT_MAX);
        assert_eq!(never.half().left().unwrap(), WAIT_MAX);
        assert!(never.timespec().is_ok());
        let soon = never.within(Duration::from_secs(100));
        assert!(soon.left().unwrap() <= Duration::from_secs(100));
        let sooner = soon.half().within(Duration::MAX).left().unwrap();
        assert!(sooner <= Duration::from_secs(50));
    }

    #[test]
    fn quarter_of_a_deadline_is_bounded_on_both_sides() {
        // So long that no delay between two reads of the clock matters.
        let age = Duration::from_secs(100_000);
        let quarter = |span| Due::after(span).quarter(age, 10 * age).left().unwrap();
        let about = |left: Duration, ages| left <= ages * age && left > ages * age - age / 2;
        assert!(about(quarter(3 * age), 1));
        assert!(about(quarter(20 * age), 5));
        assert!(about(quarter(3600 * age), 10));
        assert!(about(quarter(Duration::MAX), 10));
        assert!(quarter(age / 2) <= age / 2, "never later than the whole");
    }

    #[test]
    fn expired_deadline_has_no_time_left() {
        let late = Due::after(Duration::ZERO);
        assert_eq!(late.left().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(late.half().left().is_err());
    }
}
