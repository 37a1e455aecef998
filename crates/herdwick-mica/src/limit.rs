//! A limit on the memory of a store, lowered and raised while it runs (memcached's
//! `cache_memlimit`).
//!
//! The log keeps its length and remains circular over all of it, but head and tail stay at most the
//! window apart. What the head has left behind is returned to the system page by page, so what is
//! resident of the log is the window. Lowering the limit moves the head in steps, each of them
//! bounded; index and superblock keep their size.
//!
//! Reservations for arriving values are not evicted: while they take more than the limit allows,
//! the window stays as large as they need, and follows them down as they end. One that was admitted
//! before the limit was lowered, and begins after that, widens it again. Nothing live is evicted
//! while it takes no more of the new window than a log keeps without a limit, and leaves room to
//! carry the largest reservation in.

use herdwick_layout::{
    bucket::Offset,
    item::{ALIGN, footprint},
};

use crate::{
    evict::{CARRY_RATE, Keep, SPARSE, part_of},
    items::Items,
    log::Log,
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
/// Number of the largest items that have room beside one reservation in a log that may not use all
/// its memory ...
const BESIDE: usize = 3;
const _: () = assert!(BESIDE < ITEMS_MIN, "an upload at a time");
/// ... and the part of all further ones that stays free to carry them in. Ordinary puts cross them
/// while they store an eighth of their bytes (`evict.rs`); this leaves as much for copies of items.
const CARRY_ROOM: usize = 4;
/// Laps in which dead items are reclaimed before live ones are evicted: in one the head passes all
/// of them, in another the bytes that are skipped at the physical end.
const COMPACT_LAPS: u64 = 2;

impl Store {
    /// Returns how many bytes [`Self::leave_unused`] can take from the store: none from one in a
    /// file, whose blocks stay allocated, and none from one that evicts nothing.
    #[must_use]
    pub fn unused_max(&self) -> usize {
        if self.lossless || self.items.sums {
            return 0;
        }
        if self.segmented() {
            return self.unused_segments_max();
        }
        self.log.len().saturating_sub(self.largest() * ITEMS_MIN)
    }

    /// Leaves `bytes` of the memory unused from now on, but at most [`Self::unused_max`]; 0 lifts
    /// the limit. [`Self::adjust`] carries it out.
    pub fn leave_unused(&mut self, bytes: usize) {
        if self.segmented() {
            return self.withhold(bytes);
        }
        let unused = bytes.min(self.unused_max()) / ALIGN * ALIGN;
        self.window = self.log.len() - unused;
        self.begin_compaction();
    }

    /// From here on narrowing reclaims dead items alone, as long as that can suffice.
    fn begin_compaction(&mut self) {
        let laps = COMPACT_LAPS * self.log.len() as u64;
        self.compact_until = self.log.head().passed() + laps;
    }

    /// Widens the window for reservations of `reserved` bytes, which were admitted under a higher
    /// limit. As they end, [`Self::adjust`] narrows it again.
    pub(crate) fn widen(&mut self, reserved: usize) {
        let needed = reserved + self.beside(reserved);
        if self.log.window < needed {
            self.log.window = needed.min(self.log.len());
            self.begin_compaction();
        }
    }

    /// Takes a step towards the memory that the store is limited to: evicts the oldest items, and
    /// returns memory to the system. Used items among those are kept, as when room is made for a
    /// new one. Returns whether there is more to do.
    pub fn adjust(&mut self) -> bool {
        if self.segmented() {
            return self.adjust_segments();
        }
        let goal = self.goal();
        if goal == self.log.window {
            // Without a limit nothing is returned: the tail will write there.
            return goal < self.log.len() && self.return_released();
        }
        if goal > self.log.window {
            self.log.window = goal;
        } else {
            self.narrow(goal);
        }
        self.return_released();
        true
    }

    /// Returns the window that can be reached now: the limit's, or a larger one that reservations
    /// need.
    #[inline]
    pub(crate) fn goal(&self) -> usize {
        if self.window == self.log.len() {
            return self.window;
        }
        let reserved = self.staging.reserved;
        let needed = reserved + self.beside(reserved);
        self.window.max(needed.min(self.log.window))
    }

    /// Returns the room that a log under a limit keeps beside `reserved` bytes of reservations.
    fn beside(&self, reserved: usize) -> usize {
        let largest = self.largest();
        largest * BESIDE + reserved.saturating_sub(largest) / CARRY_ROOM
    }

    /// Returns the bytes of reservations that a window has room for with [`Self::beside`].
    pub(crate) fn reserved_under(&self, window: usize) -> usize {
        let (largest, rest) = (self.largest(), window.saturating_sub(self.beside(0)));
        let further = rest.saturating_sub(largest);
        rest.min(largest) + further / (CARRY_ROOM + 1) * CARRY_ROOM
    }

    /// Returns the bytes that the largest item takes of the log.
    pub(crate) fn largest(&self) -> usize {
        footprint(0, self.item_bytes_max)
    }

    /// Returns the bytes that may be used for a window of `goal` bytes to be reached: what ordinary
    /// puts need to carry all reservations over stays free.
    fn used_max(&self, goal: usize) -> usize {
        let reserved = self.staging.reserved;
        let carried = reserved.min(2 * self.largest()) + reserved / CARRY_RATE;
        goal.saturating_sub(carried + ALIGN)
    }

    /// Returns whether all that is live may stay under a window of `goal` bytes, and dead items are
    /// still to be found.
    fn keeps_all(&self, goal: usize) -> bool {
        self.live() <= part_of(goal, SPARSE).min(self.used_max(goal))
            && self.log.head().passed() < self.compact_until
    }

    /// Moves the head by [`STEP`] bytes, or as many as the window of `goal` bytes takes.
    fn narrow(&mut self, goal: usize) {
        let (before, end) = (self.log.used(), self.log.head().passed() + STEP as u64);
        let (used_max, keeps_all) = (self.used_max(goal), self.keeps_all(goal));
        // What is free of the old window takes the copies. No request pays for this step, so no
        // reservation is given up for its length.
        self.staging.may_move = usize::MAX;
        while self.log.used() > used_max
            && self.log.head().passed() < end
            && !self.is_record_half_full()
        {
            let used = self.log.used();
            if keeps_all {
                self.release_oldest(Keep::All(None));
            } else {
                self.release_oldest(Keep::Used(None));
                // As many bytes of copies as were freed at most, so that the walk comes to an end.
                let freed = used.saturating_sub(self.log.used());
                self.chances.earn(freed, STEP);
            }
        }
        self.settle();
        self.staging.may_move = 0;
        let used = self.log.used();
        if used <= used_max {
            self.log.window = goal;
            self.begin_compaction();
        } else if !keeps_all {
            // What was freed is not written again, and what was free stays so.
            let freed = before.saturating_sub(used);
            let beside = self.beside(self.staging.reserved);
            let window = (self.log.window - freed).min(used + beside);
            self.log.window = window.max(goal);
        }
    }

    fn return_released(&mut self) -> bool {
        match self.log.return_released(&mut self.items) {
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
        part_of(self.window, part)
    }

    /// Returns the memory that the head has released to the system, as far as one step may. Returns
    /// whether there is enough for another step.
    fn return_released(&mut self, items: &mut Items) -> std::io::Result<bool> {
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
        items.give_back(at..end)?;
        Ok(head - self.returned >= RETURN_MIN)
    }

    /// Returns the position in memory of a byte that the tail has passed within the last lap.
    fn at(&self, passed: u64) -> Offset {
        let behind = (self.tail().passed() - passed) as usize;
        let ahead = self.tail().at + self.len() - behind;
        Offset(ahead % self.len())
    }
}
