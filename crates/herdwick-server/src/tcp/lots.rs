//! Admission of concurrent uploads. Each partition has a number of lots, each for a value of the
//! maximum size; so the bytes reserved in a log are bounded, and a large value waits no longer than
//! a small one. Each worker owns an equal share of every partition's lots; the remainder is shared.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use super::wait_queue::WaitQueue;

/// The lots of all partitions.
pub(crate) struct Lots {
    partitions: Vec<Partition>,
    /// Lots that each worker owns at each partition.
    own: usize,
}

#[derive(Default)]
struct Partition {
    free: AtomicUsize,
    /// Number of workers at which a connection waits for a lot.
    waiting: AtomicUsize,
}

impl Lots {
    /// Creates the lots of `workers` partitions with `count` lots each.
    pub(crate) fn new(count: usize, workers: usize) -> Arc<Self> {
        let own = count / workers;
        let partition = || Partition {
            free: AtomicUsize::new(count - own * workers),
            waiting: AtomicUsize::new(0),
        };
        Arc::new(Self {
            partitions: (0..workers).map(|_| partition()).collect(),
            own,
        })
    }
}

/// A lot, to be [given back](WorkerLots::give_back).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lot {
    Own,
    Shared,
}

/// One worker's lots, and its connections that wait for one, in order of arrival.
pub(super) struct WorkerLots {
    lots: Arc<Lots>,
    own: Vec<usize>,
    queues: Vec<WaitQueue>,
    /// Number of connections that wait, then number of lots in use.
    waiting: usize,
    out: usize,
    /// Shared lots in use, for each partition.
    shared_out: Vec<usize>,
}

/// The number of lots of a partition that waiting connections could use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    count: usize,
    /// They wait at other workers, which only a shared lot can serve.
    elsewhere: bool,
}

impl Wanted {
    /// Returns whether giving back `lot` would help; then counts it as given back.
    pub(super) fn take(&mut self, lot: Lot) -> bool {
        let helps = self.count > 0 && (lot == Lot::Shared || !self.elsewhere);
        self.count -= usize::from(helps);
        helps
    }
}

impl WorkerLots {
    pub(super) fn new(lots: Arc<Lots>) -> Self {
        let count = lots.partitions.len();
        Self {
            own: vec![lots.own; count],
            queues: (0..count).map(|_| WaitQueue::default()).collect(),
            lots,
            waiting: 0,
            out: 0,
            shared_out: vec![0; count],
        }
    }

    /// Takes a lot at partition `owner`. If none is free, or others wait, queues `place` and
    /// returns `None`.
    pub(super) fn ask(&mut self, owner: usize, place: u32) -> Option<Lot> {
        let in_front = &self.lots.partitions[owner].waiting;
        if self.queues[owner].is_empty()
            && let Some(lot) = self.take(owner, in_front.load(Relaxed) == 0)
        {
            return Some(lot);
        }
        if self.queues[owner].is_empty() {
            self.lots.partitions[owner].waiting.fetch_add(1, Relaxed);
        }
        self.queues[owner].push_back(place);
        self.waiting += 1;
        None
    }

    fn take(&mut self, owner: usize, shared: bool) -> Option<Lot> {
        let lot = if self.own[owner] > 0 {
            self.own[owner] -= 1;
            Lot::Own
        } else {
            let free = &self.lots.partitions[owner].free;
            let less = |free: usize| free.checked_sub(1).filter(|_| shared);
            free.fetch_update(Relaxed, Relaxed, less).ok()?;
            self.shared_out[owner] += 1;
            Lot::Shared
        };
        self.out += 1;
        Some(lot)
    }

    pub(super) fn give_back(&mut self, owner: usize, lot: Lot) {
        self.out -= 1;
        match lot {
            Lot::Own => self.own[owner] += 1,
            Lot::Shared => {
                self.shared_out[owner] -= 1;
                self.lots.partitions[owner].free.fetch_add(1, Relaxed);
            }
        }
    }

    /// Returns the next connection that gets a lot, and the lot. While other workers wait, too, a
    /// shared lot is taken only `in_turn`, so that the worker that gives one back does not always
    /// take it again.
    pub(super) fn next(&mut self, in_turn: bool) -> Option<(u32, Lot)> {
        if self.waiting == 0 {
            return None;
        }
        for owner in 0..self.queues.len() {
            if self.queues[owner].is_empty() {
                continue;
            }
            let alone = self.lots.partitions[owner].waiting.load(Relaxed) <= 1;
            if let Some(lot) = self.take(owner, alone || in_turn)
                && let Some(place) = self.queues[owner].pop_front()
            {
                self.left(owner);
                return Some((place, lot));
            }
        }
        None
    }

    /// Removes `place` from the queue of `owner`.
    pub(super) fn forget(&mut self, owner: usize, place: u32) {
        if self.queues[owner].remove(place) {
            self.left(owner);
        }
    }

