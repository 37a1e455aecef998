//! Tokens told in hellos, each good for one claim.

use std::{collections::VecDeque, sync::Mutex, time::Duration};

use herdwick_herd::hello::{HANDSHAKE_DEADLINE, Token};

use super::Kind;

/// Most tokens outstanding; the oldest gives way. At one hello a millisecond an honest client still
/// has a second to claim its own.
const OUTSTANDING_MAX: usize = 1024;

/// The outstanding tokens.
#[derive(Debug, Default)]
pub(crate) struct Tokens(Mutex<VecDeque<Issued>>);

#[derive(Debug)]
struct Issued {
    token: Token,
    kind: Kind,
    expires: Duration,
}

impl Tokens {
    /// A fresh token for a lease of `kind`, or `None` when the OS has no randomness to give.
    pub(crate) fn issue(&self, kind: Kind, now: Duration) -> Option<Token> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        let token = Token(bytes);
        let mut outstanding = self.lock();
        if outstanding.len() == OUTSTANDING_MAX {
            outstanding.pop_front();
        }
        outstanding.push_back(Issued {
            token,
            kind,
            expires: now + HANDSHAKE_DEADLINE,
        });
        Some(token)
    }

    /// What `token` is for, if it is outstanding; it no longer is afterwards.
    pub(crate) fn redeem(&self, token: Token, now: Duration) -> Option<Kind> {
        let mut outstanding = self.lock();
        outstanding.retain(|issued| issued.expires > now);
        let found = outstanding
            .iter()
            .position(|issued| issued.token == token)?;
        outstanding.remove(found).map(|issued| issued.kind)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Issued>> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind {
        fabric: crate::lease::FabricId(1),
        path: herdwick_herd::RequestPath::UdSend,
    };
    const T0: Duration = Duration::from_secs(1);

    #[test]
    fn a_token_opens_once_and_not_for_ever() {
        let tokens = Tokens::default();
        let token = tokens.issue(KIND, T0).unwrap();
        assert_eq!(tokens.redeem(Token([0; 16]), T0), None);
        assert_eq!(tokens.redeem(token, T0), Some(KIND));
        assert_eq!(tokens.redeem(token, T0), None, "replayed");
        let token = tokens.issue(KIND, T0).unwrap();
        assert_eq!(
            tokens.redeem(token, T0 + HANDSHAKE_DEADLINE),
            None,
            "expired"
        );
    }

    #[test]
    fn hellos_without_end_hold_a_bounded_number() {
        let tokens = Tokens::default();
        let first = tokens.issue(KIND, T0).unwrap();
        for _ in 0..OUTSTANDING_MAX {
            tokens.issue(KIND, T0).unwrap();
        }
        assert_eq!(tokens.lock().len(), OUTSTANDING_MAX);
        assert_eq!(tokens.redeem(first, T0), None);
    }
}
