//! What becomes of calls to a server that fails: the policy, and which servers are away.

use std::time::Duration;

use crate::Error;

/// What a call does whose server cannot be reached, does not answer in time or closes the connection.
///
/// Whatever the policy, a mutation that was sent and not answered ends as [`Error::UnknownOutcome`], and
/// is never repeated, neither there nor elsewhere.
///
/// Under [`OnFailure::Failover`] and [`OnFailure::Eject`] keys have another server for a while. One that
/// was cut off and comes back with its items still has the values of before: what was stored or
/// deleted elsewhere meanwhile is stale there, until it is stored again or expires. Use them where items
/// have a time to live, or where a server that comes back is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It fails with the server's error, and other keys' calls are not concerned.
    #[default]
    Fail,
    /// It dials again until its deadline: for servers that restart.
    Retry,
    /// It goes to the next server of the ring, for this call alone: to each until one answers. An
    /// attempt takes at most half of the time that is left, so that one remains for the next.
    Failover,
    /// It fails; after `failures` in a row the server leaves the ring, and its keys go to the others,
    /// for `away`. A call in the pause between two dials has not tried the server, and is not counted.
    /// Then it is back, and leaves again at the first failure. The last server never leaves.
    /// (twemproxy: `auto_eject_hosts`, `server_failure_limit`, `server_retry_timeout`.)
    Eject {
        /// Failures in a row until it leaves; 0 is 1.
        failures: u32,
        /// How long it is away.
        away: Duration,
    },
}

/// The failures of one server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Health {
    failures: u32,
    /// Failed dials that are counted in `failures`, or ended by a success.
    dials: u64,
    away_until: Option<Duration>,
}

impl Health {
    /// Whether it takes part in the ring.
    pub(super) fn takes_part(&self) -> bool {
        self.away_until.is_none()
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Whether the call that ended in `error` has tried the server, whose client has `dials` failed
    /// dials: in the pause after one it does not.
    pub(super) fn was_tried(&mut self, error: &Error, dials: u64) -> bool {
        let has_dialled = std::mem::replace(&mut self.dials, dials) != dials;
        has_dialled || !matches!(error, Error::Unreachable { .. })
    }

    /// Notes a failed call at `now`. Returns whether the server has to leave.
    pub(super) fn failed(&mut self, policy: OnFailure) -> bool {
        self.failures = self.failures.saturating_add(1);
        matches!(policy, OnFailure::Eject { failures, .. } if self.failures >= failures)
    }

    pub(super) fn leave(&mut self, now: Duration, policy: OnFailure) {
        if let OnFailure::Eject { away, .. } = policy {
            self.away_until = Some(now.saturating_add(away));
        }
    }

    /// Ends the time away.
    pub(super) fn rejoin(&mut self) {
        self.away_until = None;
    }

    /// Returns whether the server is back by `now`, after a time away.
    pub(super) fn returns(&mut self, now: Duration) -> bool {
        let is_back = self.away_until.is_some_and(|until| until <= now);
        if is_back {
            self.away_until = None;
        }
        is_back
    }
}

/// Whether the server or the way to it is to blame, and not the request.
pub(super) fn is_failure(error: &Error) -> bool {
    is_unsent(error) || matches!(error, Error::UnknownOutcome(_))
}

/// Whether the server or the way to it is to blame, and nothing was changed.
pub(super) fn is_unsent(error: &Error) -> bool {
    matches!(
        error,
        Error::Unreachable { .. } | Error::Timeout(_) | Error::Disconnected(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWAY: Duration = Duration::from_secs(30);

    #[test]
    fn server_leaves_after_failures_in_a_row_and_returns_on_probation() {
        let policy = OnFailure::Eject {
            failures: 3,
            away: AWAY,
        };
        let mut health = Health::default();
        for _ in 0..5 {
            assert!(!health.failed(policy) && !health.failed(policy));
            health.succeeded();
        }
        let begin = Duration::from_secs(9);
        assert!(!health.failed(policy) && !health.failed(policy) && health.failed(policy));
        health.leave(begin, policy);
        assert!(!health.takes_part());
        assert!(!health.returns(begin + AWAY - Duration::from_nanos(1)));
        assert!(health.returns(begin + AWAY) && health.takes_part());
        assert!(!health.returns(begin + AWAY), "it is back already");
        assert!(health.failed(policy), "the first failure is enough now");
        health.leave(begin + AWAY, policy);
        assert!(health.returns(begin + 2 * AWAY));
        health.succeeded();
        assert!(!health.failed(policy) && !health.failed(policy));
    }

    #[test]
    fn server_never_leaves_under_other_policies() {
        for policy in [OnFailure::Fail, OnFailure::Retry, OnFailure::Failover] {
            let mut health = Health::default();
            assert!((0..1000).all(|_| !health.failed(policy)), "{policy:?}");
        }
    }
}
