//! How many values are under way at a time. A partition has so many lots, each for a value of the
//! largest size, so that what is reserved in a log is bounded, and a large value waits no longer
//! than a small one. Each worker has some for itself at every partition, as far as they go, and the
//! rest are for whoever comes first.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// The lots of all partitions.
pub(crate) struct Lots {
    partitions: Vec<Partition>,
    /// Those that each worker has for itself at each partition.
    own: usize,
}

#[derive(Default)]
struct Partition {
    free: AtomicUsize,
    /// Workers at which somebody waits for one.
    waiting: AtomicUsize,
}

impl Lots {
    /// For partitions that have `count` lots each, one for each of `workers`.
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

/// A lot, to be [given back](Lots::give_back).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lot {
    Own,
    Shared,
}

/// One worker's lots, and its connections that wait for some, in the order of their coming.
pub(super) struct WorkerLots {
    lots: Arc<Lots>,
    own: Vec<usize>,
    queues: Vec<VecDeque<u32>>,
    /// How many wait, and how many lots are out.
    waiting: usize,
    out: usize,
    /// Of those out, the ones of each partition that all share.
    shared_out: Vec<usize>,
}

/// How many lots of a partition would help those that wait for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    count: usize,
    /// They wait at other workers: only what all share would go there.
    elsewhere: bool,
}

impl Wanted {
    /// Whether `lot` would help; then it is counted as given back.
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
            queues: (0..count).map(|_| VecDeque::new()).collect(),
            lots,
            waiting: 0,
            out: 0,
            shared_out: vec![0; count],
        }
    }

    /// A lot at partition `owner`; if there is none, `place` waits for one.
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

    /// The next that need wait no longer, and its lot. Where others wait, too, what all share is
    /// taken only `in_turn`: whoever gives back is not the first to take again.
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

    /// `place` waits no longer.
    pub(super) fn forget(&mut self, owner: usize, place: u32) {
        let queue = &mut self.queues[owner];
        let before = queue.len();
        queue.retain(|&waits| waits != place);
        if queue.len() < before {
            self.left(owner);
        }
    }

    fn left(&mut self, owner: usize) {
        self.waiting -= 1;
        if self.queues[owner].is_empty() {
            self.lots.partitions[owner].waiting.fetch_sub(1, Relaxed);
        }
    }

    /// Whether somebody waits for a lot at `owner`, at any worker.
    pub(super) fn is_wanted(&self, owner: usize) -> bool {
        self.lots.partitions[owner].waiting.load(Relaxed) > 0
    }

    /// Whether somebody waits anywhere for what is out here.
    pub(super) fn any_wanted(&self) -> bool {
        let wanted = |owner: usize| {
            !self.queues[owner].is_empty() || self.shared_out[owner] > 0 && self.is_wanted(owner)
        };
        self.out > 0 && (0..self.queues.len()).any(wanted)
    }

    /// How many lots of each partition would help: as many as wait here, or one for elsewhere.
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

    /// Those that wait, by partition, the last first.
    pub(super) fn youngest(&self) -> impl Iterator<Item = u32> {
        let queues = self.queues.iter();
        queues.flat_map(|queue| queue.iter().rev().copied())
    }

    /// Whether somebody waits here.
    pub(super) fn waits(&self) -> bool {
        self.waiting > 0
    }

    /// Whether lots of this worker are out.
    pub(super) fn is_out(&self) -> bool {
        self.out > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lots_go_round_and_none_is_lost() {
        let lots = Lots::new(5, 2);
        let mut desks = [WorkerLots::new(Arc::clone(&lots)), WorkerLots::new(lots)];
        let mut taken: Vec<Lot> = (0..3).filter_map(|n| desks[0].ask(1, n)).collect();
        assert_eq!(taken, [Lot::Own, Lot::Own, Lot::Shared]);
        assert_eq!(desks[0].ask(1, 7), None);
        assert_eq!(desks[0].ask(0, 8), Some(Lot::Own), "another partition");
        assert!(desks[1].is_wanted(1) && !desks[1].waits());
        for n in 0..2 {
            assert_eq!(desks[1].ask(1, n), Some(Lot::Own));
        }
        assert_eq!(desks[1].ask(1, 9), None);
        assert_eq!(desks[1].next(true), None);
        desks[0].give_back(1, taken.pop().unwrap());
        assert_eq!(desks[0].next(false), None, "another waits, too");
        assert_eq!(desks[1].next(true), Some((9, Lot::Shared)));
        assert_eq!(desks[0].next(true), None);
        desks[0].give_back(1, taken.pop().unwrap());
        assert_eq!(desks[0].next(false), Some((7, Lot::Own)));
        assert!(!desks[1].is_wanted(1));
    }

    #[test]
    fn what_a_worker_has_for_itself_helps_nobody_elsewhere() {
        let lots = Lots::new(3, 2);
        let mut desks = [WorkerLots::new(Arc::clone(&lots)), WorkerLots::new(lots)];
        assert_eq!(desks[0].ask(1, 1), Some(Lot::Own));
        assert_eq!(desks[1].ask(1, 1), Some(Lot::Own));
        assert_eq!(desks[1].ask(1, 2), Some(Lot::Shared));
        assert_eq!(desks[1].ask(1, 3), None);
        assert!(!desks[0].any_wanted() && desks[1].any_wanted());
        assert!(!desks[0].wanted()[1].take(Lot::Own));
        assert!(desks[1].wanted()[1].take(Lot::Own));
        desks[1].forget(1, 3);
        assert_eq!(desks[0].ask(1, 2), None);
        let mut wanted = desks[1].wanted()[1];
        assert!(desks[1].any_wanted() && !wanted.take(Lot::Own));
        assert!(wanted.take(Lot::Shared) && !wanted.take(Lot::Shared));
    }

    #[test]
    fn those_that_leave_hold_nobody_up() {
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
