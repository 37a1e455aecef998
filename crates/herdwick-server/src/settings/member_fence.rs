//! By which registrations in etcd clients may know this server (docs/cluster.md): a client that has not heard of
//! its last one is refused, and its sessions end.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mio::Waker;

use super::invalidation::Invalidation;

/// Most registrations that are remembered of clients before the first of the server's own is known.
const MET_MAX: usize = 64;

/// The registrations by which clients may know this server, and the orders to end the sessions of others.
#[derive(Default)]
pub(crate) struct MemberFence {
    known: Mutex<Known>,
    /// The orders, each carried out by every worker and by the lease manager.
    orders: Invalidation,
    /// Wakes the lease manager, if there is one.
    manager: Option<Arc<Waker>>,
}

/// The registrations by which clients may know this server.
enum Known {
    /// Any. And those by which they did, or too many to remember.
    Any(Option<Vec<u64>>),
    These(Vec<u64>),
}

impl Default for Known {
    fn default() -> Self {
        Self::Any(Some(Vec::new()))
    }
}

impl MemberFence {
    /// A fence that the lease manager, woken by `manager`, carries out, too.
    pub(crate) fn with_manager(manager: Arc<Waker>) -> Self {
        Self {
            manager: Some(manager),
            ..Self::default()
        }
    }

    /// Returns whether a client may use the server that knows it by `member`: the number of orders at this time,
    /// for the next one ends its sessions.
    pub(crate) fn admits(&self, member: u64) -> Option<u64> {
        let mut known = self.lock();
        let is_admitted = match &mut *known {
            Known::Any(met) => {
                if let Some(all) = met
                    && !all.contains(&member)
                {
                    all.push(member);
                    if all.len() > MET_MAX {
                        *met = None;
                    }
                }
                true
            }
            Known::These(these) => these.contains(&member),
        };
        is_admitted.then(|| self.orders.orders())
    }

    /// From now on admits clients that know the server by one of `members` alone. Returns whether others were
    /// admitted until now: their sessions are to be ended.
    pub(crate) fn admit(&self, members: &[u64]) -> bool {
        let mut known = self.lock();
        let all_in = |before: &[u64]| before.iter().all(|it| members.contains(it));
        let are_others = !match &*known {
            Known::Any(met) => met.as_deref().is_some_and(all_in),
            Known::These(these) => all_in(these),
        };
        *known = Known::These(members.to_vec());
        are_others
    }

    /// Orders that the sessions of all clients end which were admitted before. Workers have to be woken.
    pub(crate) fn order(&self) {
        self.orders.order();
        if let Some(manager) = &self.manager {
            // Fails only when a wakeup is already pending.
            let _ = manager.wake();
        }
    }

    /// The number of orders.
    pub(crate) fn orders(&self) -> u64 {
        self.orders.orders()
    }

    /// Notes that a worker, or the lease manager, has carried out this order.
    pub(crate) fn done(&self, order: u64) {
        self.orders.done(order);
    }

    /// Waits until `workers` and the lease manager have carried out the last order, but no longer than `span`.
    /// Returns whether they have.
    pub(crate) fn wait(&self, workers: usize, span: Duration) -> bool {
        let parties = workers + usize::from(self.manager.is_some());
        self.orders.wait(parties, span)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemberFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let orders = self.orders();
        f.debug_struct("MemberFence")
            .field("orders", &orders)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_other_registrations_are_refused_once_the_own_one_is_known() {
        let fence = MemberFence::default();
        assert_eq!(fence.admits(1), Some(0), "whatever they know");
        assert!(fence.admit(&[2]), "the first one knew another");
        fence.order();
        assert_eq!((fence.admits(1), fence.admits(2)), (None, Some(1)));
        assert!(!fence.admit(&[2, 3]), "nobody is left out");
        assert_eq!(fence.admits(2), Some(1));
        assert!(fence.admit(&[4]));
        assert_eq!((fence.admits(2), fence.admits(4)), (None, Some(1)));
    }

    #[test]
    fn nobody_is_ended_whose_registration_turns_out_to_be_the_own_one() {
        let fence = MemberFence::default();
        assert!(!fence.admit(&[7]), "nobody was there");
        let fence = MemberFence::default();
        fence.admits(7);
        fence.admits(7);
        assert!(!fence.admit(&[7, 8]));
        let fence = MemberFence::default();
        for member in 0..=MET_MAX as u64 {
            fence.admits(member);
        }
        let all: Vec<_> = (0..=MET_MAX as u64).collect();
        assert!(fence.admit(&all), "not all are remembered");
    }
}
