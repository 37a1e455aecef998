//! Tokens, issued in hellos, each valid for one claim.
//!
//! A token contains its purpose and issue time, authenticated by a keyed hash that only this server
//! can compute. So outstanding tokens take no memory, and no flood of hellos can displace another
//! client's token. Only used tokens are remembered. That of a client which knows the server by its registration in etcd
//! is valid until the fence of registrations ends the sessions of such clients.

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use herdwick_herd::{
    RequestPath,
    hello::{HANDSHAKE_DEADLINE, Token},
};
use herdwick_providers::Fabric;
use herdwick_request::HashKey;

use super::LeaseKind;
use crate::settings::member_fence::MemberFence;

/// Largest number of used tokens remembered while they would be valid. Beyond 13,000 claims a
/// second the oldest could be used again by an eavesdropper.
const USED_MAX: usize = 1 << 16;

/// The paths by their two bits in a token. The fourth is padding and never issued.
const PATHS: [RequestPath; 4] = [
    RequestPath::UcWrite,
    RequestPath::RcWrite,
    RequestPath::UdSend,
    RequestPath::UcWrite,
];
/// Bits of the purpose: the path, then the fabric, then whether the client knows the server by its registration.
const KIND_BITS: u32 = 5;
/// The last of them.
const MEMBER: u64 = 1 << 4;
/// Two bits name the fabric.
const _: () = assert!(Fabric::ALL.len() <= 4);
/// Bits of the number that distinguishes tokens of one millisecond.
const NUMBER_BITS: u32 = 23;
/// Bits of the millisecond of issue.
const MILLIS_BITS: u32 = u64::BITS - KIND_BITS - NUMBER_BITS;

/// Issues and redeems tokens.
#[derive(Debug)]
pub(crate) struct LeaseTokens {
    key: HashKey,
    pub(super) fence: Arc<MemberFence>,
    told: AtomicU64,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    words: HashSet<u64>,
    /// The same, each with the time until which it is kept, in the order of use.
    order: VecDeque<(u64, Duration)>,
}

impl LeaseTokens {
    /// `key` must be random and secret.
    pub(crate) fn new(key: HashKey, fence: Arc<MemberFence>) -> Self {
        Self {
            key,
            fence,
            told: AtomicU64::new(0),
            used: Mutex::default(),
        }
    }

    /// Issues a token for a lease of `kind`.
    pub(crate) fn issue(&self, kind: LeaseKind, now: Duration) -> Token {
        // Only distinct numbers are needed.
        let number = self.told.fetch_add(1, Ordering::Relaxed) % (1 << NUMBER_BITS);
        let path = PATHS.iter().position(|path| *path == kind.path);
        let member = kind.member.map_or(0, |_| MEMBER);
        let bits = path.unwrap_or(0) as u64 | (kind.fabric.rank() as u64) << 2 | member;
        // 36 bits of milliseconds wrap after two years.
        let told = millis(now) << (KIND_BITS + NUMBER_BITS);
        self.token(told | number << KIND_BITS | bits, kind.member)
    }

    /// Returns the purpose of `token` and marks it used, if it was issued here, has not expired,
    /// and was not used before.
    pub(crate) fn redeem(&self, token: Token, now: Duration) -> Option<LeaseKind> {
        let word = word(&token.0[..8]);
        let (told, good) = (
            word >> (KIND_BITS + NUMBER_BITS),
            millis(HANDSHAKE_DEADLINE),
        );
        // The redeeming thread may have read the clock before the issuing one did, so a token from
        // the near future is valid too.
        let passed = (millis(now) + good).wrapping_sub(told) % (1 << MILLIS_BITS);
        let member = (word & MEMBER != 0).then(|| self.fence.orders());
        // The keyed hash is compared first: nothing of a forged word is believed.
        if self.token(word, member) != token || passed >= 2 * good {
            return None;
        }
        let expires = Duration::from_millis(millis(now) + 2 * good - passed);
        let used = self.used.lock();
        let mut used = used.unwrap_or_else(std::sync::PoisonError::into_inner);
        // Before the insertion, so that the set stays within its bound.
        used.forget(now);
        if !used.words.insert(word) {
            return None;
        }
        // Tokens are not used in the order of issue; keeping this one at least as long as its
        // predecessor keeps the queue sorted.
        let kept = used
            .order
            .back()
            .map_or(expires, |(_, last)| expires.max(*last));
        used.order.push_back((word, kept));
        Some(LeaseKind {
            fabric: *Fabric::ALL.get((word >> 2) as usize % 4)?,
            path: PATHS[word as usize % 4],
            member,
        })
    }

    fn token(&self, word: u64, member: Option<u64>) -> Token {
        let mut hashed = [0; 16];
        hashed[..8].copy_from_slice(&word.to_le_bytes());
        hashed[8..].copy_from_slice(&member.unwrap_or(0).to_le_bytes());
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&hashed[..8]);
        bytes[8..].copy_from_slice(&self.key.hash(&hashed).0.to_le_bytes());
        Token(bytes)
    }
}

