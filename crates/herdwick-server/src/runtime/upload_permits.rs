//! Admission of concurrent uploads. Each partition has a number of permits, each for a value of the
//! maximum size; so the bytes reserved in a store are bounded, and a large value waits no longer than
//! a small one. Each worker owns an equal share of every partition's permits; the remainder is shared.
//! The number of permits follows the memory limit: where it falls below those in use, no worker is
//! granted one, of its own ones neither, until enough are given back.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use super::wait_queue::WaitQueue;

/// The permits of all partitions.
pub(crate) struct Permits {
    partitions: Vec<PartitionPermits>,
}

#[derive(Default)]
struct PartitionPermits {
    /// Number of permits.
    count: AtomicUsize,
    /// Permits in use by all workers; more than there are after the number has fallen.
    used: AtomicUsize,
    /// Shared permits among those.
    shared_used: AtomicUsize,
    /// Number of workers at which a connection waits for a permit.
    waiting: AtomicUsize,
    /// Permits of stalled connections, which all workers together could give back, as of the last check
    /// of each.
    stalled: AtomicUsize,
}

/// Adds 1 to `used` if it is below `most`.
fn take_below(used: &AtomicUsize, most: usize) -> bool {
    let more = |used: usize| (used < most).then_some(used + 1);
    // Relaxed, here and below: the counts publish no other data, and an outdated one costs a pass of
    // waiting.
    used.fetch_update(Relaxed, Relaxed, more).is_ok()
}

impl Permits {
    /// Creates the permits of `workers` partitions with `count` permits each.
    pub(crate) fn new(count: usize, workers: usize) -> Arc<Self> {
        let permits = Self {
            partitions: (0..workers).map(|_| PartitionPermits::default()).collect(),
        };
        (0..workers).for_each(|owner| permits.resize(owner, count));
        Arc::new(permits)
    }

    /// Sets the number of permits of the partition of worker `owner`. That worker calls it, once its
    /// store has room for as many.
    pub(crate) fn resize(&self, owner: usize, count: usize) {
        self.partitions[owner].count.store(count, Relaxed);
    }

    fn count(&self, owner: usize) -> usize {
        self.partitions[owner].count.load(Relaxed)
    }

    /// Returns how many permits of a partition are shared.
    fn shared(&self, owner: usize) -> usize {
        self.count(owner) % self.partitions.len()
    }

    /// Returns how many permits of a partition each worker owns.
    fn own(&self, owner: usize) -> usize {
        self.count(owner) / self.partitions.len()
    }

    /// Returns how many permits of a partition are in use beyond their number.
    fn excess(&self, owner: usize) -> usize {
        let used = self.partitions[owner].used.load(Relaxed);
        used.saturating_sub(self.count(owner))
    }
}

/// A permit, to be [given back](WorkerPermits::give_back).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    Own,
    Shared,
}

/// One worker's permits, and its connections that wait for one, in order of arrival.
pub(crate) struct WorkerPermits {
    permits: Arc<Permits>,
    /// Own permits in use, for each partition.
    own_out: Vec<usize>,
    queues: Vec<WaitQueue>,
    /// Number of connections that wait, then number of permits in use.
    waiting: usize,
    out: usize,
    /// Shared permits in use, for each partition.
    shared_out: Vec<usize>,
    /// What this worker last added to the stalled ones of each partition.
    stalled: Vec<usize>,
}

/// The number of permits of a partition that have to be given back for waiting connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitsWanted {
    count: usize,
    /// Permits among those that serve none: more are in use than there are.
    excess: usize,
    /// Own permits that help. Connections that wait at other workers are served by shared ones, and by
    /// those that this worker does not own any more.
    own: usize,
}

impl PermitsWanted {
    /// Returns whether giving back `permit` would help; then counts it as given back.
    pub(crate) fn take(&mut self, permit: Permit) -> bool {
        if self.count == 0 || permit == Permit::Own && self.own == 0 {
            return false;
        }
        self.count -= 1;
        self.own -= usize::from(permit == Permit::Own);
        true
    }
}

