//! The partitions that a run of requests is executed in without forwarding: this worker's, and
//! those of other workers that are free. Each is unlocked when its part of the run is executed.

use arrayvec::ArrayVec;

use super::run::Run;
use crate::runtime::{
    partition::PassStart,
    partition_lock::{ATTEMPTS, Guard, Own, Partitions},
};

/// Maximum number of other workers' partitions that a run tries to lock. Requests for further ones
/// are forwarded.
const TRIED_MAX: usize = 16;

/// The partitions that a run is executed in.
pub(super) struct HeldPartitions<'a, 'p> {
    /// This worker's partition, if the run has requests to it. It is not locked yet.
    own: Option<(u16, &'a mut Own<'p>)>,
    /// Partitions of other workers, locked, each with the index of its owner.
    others: ArrayVec<(u16, Guard<'a>), TRIED_MAX>,
    start: PassStart,
}

impl<'a, 'p> HeldPartitions<'a, 'p> {
    /// Locks those of other workers' partitions that `run` has requests to and that are free.
    /// `index` is this worker's.
    pub(super) fn lock(
        run: &Run<'_>,
        index: usize,
        own: &'a mut Own<'p>,
        partitions: &'a Partitions,
        start: PassStart,
    ) -> Self {
        let is_own = |&owner: &u16| usize::from(owner) == index;
        let mut others = ArrayVec::<_, TRIED_MAX>::new();
        let mut tried = ArrayVec::<u16, TRIED_MAX>::new();
        for &owner in &run.owners {
            if is_own(&owner) || tried.contains(&owner) {
                continue;
            }
            // The others are forwarded: a run that holds many partitions makes many owners wait.
            if tried.try_push(owner).is_err() {
                break;
            }
            // One attempt while another partition is held, so that a worker that waits for that one
            // does not wait for further attempts.
            let attempts = if others.is_empty() { ATTEMPTS } else { 1 };
            if let Some(partition) = partitions.try_lock(owner.into(), start, attempts) {
                others.push((owner, partition));
            }
        }
        // Last, and without the lock: `each` takes it when the others are unlocked.
        let owner = run.owners.iter().copied().find(is_own);
        Self {
            own: owner.map(|owner| (owner, own)),
            others,
            start,
        }
    }

    /// Returns whether requests to the partition of worker `owner` are executed here.
    pub(super) fn has(&self, owner: u16) -> bool {
        self.own.as_ref().is_some_and(|(own, _)| *own == owner)
            || self.others.iter().any(|(other, _)| *other == owner)
    }

    /// Passes each partition, locked, to `execute`, which unlocks it: those of other workers first.
    /// So this worker waits for its own while it holds no other, and no two workers wait for each
    /// other.
    pub(super) fn each(self, mut execute: impl FnMut(u16, Guard<'_>)) {
        for (owner, partition) in self.others {
            execute(owner, partition);
        }
        if let Some((owner, own)) = self.own {
            execute(owner, own.lock(self.start));
        }
    }
}

/// Locks the partition of worker `owner` for the requests of worker `index`: its own, or another
/// one that is free.
pub(super) fn lock<'a>(
    owner: usize,
    index: usize,
    own: &'a mut Own<'_>,
    partitions: &'a Partitions,
    start: PassStart,
) -> Option<Guard<'a>> {
    if owner == index {
        Some(own.lock(start))
    } else {
        partitions.try_lock(owner, start, ATTEMPTS)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use herdwick_mica::StoreConfig;
    use herdwick_request::{Clock, HashKey, Second};

    use super::*;
    use crate::{runtime::store::Store, telemetry::watch::EventQueue};

    fn partitions(count: usize) -> Partitions {
        let store = |_| {
            Store::new(&StoreConfig {
                memory_bytes: 1 << 20,
                item_bytes_max: 64 << 10,
                hash_key: HashKey([1, 2]),
            })
            .unwrap()
        };
        let event_queue = |_| EventQueue::new(Arc::default()).0;
        let stores = (0..count).map(store).collect();
        Partitions::new(stores, (0..count).map(event_queue).collect(), 0, Vec::new())
    }

    /// A run of every partition holds each of them only until its own part is executed.
    #[test]
    fn each_partition_is_unlocked_when_its_part_is_executed() {
        let partitions = partitions(4);
        let start = PassStart {
            now: Duration::ZERO,
            clock: Clock {
                epoch_unix: 0,
                second: Second(0),
            },
            unused: 0,
        };
        let free = || -> Vec<bool> {
            let is_free = |index| partitions.try_lock(index, start, 1).is_some();
            (0..4).map(is_free).collect()
        };
        let mut run = Run::default();
        run.owners.extend([3, 0, 1, 2, 3, 0]);
        let mut own = Own::Shared(partitions.of(0));
        // The owner of 2 keeps it.
        let kept = partitions.of(2).keep();
        let held = HeldPartitions::lock(&run, 0, &mut own, &partitions, start);
        assert_eq!(
            [0, 1, 2, 3].map(|owner| held.has(owner)),
            [true, true, false, true]
        );
        drop(kept);
        assert_eq!(free(), [true, false, true, false]);
        let mut executed = Vec::new();
        held.each(|owner, partition| {
            let during = free();
            drop(partition);
            executed.push((owner, during));
        });
        assert_eq!(
            executed,
            [
                (3, vec![true, false, true, false]),
                (1, vec![true, false, true, true]),
                (0, vec![false, true, true, true]),
            ]
        );
        assert_eq!(free(), [true; 4]);
    }
}
