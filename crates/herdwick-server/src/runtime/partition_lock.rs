//! The locks of the partitions. A worker executes requests in its own partition. It executes its
//! connections' requests for another worker's partition in that partition, if its lock is free.
//!
//! The owner locks its partition for each batch; while it serves requests that it finds by polling
//! memory, or if it is the only worker, it holds the lock across passes. Other workers never wait for
//! it: they try at most three times for each partition of a run, and forward the requests if they do not
//! get it. So the owner alone may wait: for at most one run, or one read of an upload, of each other
//! worker, because they do not try a lock that is reserved. A run locks all its partitions first, and
//! unlocks each when it has executed its requests there: the owner waits for those, and for those in the
//! partitions that the run executes before.

use herdwick_mem::sync::{AtomicBool, CachePadded, Mutex, MutexGuard, Ordering, spin_loop};
use std::{
    ops::{Deref, DerefMut},
    sync::{LockResult, PoisonError, TryLockError},
};

use crate::{
    runtime::{
        offload::OffloadPart,
        partition::{Partition, PassStart},
        store::Store,
    },
    telemetry::{hot::HotKeys, watch::EventQueue},
};

/// Attempts to lock another worker's partition. A worker tries again because the holder may be about
/// to unlock. It tries few times, because each attempt takes the lock's cache line from the holder.
pub(crate) const ATTEMPTS: usize = if cfg!(loom) { 1 } else { 3 };

/// All partitions, in the order of their workers.
pub(crate) struct Partitions {
    locks: Box<[Lock<Partition>]>,
}

impl Partitions {
    /// Creates the partitions of these stores, each of which tracks `hot_keys` keys, and replicates popular
    /// ones if there is a part of `offload` for it.
    pub(crate) fn new(
        stores: Vec<Store>,
        event_queues: Vec<EventQueue>,
        hot_keys: usize,
        offload: Vec<OffloadPart>,
    ) -> Self {
        let offload = offload.into_iter().map(|part| Some(Box::new(part)));
        let offload = offload.chain(std::iter::repeat_with(|| None));
        let parts = stores.into_iter().zip(event_queues).zip(offload);
        let partition = |((store, event_queue), offload)| {
            Partition::new(store, event_queue, HotKeys::new(hot_keys), offload)
        };
        Self {
            locks: parts.map(partition).map(Lock::new).collect(),
        }
    }

    /// Returns the number of partitions.
    pub(crate) fn len(&self) -> usize {
        self.locks.len()
    }

    /// Returns the lock of worker `index`'s partition, for that worker.
    pub(crate) fn of(&self, index: usize) -> &Lock<Partition> {
        &self.locks[index]
    }

    /// Locks the partition of worker `index` for a batch of another worker, if that can be done at
    /// once: in one of so many attempts.
    #[inline]
    pub(crate) fn try_lock(
        &self,
        index: usize,
        start: PassStart,
        attempts: usize,
    ) -> Option<Guard<'_>> {
        let mut partition = self.locks[index].try_lock(attempts)?;
        partition.begin(start);
        Some(Guard::Locked(partition))
    }
}

/// The lock of a partition.
pub(crate) struct Lock<T> {
    /// The owner holds the lock across passes, or waits for it.
    // On a cache line of its own: others read it without taking the line that the mutex's holder writes.
    reserved: CachePadded<AtomicBool>,
    partition: Mutex<CachePadded<T>>,
}

impl<T> Lock<T> {
    fn new(partition: T) -> Self {
        Self {
            reserved: CachePadded(AtomicBool::new(false)),
            partition: Mutex::new(CachePadded(partition)),
        }
    }

    /// Locks it for a batch of its owner. Waits for at most one run of each other worker.
    #[inline]
    fn lock(&self) -> MutexGuard<'_, CachePadded<T>> {
        match self.partition.try_lock() {
            Ok(partition) => partition,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> MutexGuard<'_, CachePadded<T>> {
        // Relaxed, here and below: the flag only keeps others from trying; the mutex orders what the
        // partition holds.
        self.reserved.store(true, Ordering::Relaxed);
        let partition = whatever(self.partition.lock());
        self.reserved.store(false, Ordering::Relaxed);
        partition
    }

