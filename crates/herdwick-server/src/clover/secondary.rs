//! Who may use a secondary store: one client at a time may write it, the primary, which proves that it knows a
//! secret; those may read it that show the id of its present content, which they have of that primary.
//!
//! What is stored is the primary's copy, and of use only as long as it keeps it up to date. So when its session
//! ends, all others do, the memory is emptied, and another primary begins with another id: no client reads what is
//! out of date, or what another primary stored.

use herdwick_clover::{Right, Secret};
use herdwick_herd::hello::{Claim, StoreId};

use crate::herd::lease::LeaseId;

/// The state of a secondary store.
#[derive(Debug)]
pub(super) struct Secondary {
    secret: Secret,
    state: SecondaryState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SecondaryState {
    /// Nothing was stored. No client reads.
    Empty,
    /// A primary was admitted, and is not connected: nothing is stored. No client reads.
    Claimed(LeaseId, StoreId),
    /// The primary has this lease, and clients read by that id.
    Written(LeaseId, StoreId),
    /// The primary's session has ended, or is to end, all others with it, and the memory is to be emptied.
    Abandoned,
}

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The client is admitted.
    Admit(Right),
    /// Not now: all sessions have to end first, and the memory is not empty yet.
    Later,
    /// The claim shows neither the secret nor the id.
    Refuse,
}

impl Secondary {
    pub(super) fn new(secret: Secret) -> Self {
        Self {
            secret,
            state: SecondaryState::Empty,
        }
    }

    /// Decides on a claim.
    pub(super) fn admit(&mut self, id: LeaseId, claim: &Claim) -> Admission {
        let Claim {
            token,
            window,
            reply_bytes_max,
            ..
        } = claim;
        let shown = [*window, *reply_bytes_max];
        let writes = self.secret.is_proved(&token.0, shown);
        match (writes, self.state) {
            (false, SecondaryState::Written(_, store)) if store.is_shown(shown) => {
                Admission::Admit(Right::Read)
            }
            (false, _) => Admission::Refuse,
            (true, SecondaryState::Empty) => {
                let store = StoreId(self.secret.store_id(&token.0));
                self.state = SecondaryState::Claimed(id, store);
                Admission::Admit(Right::Write)
            }
            (true, _) => {
                // Another primary has come: the one before, if it still lives, has lost its store.
                self.state = SecondaryState::Abandoned;
                Admission::Later
            }
        }
    }

    /// Notes that a client is being connected: if it is the primary, it may write from now on.
    pub(super) fn connecting(&mut self, id: LeaseId) {
        if let SecondaryState::Claimed(writer, store) = self.state
            && writer == id
        {
            self.state = SecondaryState::Written(writer, store);
        }
    }

    /// Notes that a session has ended. Returns whether all others have to end. A primary that was never connected
    /// has stored nothing.
    pub(super) fn ended(&mut self, id: LeaseId) -> bool {
        match self.state {
            SecondaryState::Claimed(writer, _) if writer == id => {
                self.state = SecondaryState::Empty;
                false
            }
            SecondaryState::Written(writer, _) if writer == id => {
                self.state = SecondaryState::Abandoned;
                true
            }
            _ => false,
        }
    }

    /// Returns whether the memory is to be emptied, once no session is left.
    pub(super) fn is_abandoned(&self) -> bool {
        self.state == SecondaryState::Abandoned
    }

    /// Notes that the memory is empty, and no session is left.
    pub(super) fn emptied(&mut self) {
        self.state = SecondaryState::Empty;
    }
}

#[cfg(test)]
mod tests {
    use herdwick_herd::hello::Token;

    use super::*;

    const SECRET: Secret = Secret([7; 16]);

    fn claim(token: u8, [window, reply_bytes_max]: [u32; 2]) -> Claim {
        let token = Token([token; 16]);
        Claim {
            token,
            window,
            reply_bytes_max,
            reads: false,
        }
    }