impl WorkerPermits {
    pub(crate) fn new(permits: Arc<Permits>) -> Self {
        let count = permits.partitions.len();
        Self {
            own_out: vec![0; count],
            queues: (0..count).map(|_| WaitQueue::default()).collect(),
            permits,
            waiting: 0,
            out: 0,
            shared_out: vec![0; count],
            stalled: vec![0; count],
        }
    }

    /// Takes a permit at partition `owner`. If none is free, or others wait, queues `place` and
    /// returns `None`.
    pub(crate) fn ask(&mut self, owner: usize, place: u32) -> Option<Permit> {
        // A shared permit is not taken past connections that wait, of whichever worker.
        let in_front = &self.permits.partitions[owner].waiting;
        // Connections of this worker that wait for the same partition come first.
        if self.queues[owner].is_empty()
            && let Some(permit) = self.take(owner, in_front.load(Relaxed) == 0)
        {
            return Some(permit);
        }
        if self.queues[owner].is_empty() {
            // `waiting` counts workers and not connections, so only the first one of this worker
            // adds to it.
            self.permits.partitions[owner].waiting.fetch_add(1, Relaxed);
        }
        self.queues[owner].push_back(place);
        self.waiting += 1;
        None
    }

    fn take(&mut self, owner: usize, shared: bool) -> Option<Permit> {
        let (partition, own) = (&self.permits.partitions[owner], self.permits.own(owner));
        // Own permits need room in `used`, too: after the number has fallen, others may still use
        // more than their share.
        let is_own = self.own_out[owner] < own;
        // While this worker uses more than it owns now, those stand for shared ones.
        if !is_own && (!shared || self.own_out[owner] > own)
            || !take_below(&partition.used, self.permits.count(owner))
        {
            return None;
        }
        // Workers that own permits may not have taken them: shared ones alone must not use those up.
        if !is_own && !take_below(&partition.shared_used, self.permits.shared(owner)) {
            // Taken back. A worker that looks between the two finds one permit too few, and waits
            // for a pass.
            partition.used.fetch_sub(1, Relaxed);
            return None;
        }
        self.out += 1;
        if is_own {
            self.own_out[owner] += 1;
            return Some(Permit::Own);
        }
        self.shared_out[owner] += 1;
        Some(Permit::Shared)
    }

    pub(crate) fn give_back(&mut self, owner: usize, permit: Permit) {
        let partition = &self.permits.partitions[owner];
        self.out -= 1;
        match permit {
            Permit::Own => self.own_out[owner] -= 1,
            Permit::Shared => {
                self.shared_out[owner] -= 1;
                partition.shared_used.fetch_sub(1, Relaxed);
            }
        }
        partition.used.fetch_sub(1, Relaxed);
    }

    /// Returns the next connection that gets a permit, and the permit. While other workers wait, too, a
    /// shared permit is taken only `in_turn`, so that the worker that gives one back does not always
    /// take it again.
    pub(crate) fn next(&mut self, in_turn: bool) -> Option<(u32, Permit)> {
        if self.waiting == 0 {
            return None;
        }
        for owner in 0..self.queues.len() {
            if self.queues[owner].is_empty() {
                continue;
            }
            // This worker is one of those that wait.
            let alone = self.permits.partitions[owner].waiting.load(Relaxed) <= 1;
            if let Some(permit) = self.take(owner, alone || in_turn)
                && let Some(place) = self.queues[owner].pop_front()
            {
                self.left(owner);
                return Some((place, permit));
            }
        }
        None
    }

    /// Removes `place` from the queue of `owner`.
    pub(crate) fn forget(&mut self, owner: usize, place: u32) {
        if self.queues[owner].remove(place) {
            self.left(owner);
        }
    }

    fn left(&mut self, owner: usize) {
        self.waiting -= 1;
        if self.queues[owner].is_empty() {
            self.permits.partitions[owner].waiting.fetch_sub(1, Relaxed);
        }
    }

    /// Returns whether a connection of any worker waits for a permit at `owner`.
    pub(crate) fn is_wanted(&self, owner: usize) -> bool {
        self.permits.partitions[owner].waiting.load(Relaxed) > 0
    }