    /// Locks it for its owner, who keeps it across passes.
    pub(crate) fn keep(&self) -> KeptPartition<'_, T> {
        // First: workers that see it do not begin another run, so the wait is for those that had begun.
        self.reserved.store(true, Ordering::Relaxed);
        KeptPartition {
            reserved: &self.reserved,
            partition: whatever(self.partition.lock()),
        }
    }

    /// Locks it for a batch of another worker, if that can be done at once.
    #[inline]
    fn try_lock(&self, attempts: usize) -> Option<MutexGuard<'_, CachePadded<T>>> {
        for _ in 0..attempts {
            // Relaxed: only a hint. A worker that does not see it yet tries the lock once more.
            if self.reserved.load(Ordering::Relaxed) {
                break;
            }
            match self.partition.try_lock() {
                Ok(partition) => return Some(partition),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => spin_loop(),
            }
        }
        None
    }
}

/// Returns what a worker that panicked has left: the release build ends with the first panic, and
/// in a test the others go on.
fn whatever<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// A partition that its owner keeps locked across passes.
pub(crate) struct KeptPartition<'a, T = Partition> {
    reserved: &'a AtomicBool,
    partition: MutexGuard<'a, CachePadded<T>>,
}

impl<T> Drop for KeptPartition<'_, T> {
    fn drop(&mut self) {
        self.reserved.store(false, Ordering::Relaxed);
    }
}

/// A worker's own partition during a pass.
pub(crate) enum Own<'a> {
    /// The worker keeps it locked.
    Kept {
        partition: &'a mut Partition,
        /// Whether this pass has set the partition's clock.
        begun: bool,
    },
    /// It is locked for each batch.
    Shared(&'a Lock<Partition>),
}

impl<'a> Own<'a> {
    #[inline]
    pub(crate) fn new(kept: Option<&'a mut KeptPartition<'_>>, lock: &'a Lock<Partition>) -> Self {
        match kept {
            Some(kept) => Self::Kept {
                partition: &mut kept.partition,
                begun: false,
            },
            None => Self::Shared(lock),
        }
    }

    /// Locks it for a batch.
    #[inline]
    pub(crate) fn lock(&mut self, start: PassStart) -> Guard<'_> {
        match self {
            Self::Kept { partition, begun } => {
                if !std::mem::replace(begun, true) {
                    partition.begin(start);
                }
                Guard::Kept(partition)
            }
            Self::Shared(lock) => {
                let mut partition = lock.lock();
                partition.begin(start);
                Guard::Locked(partition)
            }
        }
    }

    /// Locks it for the first time in a pass. Returns also whether there are more steps to take
    /// towards the memory limit.
    #[inline]
    pub(crate) fn begin(&mut self, start: PassStart) -> (Guard<'_>, bool) {
        let mut partition = match self {
            Self::Kept { partition, begun } => {
                *begun = true;
                Guard::Kept(partition)
            }
            Self::Shared(lock) => Guard::Locked(lock.lock()),
        };
        let more = partition.begin_pass(start);
        (partition, more)
    }
}

/// A partition that is locked for a batch.
pub(crate) enum Guard<'a> {
    Kept(&'a mut Partition),
    Locked(MutexGuard<'a, CachePadded<Partition>>),
}

impl Deref for Guard<'_> {
    type Target = Partition;

    #[inline]
    fn deref(&self) -> &Partition {
        match self {
            Self::Kept(partition) => partition,
            Self::Locked(partition) => partition,
        }
    }
}

impl DerefMut for Guard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Partition {
        match self {
            Self::Kept(partition) => partition,
            Self::Locked(partition) => partition,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
        sync::{
            atomic::{AtomicU64, Ordering::SeqCst},
            mpsc,
        },
        thread,
    };