    fn left(&mut self, owner: usize) {
        self.waiting -= 1;
        if self.queues[owner].is_empty() {
            self.lots.partitions[owner].waiting.fetch_sub(1, Relaxed);
        }
    }

    /// Returns whether a connection of any worker waits for a lot at `owner`.
    pub(super) fn is_wanted(&self, owner: usize) -> bool {
        self.lots.partitions[owner].waiting.load(Relaxed) > 0
    }

    /// Returns whether a connection waits that a lot in use by this worker could serve.
    pub(super) fn any_wanted(&self) -> bool {
        let wanted = |owner: usize| {
            !self.queues[owner].is_empty() || self.shared_out[owner] > 0 && self.is_wanted(owner)
        };
        self.out > 0 && (0..self.queues.len()).any(wanted)
    }

    /// Returns how many lots of each partition would help: one for each connection that waits here,
    /// else one for the other workers.
    pub(super) fn wanted(&self) -> Vec<Wanted> {
        let wanted = |owner: usize| match self.queues[owner].len() {
            0 => Wanted {
                count: usize::from(self.is_wanted(owner)),
                elsewhere: true,
            },
            count => Wanted {
                count,
                elsewhere: false,
            },
        };
        (0..self.queues.len()).map(wanted).collect()
    }

    /// Returns the waiting connections by partition, the youngest first.
    pub(super) fn youngest(&self) -> impl Iterator<Item = u32> {
        self.queues.iter().flat_map(WaitQueue::youngest)
    }

    /// Returns whether a connection of this worker waits.
    pub(super) fn waits(&self) -> bool {
        self.waiting > 0
    }

    /// Returns whether lots of this worker are in use.
    pub(super) fn is_out(&self) -> bool {
        self.out > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lots_are_granted_in_turn_and_none_is_lost() {
        let lots = Lots::new(5, 2);
        let mut pools = [WorkerLots::new(Arc::clone(&lots)), WorkerLots::new(lots)];
        let mut taken: Vec<Lot> = (0..3).filter_map(|n| pools[0].ask(1, n)).collect();
        assert_eq!(taken, [Lot::Own, Lot::Own, Lot::Shared]);
        assert_eq!(pools[0].ask(1, 7), None);
        assert_eq!(pools[0].ask(0, 8), Some(Lot::Own), "another partition");
        assert!(pools[1].is_wanted(1) && !pools[1].waits());
        for n in 0..2 {
            assert_eq!(pools[1].ask(1, n), Some(Lot::Own));
        }
        assert_eq!(pools[1].ask(1, 9), None);
        assert_eq!(pools[1].next(true), None);
        pools[0].give_back(1, taken.pop().unwrap());
        assert_eq!(pools[0].next(false), None, "another waits, too");
        assert_eq!(pools[1].next(true), Some((9, Lot::Shared)));
        assert_eq!(pools[0].next(true), None);
        pools[0].give_back(1, taken.pop().unwrap());
        assert_eq!(pools[0].next(false), Some((7, Lot::Own)));
        assert!(!pools[1].is_wanted(1));
    }

    #[test]
    fn own_lots_of_a_worker_are_not_lent() {
        let lots = Lots::new(3, 2);
        let mut pools = [WorkerLots::new(Arc::clone(&lots)), WorkerLots::new(lots)];
        assert_eq!(pools[0].ask(1, 1), Some(Lot::Own));
        assert_eq!(pools[1].ask(1, 1), Some(Lot::Own));
        assert_eq!(pools[1].ask(1, 2), Some(Lot::Shared));
        assert_eq!(pools[1].ask(1, 3), None);
        assert!(!pools[0].any_wanted() && pools[1].any_wanted());
        assert!(!pools[0].wanted()[1].take(Lot::Own));
        assert!(pools[1].wanted()[1].take(Lot::Own));
        pools[1].forget(1, 3);
        assert_eq!(pools[0].ask(1, 2), None);
        let mut wanted = pools[1].wanted()[1];
        assert!(pools[1].any_wanted() && !wanted.take(Lot::Own));
        assert!(wanted.take(Lot::Shared) && !wanted.take(Lot::Shared));
    }

    #[test]
    fn waiter_that_leaves_does_not_block_the_queue() {
        let mut lots = WorkerLots::new(Lots::new(1, 2));
        let lot = lots.ask(0, 1).unwrap();
        for place in 2..5 {
            assert_eq!(lots.ask(0, place), None);
        }
        lots.forget(0, 2);
        lots.forget(0, 9);
        lots.give_back(0, lot);
        assert_eq!(lots.next(false), Some((3, Lot::Shared)));
        lots.forget(0, 4);
        assert!(!lots.waits() && !lots.is_wanted(0) && lots.is_out());
    }
}