    /// Returns how many permits of a partition this worker uses that others could use.
    fn lendable(&self, owner: usize) -> usize {
        self.shared_out[owner] + self.not_owned(owner)
    }

    /// Returns how many of the own permits in use this worker does not own any more.
    fn not_owned(&self, owner: usize) -> usize {
        self.own_out[owner].saturating_sub(self.permits.own(owner))
    }

    /// Returns whether a connection waits that a permit in use by this worker could serve.
    pub(crate) fn any_wanted(&self) -> bool {
        let wanted = |owner: usize| {
            !self.queues[owner].is_empty() || self.lendable(owner) > 0 && self.is_wanted(owner)
        };
        self.out > 0 && (0..self.queues.len()).any(wanted)
    }

    /// Returns, for each partition, how many permits to give back: one for each connection that waits at
    /// this worker; if none does, one if a connection waits elsewhere. If that is not zero, it adds the
    /// permits in use beyond the limit.
    pub(crate) fn wanted(&self) -> Vec<PermitsWanted> {
        let wanted = |owner: usize| {
            let (waits, excess) = (self.queues[owner].len(), self.permits.excess(owner));
            let (served, own) = match waits {
                0 => (usize::from(self.is_wanted(owner)), self.not_owned(owner)),
                waits => (waits, usize::MAX),
            };
            PermitsWanted {
                // Permits in excess have to come back first: to give one of those back serves no
                // connection.
                count: if served > 0 { served + excess } else { 0 },
                excess,
                own,
            }
        };
        (0..self.queues.len()).map(wanted).collect()
    }

    /// Sets the count of a partition to 0 if its stalled connections, at all workers, hold no more permits
    /// than are in excess: to give them back would serve no connection. `permits` are those of this
    /// worker's stalled connections, with their partitions.
    pub(crate) fn limit(
        &mut self,
        wanted: &mut [PermitsWanted],
        permits: impl Iterator<Item = (usize, Permit)>,
    ) {
        // Counted down in a copy: the difference is what the stalled connections of this worker
        // could give back of what helps.
        let mut rest = wanted.to_vec();
        for (owner, permit) in permits {
            rest[owner].take(permit);
        }
        for (owner, (wanted, rest)) in wanted.iter_mut().zip(&rest).enumerate() {
            let all = self.note_stalled(owner, wanted.count - rest.count);
            if all <= wanted.excess {
                wanted.count = 0;
            }
        }
    }

    /// Records how many permits of a partition this worker could give back. Returns how many all could.
    fn note_stalled(&mut self, owner: usize, count: usize) -> usize {
        let before = std::mem::replace(&mut self.stalled[owner], count);
        let all = &self.permits.partitions[owner].stalled;
        if count != before {
            // The difference may be negative. Modulo 2^64 the sum over all workers is right all the
            // same.
            all.fetch_add(count.wrapping_sub(before), Relaxed);
        }
        all.load(Relaxed)
    }

    /// Records that none of this worker's connections is known to have stalled.
    pub(crate) fn none_stalled(&mut self) {
        for owner in 0..self.stalled.len() {
            self.note_stalled(owner, 0);
        }
    }

    /// Returns the waiting connections by partition, the youngest first.
    pub(crate) fn youngest(&self) -> impl Iterator<Item = u32> {
        self.queues.iter().flat_map(WaitQueue::youngest)
    }

    /// Returns whether a connection of this worker waits.
    pub(crate) fn waits(&self) -> bool {
        self.waiting > 0
    }

    /// Returns whether permits of this worker are in use.
    pub(crate) fn is_out(&self) -> bool {
        self.out > 0
    }
}

#[cfg(test)]
mod tests {
    use herdwick_check::Rng;

    use super::*;

