//! The quota of lease memory of each holder, a user or a host.
//!
//! The first holder may take most of it, because usually all clients of a server belong to one user
//! or connect from one host. The last share is reserved for holders that have little.

use std::{collections::HashMap, net::IpAddr};

/// The party that a lease counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    /// A user of this host.
    User(u32),
    /// Another host; with IPv6, its whole /64.
    Host(IpAddr),
}

impl Holder {
    pub(super) fn at(address: IpAddr) -> Self {
        Self::Host(match address.to_canonical() {
            // A client on this host can use every loopback address.
            own if own.is_loopback() => IpAddr::from([127, 0, 0, 1]),
            IpAddr::V6(address) => {
                // The host chooses the lower 64 bits itself.
                let [a, b, c, d, ..] = address.segments();
                IpAddr::from([a, b, c, d, 0, 0, 0, 0])
            }
            v4 => v4,
        })
    }
}

/// One part in so many, the last, is reserved. A holder of L bytes gets from it at most half of all that
/// is free, less L, so that a client with many identities cannot take all of it at once.
pub(super) const KEPT: usize = 8;

/// What is held in total, and by each holder.
#[derive(Debug)]
pub(super) struct Quotas {
    bytes_max: usize,
    leases_max: usize,
    all: LeaseShare,
    holders: HashMap<Holder, LeaseShare>,
}

/// Leases and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LeaseShare {
    leases: usize,
    bytes: usize,
}

impl Quotas {
    pub(super) fn new(leases_max: usize, bytes_max: usize) -> Self {
        Self {
            bytes_max,
            leases_max,
            all: LeaseShare::default(),
            holders: HashMap::new(),
        }
    }

    /// Returns the bytes that all holders hold.
    pub(super) fn bytes(&self) -> usize {
        self.all.bytes
    }

    /// Returns how many more bytes `holder` may hold; `None`: it may have no further lease.
    pub(super) fn left(&self, holder: Holder) -> Option<usize> {
        let mine = self.holders.get(&holder).copied().unwrap_or_default();
        let leases = left(self.leases_max, self.all.leases, mine.leases);
        (leases > 0).then(|| left(self.bytes_max, self.all.bytes, mine.bytes))
    }

    pub(super) fn take(&mut self, holder: Holder, bytes: usize) {
        let mine = self.holders.entry(holder).or_default();
        for held in [mine, &mut self.all] {
            held.leases += 1;
            held.bytes += bytes;
        }
    }

    /// Releases what [`take`](Self::take) took.
    pub(super) fn give_back(&mut self, holder: Holder, bytes: usize) {
        if let Some(mine) = self.holders.get_mut(&holder) {
            for held in [&mut *mine, &mut self.all] {
                held.leases -= 1;
                held.bytes -= bytes;
            }
            // No record of a holder without leases: clients choose how many addresses they come
            // from.
            if mine.leases == 0 {
                self.holders.remove(&holder);
            }
        }
    }
}

/// Returns what is left of `max` for a holder that holds `mine`, when all holders hold `all`.
fn left(max: usize, all: usize, mine: usize) -> usize {
    let kept = max / KEPT;
    let left = max.saturating_sub(all);
    let of_the_last = match mine {
        0 => left.min(kept),
        mine => left.div_ceil(2).min(kept).saturating_sub(mine),
    };
    left.saturating_sub(kept).max(of_the_last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALICE: Holder = Holder::User(1);
    const BOB: Holder = Holder::User(2);

    #[test]
    fn single_owner_gets_all_but_the_last_share() {
        let mut quotas = Quotas::new(512, 8000);
        quotas.take(ALICE, 6999);
        assert_eq!(quotas.left(ALICE), Some(1));
        quotas.take(ALICE, 1);
        assert_eq!(quotas.left(ALICE), Some(0));
        assert_eq!(quotas.left(BOB), Some(1000));
        quotas.take(BOB, 400);
        assert_eq!(quotas.left(BOB), Some(0));
        assert_eq!(quotas.left(Holder::User(3)), Some(600));
        quotas.give_back(ALICE, 6999);
        assert_eq!(quotas.left(ALICE), Some(6599));
        let mut few = Quotas::new(2, 8000);
        few.take(ALICE, 1);
        assert!(
            few.left(ALICE).is_some(),
            "with so few leases none is reserved"
        );
    }

    #[test]
    fn lease_counts_are_shared_like_bytes() {
        let mut quotas = Quotas::new(16, 1 << 20);
        for _ in 0..14 {
            assert!(quotas.left(ALICE).is_some());
            quotas.take(ALICE, 1);
        }
        assert_eq!(quotas.left(ALICE), None);
        assert!(quotas.left(BOB).is_some());
    }

    #[test]
    fn many_owners_do_not_exhaust_the_last_share() {
        let mut quotas = Quotas::new(512, 8 << 20);
        let mut names = 0;
        for name in 0..8 {
            let holder = Holder::User(name);
            while let Some(bytes @ 4096..) = quotas.left(holder) {
                quotas.take(holder, bytes.min(16 << 10));
                names = name + 1;
            }
        }
        assert_eq!(names, 8, "each got something");
        assert!(quotas.left(Holder::User(99)).is_some_and(|left| left > 0));
    }

    #[test]
    fn local_addresses_belong_to_one_owner() {
        let at = |address: &str| Holder::at(address.parse().unwrap());
        assert_eq!(at("127.0.0.1"), at("127.9.8.7"));
        assert_eq!(at("127.0.0.1"), at("::1"));
        assert_eq!(at("127.0.0.1"), at("::ffff:127.0.0.2"));
        assert_ne!(at("127.0.0.1"), at("128.0.0.1"));
    }

    #[test]
    fn hosts_of_one_ipv6_network_are_one_owner() {
        let at = |address: &str| Holder::at(address.parse().unwrap());
        assert_eq!(at("2001:db8:1:2::3"), at("2001:db8:1:2:ffff::"));
        assert_ne!(at("2001:db8:1:2::3"), at("2001:db8:1:3::3"));
        assert_ne!(at("192.0.2.1"), at("192.0.2.2"));
        assert_eq!(at("::ffff:192.0.2.1"), at("192.0.2.1"));
    }

    proptest! {
        #[test]
        fn shares_never_exceed_the_total_and_are_all_returned(
            steps in prop::collection::vec((0u32..4, 0usize..3000, any::<bool>()), 0..300),
        ) {
            let mut quotas = Quotas::new(16, 8000);
            let mut held = Vec::new();
            for (user, bytes, takes) in steps {
                let holder = Holder::User(user);
                if takes {
                    if quotas.left(holder).is_some_and(|left| bytes <= left) {
                        quotas.take(holder, bytes);
                        held.push((holder, bytes));
                    }
                } else if !held.is_empty() {
                    let (holder, bytes) = held.swap_remove(bytes % held.len());
                    quotas.give_back(holder, bytes);
                }
                prop_assert!(held.len() <= 16 && quotas.bytes() <= 8000);
                prop_assert_eq!(quotas.bytes(), held.iter().map(|(_, bytes)| bytes).sum::<usize>());
            }
            for (holder, bytes) in held.drain(..) {
                quotas.give_back(holder, bytes);
            }
            prop_assert_eq!(quotas.all, LeaseShare::default());
            prop_assert!(quotas.holders.is_empty());
        }
    }
}