    /// The claim of a primary, in answer to this token.
    fn primary(token: u8) -> Claim {
        claim(token, SECRET.proof(&[token; 16]))
    }

    /// The claim of a reader of the store that began with this token.
    fn reader(store: u8) -> Claim {
        claim(99, StoreId(SECRET.store_id(&[store; 16])).numbers())
    }

    #[test]
    fn one_primary_writes_and_what_it_leaves_is_not_read() {
        let mut secondary = Secondary::new(SECRET);
        let other = Secret([8; 16]).proof(&[3; 16]);
        // No client reads before the primary has come, and a wrong secret is no way to come first.
        for early in [claim(3, [32, 4096]), claim(3, other), reader(3)] {
            let turn = secondary.admit(LeaseId(1), &early);
            assert_eq!(turn, Admission::Refuse);
        }
        let turn = secondary.admit(LeaseId(2), &primary(3));
        assert_eq!(turn, Admission::Admit(Right::Write));
        // It writes when it is connected.
        let turn = secondary.admit(LeaseId(9), &reader(3));
        assert_eq!(turn, Admission::Refuse);
        secondary.connecting(LeaseId(9));
        secondary.connecting(LeaseId(2));
        let turn = secondary.admit(LeaseId(9), &reader(3));
        assert_eq!(turn, Admission::Admit(Right::Read));
        for wrong in [claim(3, [32, 4096]), claim(4, other), reader(5)] {
            let turn = secondary.admit(LeaseId(1), &wrong);
            assert_eq!(turn, Admission::Refuse);
        }
        assert!(!secondary.ended(LeaseId(1)));
        // Another primary, or the same one after it has lost its connection.
        let turn = secondary.admit(LeaseId(3), &primary(5));
        assert_eq!(turn, Admission::Later);
        let turn = secondary.admit(LeaseId(4), &reader(3));
        assert_eq!(turn, Admission::Refuse);
        assert!(secondary.is_abandoned() && !secondary.ended(LeaseId(2)));
        // A primary waits until the memory is empty, however few sessions are left.
        let turn = secondary.admit(LeaseId(5), &primary(6));
        assert_eq!(turn, Admission::Later);
        secondary.emptied();
        assert!(!secondary.is_abandoned());
        let turn = secondary.admit(LeaseId(5), &primary(6));
        assert_eq!(turn, Admission::Admit(Right::Write));
        secondary.connecting(LeaseId(5));
        // Readers of what was there before are refused.
        let turn = secondary.admit(LeaseId(6), &reader(3));
        assert_eq!(turn, Admission::Refuse);
        assert!(secondary.ended(LeaseId(5)));
        let turn = secondary.admit(LeaseId(6), &reader(6));
        assert_eq!(turn, Admission::Refuse);
        secondary.emptied();
        let turn = secondary.admit(LeaseId(7), &primary(7));
        assert_eq!(turn, Admission::Admit(Right::Write));
        secondary.connecting(LeaseId(7));
        let turn = secondary.admit(LeaseId(8), &reader(7));
        assert_eq!(turn, Admission::Admit(Right::Read));
        // A reader without room ends nothing.
        assert!(!secondary.ended(LeaseId(8)) && !secondary.is_abandoned());
        assert!(secondary.ended(LeaseId(7)));
        secondary.emptied();
        // A primary without room, or that was never connected, has stored nothing.
        for (id, token) in [(10, 8), (11, 9)] {
            let turn = secondary.admit(LeaseId(id), &primary(token));
            assert_eq!(turn, Admission::Admit(Right::Write));
            assert!(!secondary.ended(LeaseId(id)) && !secondary.is_abandoned());
        }
        // Two at a time: neither is known to be the one.
        let turn = secondary.admit(LeaseId(12), &primary(10));
        assert_eq!(turn, Admission::Admit(Right::Write));
        let turn = secondary.admit(LeaseId(13), &primary(11));
        assert_eq!(turn, Admission::Later);
        secondary.connecting(LeaseId(12));
        assert!(secondary.is_abandoned());
    }
}