    #[test]
    fn permits_are_granted_in_turn_and_none_is_lost() {
        let permits = Permits::new(5, 2);
        let mut pools = [
            WorkerPermits::new(Arc::clone(&permits)),
            WorkerPermits::new(permits),
        ];
        let mut taken: Vec<Permit> = (0..3).filter_map(|n| pools[0].ask(1, n)).collect();
        assert_eq!(taken, [Permit::Own, Permit::Own, Permit::Shared]);
        assert_eq!(pools[0].ask(1, 7), None);
        assert_eq!(pools[0].ask(0, 8), Some(Permit::Own), "another partition");
        assert!(pools[1].is_wanted(1) && !pools[1].waits());
        for n in 0..2 {
            assert_eq!(pools[1].ask(1, n), Some(Permit::Own));
        }
        assert_eq!(pools[1].ask(1, 9), None);
        assert_eq!(pools[1].next(true), None);
        pools[0].give_back(1, taken.pop().unwrap());
        assert_eq!(pools[0].next(false), None, "another waits, too");
        assert_eq!(pools[1].next(true), Some((9, Permit::Shared)));
        assert_eq!(pools[0].next(true), None);
        pools[0].give_back(1, taken.pop().unwrap());
        assert_eq!(pools[0].next(false), Some((7, Permit::Own)));
        assert!(!pools[1].is_wanted(1));
    }

    #[test]
    fn own_permits_of_a_worker_are_not_lent() {
        let permits = Permits::new(3, 2);
        let mut pools = [
            WorkerPermits::new(Arc::clone(&permits)),
            WorkerPermits::new(permits),
        ];
        assert_eq!(pools[0].ask(1, 1), Some(Permit::Own));
        assert_eq!(pools[1].ask(1, 1), Some(Permit::Own));
        assert_eq!(pools[1].ask(1, 2), Some(Permit::Shared));
        assert_eq!(pools[1].ask(1, 3), None);
        assert!(!pools[0].any_wanted() && pools[1].any_wanted());
        assert!(!pools[0].wanted()[1].take(Permit::Own));
        assert!(pools[1].wanted()[1].take(Permit::Own));
        pools[1].forget(1, 3);
        assert_eq!(pools[0].ask(1, 2), None);
        let mut wanted = pools[1].wanted()[1];
        assert!(pools[1].any_wanted() && !wanted.take(Permit::Own));
        assert!(wanted.take(Permit::Shared) && !wanted.take(Permit::Shared));
    }

    /// Sets the number of permits of partition 1.
    fn resize(permits: &Permits, count: usize) {
        permits.resize(1, count);
    }

    /// Fewer than are in use, more again.
    #[test]
    fn permits_in_use_beyond_a_smaller_number_are_not_granted_again() {
        let permits = Permits::new(5, 2);
        let mut pools = [
            WorkerPermits::new(Arc::clone(&permits)),
            WorkerPermits::new(Arc::clone(&permits)),
        ];
        let mut taken: Vec<Permit> = (0..3).filter_map(|n| pools[0].ask(1, n)).collect();
        assert_eq!(taken, [Permit::Own, Permit::Own, Permit::Shared]);
        resize(&permits, 2);
        assert_eq!(pools[0].ask(1, 7), None);
        assert_eq!(pools[1].ask(1, 1), None, "own permits are not free either");
        for count in [3, 2] {
            assert_eq!(pools[0].next(true), None, "{count} in use of 2");
            assert_eq!(pools[1].next(true), None, "{count} in use of 2");
            pools[0].give_back(1, taken.pop().unwrap());
        }
        assert_eq!(pools[0].next(true), None, "its own one is in use");
        assert_eq!(pools[1].next(true), Some((1, Permit::Own)));
        pools[0].give_back(1, taken.pop().unwrap());
        assert_eq!(pools[0].next(true), Some((7, Permit::Own)));
        assert_eq!(pools[1].ask(1, 2), None);
        resize(&permits, 5);
        assert_eq!(pools[1].next(true), Some((2, Permit::Own)));
        assert_eq!(pools[1].ask(1, 3), Some(Permit::Shared));
        assert_eq!(pools[1].ask(1, 4), None);
        assert_eq!(pools[0].ask(1, 8), Some(Permit::Own));
    }

