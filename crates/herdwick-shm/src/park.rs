//! Sleeping without losing a wakeup.
//!
//! A port that wants to sleep stores an odd number in its *parked word*, which its peers can read,
//! fences, checks once more for work, and waits for its wakeup descriptor. A peer stores its work,
//! fences, and signals the descriptor if the word is odd. One of the two fences is first: either
//! the sleeper sees the work, or the peer sees the word (Dekker). The number grows with each
//! arming, so that a peer knows which arming it has signaled.

use herdwick_mem::{
    Words,
    sync::{Ordering, fence},
};

/// The number in a parked word: odd while armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arming(u64);

impl Arming {
    /// Advances to the next armed number, to be stored with [`Arming::show`].
    pub(crate) fn arm(&mut self) {
        // Odd, and another than the last: a peer that has signaled the last arming signals this one
        // too.
        self.0 = self.0.wrapping_add(1) | 1;
    }

    /// Advances to the next disarmed number.
    pub(crate) fn disarm(&mut self) {
        self.0 = self.0.wrapping_add(1) & !1;
    }

    pub(crate) fn is_armed(self) -> bool {
        self.0 & 1 != 0
    }

    pub(crate) fn show(self, words: &impl Words, index: usize) {
        // Not enough by itself: `settle` follows before the last check.
        words.store_release(index, self.0);
    }
}

/// The full fence of both sides: a sleeper's between showing its arming and its last check, a
/// poster's between its post and its check of the parked word. Acquire and release do not order a
/// store before a later load.
#[inline]
pub(crate) fn settle() {
    fence(Ordering::SeqCst);
}

/// A peer's parked word, and the arming that was last signaled.
#[derive(Debug)]
pub(crate) struct Sleeper<W> {
    words: W,
    index: usize,
    rung: u64,
}

impl<W: Words> Sleeper<W> {
    pub(crate) fn new(words: W, index: usize) -> Self {
        Self {
            words,
            index,
            rung: 0,
        }
    }

    /// Whether to signal now: the peer sleeps, or is about to, and this arming was not signaled
    /// yet. Call it after [`settle`].
    #[inline]
    pub(crate) fn wants_ring(&mut self) -> bool {
        // Relaxed: the fence before it orders it behind the post.
        let word = self.words.load(self.index);
        // One signal for each arming: the descriptor stays signaled until the sleeper wakes.
        if word & 1 == 0 || word == self.rung {
            return false;
        }
        self.rung = word;
        true
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::model::Memory;
    use herdwick_mem::sync::{Arc, thread};
    use loom::sync::Notify;

    /// Work, a parked word, and a wakeup that may come before the wait.
    struct World {
        words: Memory,
        wakeup: Notify,
    }

    const WORK: usize = 0;
    const PARKED: usize = 1;

    #[test]
    fn no_wakeup_is_lost() {
        loom::model(|| {
            let world = Arc::new(World {
                words: Memory::new(2),
                wakeup: Notify::new(),
            });
            let peer = Arc::clone(&world);
            let poster = thread::spawn(move || {
                let mut sleeper = Sleeper::new(peer.words.clone(), PARKED);
                for n in 1..=2 {
                    peer.words.store_release(WORK, n);
                    settle();
                    if sleeper.wants_ring() {
                        peer.wakeup.notify();
                    }
                }
            });
            let mut arming = Arming::default();
            while world.words.load_acquire(WORK) < 2 {
                arming.arm();
                arming.show(&world.words, PARKED);
                settle();
                // A lost wakeup leaves every thread waiting: loom reports a deadlock.
                if world.words.load_acquire(WORK) < 2 {
                    world.wakeup.wait();
                }
                arming.disarm();
                arming.show(&world.words, PARKED);
            }
            poster.join().unwrap();
        });
    }
}
