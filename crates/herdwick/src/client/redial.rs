//! Reconnection: pauses after failed dials, and periodic attempts at a better transport. A server
//! that has gone or just restarted is not flooded with connections.

use std::time::Duration;

use crate::{Address, DialError, Error, Options, Session};

/// Pause after the first failed dial; it doubles with each further one up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// Longest pause: how long a restarted server may wait for its clients.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Time that a session uses the second best transport before the best is tried again; the pause
/// doubles with each failed attempt, up to [`CHECK_MAX`].
const CHECK_FIRST: Duration = Duration::from_secs(1);
/// Longest pause between such attempts.
const CHECK_MAX: Duration = Duration::from_secs(60);
/// Longest time that an attempt may delay the call that makes it.
const CHECK_BUDGET: Duration = Duration::from_millis(200);

/// Dials, and keeps clients from flooding a server that has gone or just restarted: after a failure
/// no call dials for a pause, half of which is random, and calls fail at once meanwhile.
#[derive(Debug)]
pub(crate) struct Redial {
    address: Address,
    failure: Option<Failure>,
    failed_dials: u64,
    /// Set while the session uses the second best transport.
    check: Option<Check>,
    chance: u64,
}

/// The next attempt at a better transport.
#[derive(Debug)]
struct Check {
    pause: Duration,
    at: Duration,
}

#[derive(Debug)]
struct Failure {
    reason: DialError,
    pause: Duration,
    until: Duration,
}

impl Redial {
    /// `seed` makes this client's pauses differ from those of others.
    pub(crate) fn new(address: Address, seed: u64) -> Self {
        Self {
            address,
            failure: None,
            failed_dials: 0,
            check: None,
            // xorshift never leaves 0.
            chance: seed | 1,
        }
    }

    /// Returns a session over a better transport than that of `held`, if an attempt is due and
    /// `dial` opens one. The attempt gets at most half of the deadline in `options`.
    pub(super) fn better(
        &mut self,
        now: Duration,
        held: &Session,
        options: &Options,
        dial: impl FnOnce(&Address, &Options) -> Result<Session, DialError>,
    ) -> Option<Session> {
        if !held.is_second_best() {
            self.check = None;
            return None;
        }
        let check = self.check.get_or_insert(Check {
            pause: CHECK_FIRST,
            at: now + CHECK_FIRST,
        });
        if now < check.at {
            return None;
        }
        check.pause = (check.pause * 2).min(CHECK_MAX);
        check.at = now + check.pause;
        let options = Options {
            deadline: (options.deadline / 2).min(CHECK_BUDGET),
            ..options.clone()
        };
        // A failure is ignored: the session that is there goes on.
        let dialled = dial(&self.address, &options).ok();
        dialled.filter(|session| session.beats(held))
    }

    /// Dials, unless a pause has not ended yet.
    pub(crate) fn attempt<T>(
        &mut self,
        now: Duration,
        dial: impl FnOnce(&Address) -> Result<T, DialError>,
    ) -> Result<T, Error> {
        let reason = match &self.failure {
            Some(failure) if now < failure.until => failure.reason.clone(),
            _ => match dial(&self.address) {
                Ok(dialled) => {
                    self.failure = None;
                    return Ok(dialled);
                }
                Err(reason) => self.note(now, reason),
            },
        };
        Err(Error::Unreachable {
            address: self.address.to_string(),
            reason,
        })
    }

    /// Returns how long it will not dial.
    pub(crate) fn pause(&self, now: Duration) -> Duration {
        let until = self.failure.as_ref().map(|failure| failure.until);
        until.unwrap_or_default().saturating_sub(now)
    }

    /// Ends the pause before the next dial, if there is one.
    pub(super) fn end_pause(&mut self) {
        self.failure = None;
    }

    /// Returns how many dials have failed.
    pub(super) fn failed_dials(&self) -> u64 {
        self.failed_dials
    }

    fn note(&mut self, now: Duration, reason: DialError) -> DialError {
        self.failed_dials += 1;
        let before = self.failure.as_ref().map(|failure| failure.pause);
        let pause = before.map_or(PAUSE_FIRST, |pause| (pause * 2).min(PAUSE_MAX));
        let until = now + pause / 2 + (pause / 2).mul_f64(self.draw());
        self.failure = Some(Failure {
            reason: reason.clone(),
            pause,
            until,
        });
        reason
    }

    /// Returns a random number from 0 to 1, by xorshift64.
    fn draw(&mut self) -> f64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance as f64 / u64::MAX as f64
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn refused() -> DialError {
        io::Error::from_raw_os_error(libc::ECONNREFUSED).into()
    }

    /// Returns the dial times in a minute of calls every millisecond, while the server is away.
    fn dials(seed: u64) -> Vec<u64> {
        let mut redial = Redial::new(Address::Tcp("h:1".into()), seed);
        let mut times = Vec::new();
        for at in 0..60_000 {
            let refuse = |_: &Address| {
                times.push(at);
                Err::<(), _>(refused())
            };
            let error = redial
                .attempt(Duration::from_millis(at), refuse)
                .unwrap_err();
            let Error::Unreachable { reason, .. } = error else {
                panic!("{error}")
            };
            assert_eq!(reason, refused());
        }
        times
    }

    #[test]
    fn redial_backs_off_from_an_unreachable_server() {
        let times = dials(7);
        assert!(
            (60..130).contains(&times.len()),
            "{} dials in a minute",
            times.len()
        );
        assert!(times[1] <= 11, "the first pause is short, not {}", times[1]);
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(
            gaps.max() <= Some(1001),
            "no interval is longer than a second"
        );
        assert_ne!(times, dials(8), "two clients do not connect in step");
    }

    #[test]
    fn success_resets_the_redial_backoff() {
        let mut redial = Redial::new(Address::Tcp("h:1".into()), 7);
        for at in 0..10 {
            let _ = redial.attempt(Duration::from_secs(at), |_| Err::<(), _>(refused()));
        }
        assert!(redial.attempt(Duration::from_secs(20), |_| Ok(())).is_ok());
        let now = Duration::from_secs(21);
        assert!(redial.attempt(now, |_| Err::<(), _>(refused())).is_err());
        assert!(redial.attempt(now + PAUSE_FIRST, |_| Ok(())).is_ok());
    }
}
