//! A limit on the memory of a store, lowered and raised while it runs (memcached's
//! `cache_memlimit`).
//!
//! The log keeps its length and remains circular over all of it, but head and tail stay at most the
//! window apart. What the head has left behind is returned to the system page by page, so what is
//! resident of the log is the window. Lowering the limit moves the head in steps, each of them
//! bounded; index and superblock keep their size.

use crate::{
    evict::Keep,
    item::ALIGN,
    log::{Log, Offset},
    store::Store,
};

/// Bytes that the head is moved by in one step.
const STEP: usize = 256 << 10;
/// Released bytes are returned to the system when there are this many ...
const RETURN_MIN: u64 = 256 << 10;
/// ... and this many at most in one step.
const RETURN_MAX: u64 = 8 << 20;
/// Up to the end of a page, so that the next step begins with a whole one.
const PAGE: usize = 4096;
/// The window is no smaller than this many of the largest items.
const ITEMS_MIN: usize = 4;

impl Store {
    /// Returns how many bytes [`Self::leave_unused`] can take from the store: none from one in a
    /// file, whose blocks stay allocated, and none from one that evicts nothing.
    #[must_use]
    pub fn unused_max(&self) -> usize {
        if self.lossless || self.log.sums {
            return 0;
        }
        let least = self.item_bytes_max.next_multiple_of(ALIGN) * ITEMS_MIN;
        self.log.len().saturating_sub(least)
    }

    /// Leaves `bytes` of the memory unused from now on, but at most [`Self::unused_max`]; 0 lifts
    /// the limit. [`Self::adjust`] carries it out.
    pub fn leave_unused(&mut self, bytes: usize) {
        let unused = bytes.min(self.unused_max()) / ALIGN * ALIGN;
        self.window = self.log.len() - unused;
    }

    /// Takes a step towards the memory that the store is limited to: evicts the oldest items, and
    /// returns memory to the system. Used items among those are kept, as when room is made for a
    /// new one. Returns whether there is more to do.
    pub fn adjust(&mut self) -> bool {
        if self.window == self.log.window {
            // Without a limit nothing is returned: the tail will write there.
            return self.window < self.log.len() && self.return_released();
        }
        if self.window > self.log.window {
            self.log.window = self.window;
        } else {
            self.narrow();
        }
        self.return_released();
        true
    }

    /// Evicts [`STEP`] bytes at the old end, or as many as the new window takes.
    fn narrow(&mut self) {
        let end = self.log.head().passed() + STEP as u64;
        // What is free of the old window takes the copies.
        self.staging.may_move = STEP + self.item_bytes_max;
        while self.log.used() > self.window && self.log.head().passed() < end {
            let from = self.log.head().passed();
            self.release_oldest(Keep::Used(None));
            let released = self.log.head().passed() - from;
            // Copies of half of what is released at most, so that the rest is free.
            self.chances.earn(released as usize / 2, STEP);
        }
        self.settle();
        self.log.window = self.log.used().max(self.window);
    }

    fn return_released(&mut self) -> bool {
        match self.log.return_released() {
            Ok(more) => more,
            Err(_) => {
                self.counters.returns_failed += 1;
                false
            }
        }
    }
}

impl Log {
    /// Returns `part.0 / part.1` of what the log may use, in bytes.
    #[inline]
    pub(crate) fn share(&self, part: (usize, usize)) -> usize {
        self.window / part.1 * part.0
    }

    /// Returns the memory that the head has released to the system, as far as one step may. Returns
    /// whether there is enough for another step.
    fn return_released(&mut self) -> std::io::Result<bool> {
        let (head, tail) = (self.head().passed(), self.tail().passed());
        // Before this the tail has written again.
        let from = self.returned.max(tail.saturating_sub(self.len() as u64));
        if head.saturating_sub(from) < RETURN_MIN {
            return Ok(false);
        }
        let at = self.at(from).0;
        let end = (at + (head - from).min(RETURN_MAX) as usize).min(self.len());
        let end = if end < self.len() {
            end / PAGE * PAGE
        } else {
            end
        };
        let len = end - at;
        self.returned = from + len as u64;
        self.give_back(at..end)?;
        Ok(head - self.returned >= RETURN_MIN)
    }

    /// Returns the position in memory of a byte that the tail has passed within the last lap.
    fn at(&self, passed: u64) -> Offset {
        let behind = (self.tail().passed() - passed) as usize;
        let ahead = self.tail().at + self.len() - behind;
        Offset(ahead % self.len())
    }
}