impl Used {
    /// Removes expired tokens, and the oldest while there are too many.
    fn forget(&mut self, now: Duration) {
        while let Some((word, expires)) = self.order.front()
            && (*expires <= now || self.order.len() >= USED_MAX)
        {
            self.words.remove(word);
            self.order.pop_front();
        }
    }
}

fn millis(of: Duration) -> u64 {
    of.as_millis() as u64
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Duration = Duration::from_secs(1);

    fn tokens() -> LeaseTokens {
        LeaseTokens::new(HashKey([1, 2]), Arc::default())
    }

    fn kinds() -> impl Iterator<Item = LeaseKind> {
        let fabrics = Fabric::ALL.into_iter();
        fabrics.flat_map(|fabric| {
            let paths = PATHS[..3].iter();
            paths.flat_map(move |path| {
                [None, Some(0)].map(|member| LeaseKind {
                    fabric,
                    path: *path,
                    member,
                })
            })
        })
    }

    #[test]
    fn token_of_a_client_that_knows_another_registration_is_refused() {
        let tokens = tokens();
        let kind = kinds().next().unwrap();
        let member = |order| LeaseKind {
            member: Some(order),
            ..kind
        };
        let [plain, before] = [kind, member(0)].map(|kind| tokens.issue(kind, T0));
        tokens.fence.order();
        assert_eq!(tokens.redeem(before, T0), None);
        assert_eq!(tokens.redeem(plain, T0), Some(kind), "it knows none");
        let token = tokens.issue(member(1), T0);
        assert_eq!(tokens.redeem(token, T0), Some(member(1)));
        let late = tokens.issue(member(0), T0);
        assert_eq!(tokens.redeem(late, T0), None, "admitted before the order");
    }

    #[test]
    fn token_is_valid_once_and_for_a_limited_time() {
        let tokens = tokens();
        for kind in kinds() {
            let token = tokens.issue(kind, T0);
            assert_eq!(tokens.redeem(token, T0), Some(kind));
            assert_eq!(tokens.redeem(token, T0), None, "replayed");
            let token = tokens.issue(kind, T0);
            let late = T0 + HANDSHAKE_DEADLINE;
            assert_eq!(tokens.redeem(token, late), None, "expired");
        }
    }

    #[test]
    fn token_is_valid_at_any_uptime() {
        let tokens = tokens();
        let kind = kinds().next().unwrap();
        let wrap = Duration::from_millis(1 << MILLIS_BITS);
        let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        let late = HANDSHAKE_DEADLINE;
        for now in [
            days(912),
            days(3650),
            wrap - late / 2,
            wrap,
            2 * wrap - late / 2,
        ] {
            let token = tokens.issue(kind, now);
            assert_eq!(tokens.redeem(token, now + late), None, "{now:?}");
            let almost = now + late - Duration::from_millis(1);
            assert_eq!(tokens.redeem(token, almost), Some(kind), "{now:?}");
            assert_eq!(tokens.redeem(token, almost), None, "{now:?}");
            let token = tokens.issue(kind, now);
            let before = now - Duration::from_millis(1);
            assert_eq!(tokens.redeem(token, before), Some(kind), "{now:?}");
        }
    }

    #[test]
    fn token_with_any_changed_bit_is_refused() {
        let tokens = tokens();
        let token = tokens.issue(kinds().next().unwrap(), T0);
        for bit in 0..128 {
            let mut forged = token;
            forged.0[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(tokens.redeem(forged, T0), None, "bit {bit}");
        }
        let other = LeaseTokens::new(HashKey([1, 3]), Arc::default());
        assert_eq!(other.redeem(token, T0), None, "another server's");
        assert!(tokens.redeem(token, T0).is_some());
    }

    #[test]
    fn endless_hellos_invalidate_no_token() {
        let tokens = tokens();
        let kind = kinds().next().unwrap();
        let first = tokens.issue(kind, T0);
        for _ in 0..100_000 {
            tokens.issue(kind, T0);
        }
        assert_eq!(tokens.redeem(first, T0), Some(kind));
    }

    #[test]
    fn memory_of_used_tokens_is_bounded() {
        let tokens = tokens();
        let kind = kinds().next().unwrap();
        for n in 0..USED_MAX as u64 + 10 {
            let now = T0 + Duration::from_nanos(n);
            assert!(tokens.redeem(tokens.issue(kind, now), now).is_some());
        }
        let kept = |tokens: &LeaseTokens| {
            let used = tokens.used.lock().unwrap();
            (used.words.len(), used.order.len())
        };
        assert_eq!(kept(&tokens), (USED_MAX, USED_MAX));
        let now = T0 + 2 * HANDSHAKE_DEADLINE;
        assert!(tokens.redeem(tokens.issue(kind, now), now).is_some());
        assert_eq!(kept(&tokens), (1, 1));
    }
}
