//! Who may write a secondary store: one client at a time, the primary, which proves that it knows a secret.
//!
//! What is stored is the primary's copy, and of use only as long as it keeps it up to date. So when its session
//! ends, all others do, and another primary begins with empty memory: no client reads what is out of
//! date.

use herdwick_clover::{Right, Secret};
use herdwick_herd::hello::Claim;

use crate::herd::lease::LeaseId;

/// The state of a secondary store.
#[derive(Debug)]
pub(super) struct Secondary {
    secret: Secret,
    state: SecondaryState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SecondaryState {
    /// Nothing was stored.
    Empty,
    /// The primary has this lease.
    Written(LeaseId),
    /// The primary's session has ended, or is to end: all others with it.
    Abandoned,
}

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The client is admitted.
    Admit(Right),
    /// Not now: all sessions have to end first.
    Later,
    /// The client is admitted to write, once the memory is empty.
    Begin,
}

impl Secondary {
    pub(super) fn new(secret: Secret) -> Self {
        Self {
            secret,
            state: SecondaryState::Empty,
        }
    }

    /// Decides on a claim. `is_alone`: no other session is left.
    pub(super) fn admit(&mut self, id: LeaseId, claim: &Claim, is_alone: bool) -> Admission {
        let Claim {
            token,
            window,
            reply_bytes_max,
            ..
        } = claim;
        let writes = self.secret.is_proved(&token.0, [*window, *reply_bytes_max]);
        match (writes, self.state) {
            (false, SecondaryState::Abandoned) => Admission::Later,
            (false, _) => Admission::Admit(Right::Read),
            (true, SecondaryState::Empty) => {
                self.state = SecondaryState::Written(id);
                Admission::Admit(Right::Write)
            }
            (true, SecondaryState::Abandoned) if is_alone => {
                self.state = SecondaryState::Written(id);
                Admission::Begin
            }
            (true, SecondaryState::Abandoned | SecondaryState::Written(_)) => {
                self.state = SecondaryState::Abandoned;
                Admission::Later
            }
        }
    }

    /// Notes that a session has ended. Returns whether all others have to end.
    pub(super) fn ended(&mut self, id: LeaseId) -> bool {
        let is_primary = self.state == SecondaryState::Written(id);
        if is_primary {
            self.state = SecondaryState::Abandoned;
        }
        is_primary
    }
}

#[cfg(test)]
mod tests {
    use herdwick_herd::hello::Token;

    use super::*;

    const SECRET: Secret = Secret([7; 16]);

    fn claim(secret: Option<Secret>) -> Claim {
        let token = Token([3; 16]);
        let [window, reply_bytes_max] = secret.map_or([32, 4096], |it| it.proof(&token.0));
        Claim {
            token,
            window,
            reply_bytes_max,
            reads: false,
        }
    }

    #[test]
    fn one_primary_writes_and_what_it_leaves_is_not_read() {
        let mut secondary = Secondary::new(SECRET);
        let (primary, other) = (claim(Some(SECRET)), claim(Some(Secret([8; 16]))));
        for reader in [claim(None), other] {
            let turn = secondary.admit(LeaseId(1), &reader, true);
            assert_eq!(turn, Admission::Admit(Right::Read));
        }
        let turn = secondary.admit(LeaseId(2), &primary, false);
        assert_eq!(turn, Admission::Admit(Right::Write));
        assert!(!secondary.ended(LeaseId(1)));
        // Another primary, or the same one after it has lost its connection.
        assert_eq!(
            secondary.admit(LeaseId(3), &primary, false),
            Admission::Later
        );
        assert_eq!(
            secondary.admit(LeaseId(4), &claim(None), false),
            Admission::Later
        );
        assert!(!secondary.ended(LeaseId(2)));
        assert_eq!(
            secondary.admit(LeaseId(5), &primary, true),
            Admission::Begin
        );
        assert!(secondary.ended(LeaseId(5)));
        assert_eq!(
            secondary.admit(LeaseId(6), &claim(None), true),
            Admission::Later
        );
        assert_eq!(
            secondary.admit(LeaseId(7), &primary, true),
            Admission::Begin
        );
        let turn = secondary.admit(LeaseId(8), &claim(None), false);
        assert_eq!(turn, Admission::Admit(Right::Read));
    }
}