    use herdwick_check::Rng;

    use super::{ATTEMPTS, Lock, Ordering};

    #[test]
    fn a_lock_is_free_after_its_owner_has_waited() {
        let lock = Lock::new(());
        drop(lock.wait());
        assert!(lock.try_lock(ATTEMPTS).is_some());
    }

    #[test]
    fn workers_do_not_try_a_lock_that_its_owner_keeps() {
        let lock = Lock::new(());
        let kept = lock.keep();
        assert!(lock.try_lock(ATTEMPTS).is_none());
        drop(kept);
        assert!(lock.try_lock(ATTEMPTS).is_some());
    }

    /// While a worker is stopped in another's partition, only the owner waits for it: the others go on at
    /// once. When it goes on, the owner is next.
    #[test]
    fn only_the_owner_waits_for_a_worker_that_is_stopped() {
        let lock = Lock::new(0);
        let (go_on, stopped) = mpsc::channel::<()>();
        let (has_locked, locked) = mpsc::channel();
        thread::scope(|scope| {
            let lock = &lock;
            scope.spawn(move || {
                let mut partition = lock.try_lock(ATTEMPTS).unwrap();
                has_locked.send(()).unwrap();
                stopped.recv().unwrap();
                partition.0 += 1;
            });
            locked.recv().unwrap();
            let owner = scope.spawn(|| {
                let mut partition = lock.lock();
                assert_eq!(partition.0, 1, "after the worker");
                partition.0 += 1;
            });
            while !lock.reserved.load(Ordering::Relaxed) {
                assert!(lock.try_lock(ATTEMPTS).is_none());
                thread::yield_now();
            }
            assert!(lock.try_lock(ATTEMPTS).is_none());
            go_on.send(()).unwrap();
            owner.join().unwrap();
        });
        assert_eq!(lock.try_lock(ATTEMPTS).unwrap().0, 2);
    }

    /// The same of an owner that is stopped while it keeps its partition.
    #[test]
    fn nobody_waits_for_an_owner_that_is_stopped() {
        let lock = Lock::new(0);
        let (go_on, stopped) = mpsc::channel::<()>();
        let (has_locked, locked) = mpsc::channel();
        thread::scope(|scope| {
            let lock = &lock;
            let owner = scope.spawn(move || {
                let mut kept = lock.keep();
                has_locked.send(()).unwrap();
                stopped.recv().unwrap();
                kept.partition.0 += 1;
            });
            locked.recv().unwrap();
            for _ in 0..100 {
                assert!(lock.try_lock(ATTEMPTS).is_none());
            }
            go_on.send(()).unwrap();
            owner.join().unwrap();
        });
        assert_eq!(lock.try_lock(ATTEMPTS).unwrap().0, 1);
    }

    /// Ends the thread's work in the middle of a run, as a worker that panics does, without its
    /// message.
    fn die() {
        resume_unwind(Box::new("a worker is gone"));
    }

