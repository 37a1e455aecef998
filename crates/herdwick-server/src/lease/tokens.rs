//! Tokens told in hellos, each good for one claim.

use std::{collections::VecDeque, sync::Mutex, time::Duration};

use herdwick_herd::hello::{HANDSHAKE_DEADLINE, Token};

/// Most tokens outstanding; the oldest gives way. At one hello a millisecond an honest client still
/// has a second to claim its own.
const OUTSTANDING_MAX: usize = 1024;

/// The outstanding tokens.
#[derive(Debug, Default)]
pub(crate) struct Tokens(Mutex<VecDeque<(Token, Duration)>>);

impl Tokens {
    /// A fresh token, or `None` when the OS has no randomness to give.
    pub(crate) fn issue(&self, now: Duration) -> Option<Token> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        let token = Token(bytes);
        let mut outstanding = self.lock();
        if outstanding.len() == OUTSTANDING_MAX {
            outstanding.pop_front();
        }
        outstanding.push_back((token, now + HANDSHAKE_DEADLINE));
        Some(token)
    }

    /// Whether `token` is outstanding; it no longer is afterwards.
    pub(crate) fn redeem(&self, token: Token, now: Duration) -> bool {
        let mut outstanding = self.lock();
        outstanding.retain(|(_, expires)| *expires > now);
        let found = outstanding.iter().position(|(held, _)| *held == token);
        found.is_some_and(|at| outstanding.remove(at).is_some())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(Token, Duration)>> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Duration = Duration::from_secs(1);

    #[test]
    fn a_token_opens_once_and_not_for_ever() {
        let tokens = Tokens::default();
        let token = tokens.issue(T0).unwrap();
        assert!(!tokens.redeem(Token([0; 16]), T0));
        assert!(tokens.redeem(token, T0));
        assert!(!tokens.redeem(token, T0), "replayed");
        let token = tokens.issue(T0).unwrap();
        assert!(!tokens.redeem(token, T0 + HANDSHAKE_DEADLINE), "expired");
    }

    #[test]
    fn hellos_without_end_hold_a_bounded_number() {
        let tokens = Tokens::default();
        let first = tokens.issue(T0).unwrap();
        for _ in 0..OUTSTANDING_MAX {
            tokens.issue(T0).unwrap();
        }
        assert_eq!(tokens.lock().len(), OUTSTANDING_MAX);
        assert!(!tokens.redeem(first, T0));
    }
}