    /// Random numbers of permits, takers and givers.
    #[test]
    fn no_permit_is_granted_while_as_many_are_in_use() {
        for workers in 1..=4 {
            let permits = Permits::new(19, workers);
            let mut pools: Vec<WorkerPermits> = (0..workers)
                .map(|_| WorkerPermits::new(Arc::clone(&permits)))
                .collect();
            let (mut rng, mut count) = (Rng::new(1), 19);
            let mut roll = |sides: usize| rng.index(sides);
            let mut used: Vec<(usize, Permit)> = Vec::new();
            for place in 0..20_000 {
                let worker = roll(workers);
                match roll(20) {
                    0 => {
                        count = roll(20);
                        permits.resize(0, count);
                    }
                    1..9 if !used.is_empty() => {
                        let (worker, permit) = used.swap_remove(roll(used.len()));
                        pools[worker].give_back(0, permit);
                    }
                    _ => {
                        let permit = pools[worker].ask(0, place);
                        pools[worker].forget(0, place);
                        assert!(permit.is_none() || used.len() < count, "{count}");
                        used.extend(permit.map(|permit| (worker, permit)));
                    }
                }
            }
            // All can be had again.
            for (worker, permit) in used {
                pools[worker].give_back(0, permit);
            }
            let mut granted = 0;
            for pool in &mut pools {
                while pool.ask(0, 0).is_some() {
                    granted += 1;
                }
                pool.forget(0, 0);
            }
            assert_eq!(granted, count);
        }
    }

    /// Giving back fewer than the excess serves no connection, so none is to be given back.
    #[test]
    fn permits_in_use_beyond_their_number_are_wanted_all_or_none() {
        let permits = Permits::new(8, 2);
        let mut pools = [
            WorkerPermits::new(Arc::clone(&permits)),
            WorkerPermits::new(Arc::clone(&permits)),
        ];
        assert!((0..4).all(|n| pools[0].ask(1, n) == Some(Permit::Own)));
        resize(&permits, 2);
        for (waits, reached) in [(0, 3), (1, 3)] {
            assert_eq!(pools[waits].ask(1, 9), None);
            assert!(pools[0].any_wanted());
            for stalled in 0..=4 {
                let stalled = vec![(1, Permit::Own); stalled];
                let mut wanted = pools[0].wanted();
                pools[0].limit(&mut wanted, stalled.iter().copied());
                let mut closed = 0;
                for &(owner, permit) in &stalled {
                    closed += usize::from(wanted[owner].take(permit));
                }
                let expected = if stalled.len() < reached { 0 } else { reached };
                assert_eq!(closed, expected, "{} stalled", stalled.len());
            }
            pools[waits].forget(1, 9);
        }
    }

    /// Neither worker's stalled connections would do, but those of both together.
    #[test]
    fn stalled_permits_of_all_workers_count() {
        let permits = Permits::new(9, 3);
        let mut pools = [(); 3].map(|()| WorkerPermits::new(Arc::clone(&permits)));
        for pool in &mut pools[..2] {
            assert!((0..3).all(|n| pool.ask(0, n) == Some(Permit::Own)));
        }
        // Of six in use five are too many, and one connection waits.
        permits.resize(0, 1);
        assert_eq!(pools[2].ask(0, 9), None);
        let stalled = [(0, Permit::Own); 3];
        let closed = |pool: &mut WorkerPermits| {
            let mut wanted = pool.wanted();
            pool.limit(&mut wanted, stalled.into_iter());
            stalled
                .iter()
                .filter(|(owner, permit)| wanted[*owner].take(*permit))
                .count()
        };
        assert_eq!(closed(&mut pools[0]), 0, "three would serve nobody");
        assert_eq!(closed(&mut pools[1]), 3);
        assert_eq!(closed(&mut pools[0]), 3);
        // What one has found counts no more once it has given it back.
        pools[1].none_stalled();
        assert_eq!(closed(&mut pools[0]), 0);
    }

    #[test]
    fn waiter_that_leaves_does_not_block_the_queue() {
        let mut permits = WorkerPermits::new(Permits::new(1, 2));
        let permit = permits.ask(0, 1).unwrap();
        for place in 2..5 {
            assert_eq!(permits.ask(0, place), None);
        }
        permits.forget(0, 2);
        permits.forget(0, 9);
        permits.give_back(0, permit);
        assert_eq!(permits.next(false), Some((3, Permit::Shared)));
        permits.forget(0, 4);
        assert!(!permits.waits() && !permits.is_wanted(0) && permits.is_out());
    }
}