    /// An owner and workers that use its partition are stopped and die in the middle of a run, at
    /// random. Every run that was begun counts, one at a time, and the lock is free in the end.
    ///
    /// It finds this bug when it is planted: only its owner gets a lock that a dead worker has poisoned.
    #[test]
    fn partitions_survive_workers_that_stop_or_die_in_them() {
        const RUNS: usize = 400;
        for seed in 1..=20 {
            let lock = Lock::new(0_u64);
            let (begun, has_died) = (AtomicU64::new(0), AtomicU64::new(0));
            thread::scope(|scope| {
                for party in 0..4_u64 {
                    let (lock, begun) = (&lock, &begun);
                    let has_died = &has_died;
                    scope.spawn(move || {
                        let mut rng = Rng::new(seed * 4 + party);
                        let mut roll = |sides: u64| rng.below(sides);
                        for _ in 0..RUNS {
                            let (dies, stops) = (roll(40) == 0, roll(10) == 0);
                            let run = |count: &mut u64| {
                                begun.fetch_add(1, SeqCst);
                                let before = *count;
                                if stops {
                                    thread::yield_now();
                                }
                                *count = before + 1;
                                if dies {
                                    has_died.store(1, SeqCst);
                                    die();
                                }
                            };
                            let keeps = roll(4) == 0;
                            let _ = catch_unwind(AssertUnwindSafe(|| match party {
                                0 if keeps => run(&mut lock.keep().partition.0),
                                0 => run(&mut lock.lock().0),
                                _ => {
                                    if let Some(mut partition) = lock.try_lock(ATTEMPTS) {
                                        run(&mut partition.0);
                                    }
                                }
                            }));
                        }
                    });
                }
            });
            let partition = lock.try_lock(ATTEMPTS).expect("it is free");
            assert_eq!(partition.0, begun.load(SeqCst), "seed {seed}");
            drop(partition);
            assert!(lock.try_lock(ATTEMPTS).is_some());
            assert_eq!(has_died.load(SeqCst), 1, "seed {seed}");
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::{ATTEMPTS, Lock};
    use crate::runtime::parking::Flag;
    use herdwick_mem::sync::{AtomicBool, Ordering};
    use loom::sync::{Arc, atomic::AtomicUsize};

    /// A request for a partition is executed once: in place, or by its owner, which finds it before
    /// it falls asleep or is woken.
    #[test]
    fn each_request_is_executed_in_place_or_by_an_awake_owner() {
        loom::model(|| {
            let (lock, flag) = (Arc::new(Lock::new(0)), Arc::new(Flag::new()));
            let queue = Arc::new(AtomicUsize::new(0));
            let rung = Arc::new(AtomicBool::new(false));
            let worker = {
                let (lock, flag) = (lock.clone(), flag.clone());
                let (queue, rung) = (queue.clone(), rung.clone());
                loom::thread::spawn(move || {
                    if let Some(mut partition) = lock.try_lock(ATTEMPTS) {
                        partition.0 += 1;
                        return;
                    }
                    queue.store(1, Ordering::Release);
                    if flag.take_wakeup() {
                        rung.store(true, Ordering::Relaxed);
                    }
                })
            };
            lock.lock().0 += 1;
            flag.raise();
            let found = queue.load(Ordering::Acquire) == 1;
            worker.join().unwrap();
            let queued = queue.load(Ordering::Relaxed);
            assert_eq!(lock.lock().0 + queued, 2);
            assert!(queued == 0 || found || rung.load(Ordering::Relaxed));
        });
    }

    /// An owner that has waited leaves the lock free for others.
    #[test]
    fn a_lock_is_free_after_its_owner_has_waited() {
        loom::model(|| {
            let lock = Arc::new(Lock::new(0));
            let worker = {
                let lock = lock.clone();
                loom::thread::spawn(move || {
                    if let Some(mut partition) = lock.try_lock(ATTEMPTS) {
                        partition.0 += 1;
                    }
                })
            };
            lock.lock().0 += 1;
            worker.join().unwrap();
            assert!(lock.try_lock(ATTEMPTS).is_some());
        });
    }

    /// An owner that waits, or keeps its partition, gets it from the workers that use it, and frees
    /// it for them afterwards.
    #[test]
    fn an_owner_gets_its_partition_and_frees_it() {
        loom::model(|| {
            let lock = Arc::new(Lock::new(0));
            let worker = {
                let lock = lock.clone();
                loom::thread::spawn(move || match lock.try_lock(ATTEMPTS) {
                    Some(mut partition) => {
                        partition.0 += 1;
                        1
                    }
                    None => 0,
                })
            };
            lock.lock().0 += 1;
            lock.keep().partition.0 += 1;
            let in_place = worker.join().unwrap();
            assert_eq!(lock.try_lock(ATTEMPTS).unwrap().0, 2 + in_place);
        });
    }
}
