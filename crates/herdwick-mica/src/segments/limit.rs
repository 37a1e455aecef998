//! A limit on the memory of a store, lowered and raised while it runs (memcached's `cache_memlimit`):
//! some segments are kept free, and their memory is returned to the system. The table keeps
//! its size; the index grows in what the limit leaves.
//!
//! Reservations for arriving values are not evicted: while they take more than the limit allows, more
//! segments stay in use, and are given back as they end.

use super::{
    clean::Survivors,
    copies::COPY_RATE,
    table::{SPARE, State},
};
use crate::store::Store;

/// The least segments of a store, in items of the largest size ...
const ITEMS_MIN: usize = 4;
/// ... and in segments beside those.
const COUNT_MIN: usize = 12;
/// Bytes that a step towards a limit walks over, or returns to the system.
const STEP: usize = 256 << 10;
/// Bytes that a step counts for a segment whose cleaning is given up.
const GIVEN_UP: usize = STEP / 64;
/// Segments that a step away from a limit looks at, to free those that were withheld.
const RESTORED: usize = 1024;

impl Store {
    /// Returns how many bytes [`Self::leave_unused`] can take from the store: none from one in a
    /// file, whose blocks stay allocated, and none from one that evicts nothing.
    #[must_use]
    pub fn unused_max(&self) -> usize {
        if self.lossless || self.items.sums {
            return 0;
        }
        let least = self.segments_least();
        self.segments.count().saturating_sub(least) * self.segments.size()
    }

    fn segments_least(&self) -> usize {
        self.segments.span(self.largest()) * ITEMS_MIN + COUNT_MIN
    }

    /// Returns whether a limit leaves so few segments that the index takes none of them.
    pub(crate) fn is_limited_to_least(&self) -> bool {
        let withhold = self.segments.withhold;
        withhold > 0 && self.segments.count() <= withhold + self.segments_least()
    }

    /// As [`Self::unused_max`], once the index has taken all segments that it may take: so much can be left
    /// unused however many items there were.
    #[must_use]
    pub fn unused_max_at_last(&self) -> usize {
        let lacks = self.index.bytes_most().saturating_sub(self.index_room);
        let size = self.segments.size();
        let claimed = lacks.div_ceil(size) * size;
        self.unused_max().saturating_sub(claimed)
    }

    /// Leaves `bytes` of the memory unused from now on, but at most [`Self::unused_max`]; 0 lifts
    /// the limit. [`Self::adjust`] carries it out.
    pub fn leave_unused(&mut self, bytes: usize) {
        let bytes = bytes.min(self.unused_max());
        // Rounded up: a segment is left unused as a whole.
        self.segments.withhold = bytes.div_ceil(self.segments.size());
        self.segments.seal_copies();
        self.advise_huge_pages();
    }

    /// Tells the system which segments may lie in huge pages.
    pub(crate) fn advise_huge_pages(&self) {
        // A huge page has segments that are withheld, or ceded, and others that are not.
        self.items.allow_huge_pages(self.segments.withhold == 0);
        self.items
            .forbid_huge_pages(self.segments.ceded_from()..self.items.len());
    }

    /// Takes a step towards the memory that the store is limited to: cleans segments, and returns
    /// their memory to the system. What is worth it is kept, as when room is made for a new item.
    /// Returns whether there is more to do.
    #[inline]
    pub fn adjust(&mut self) -> bool {
        // Without a limit, as a rule: this is asked for in every pass.
        if self.segments.withhold == 0 && self.segments.withheld == 0 {
            return false;
        }
        self.step_to_limit()
    }

    fn step_to_limit(&mut self) -> bool {
        let mut looked = 0;
        while self.segments.withheld > self.segments.withhold {
            if looked >= RESTORED {
                return true;
            }
            looked += self.segments.restore_one();
        }
        let mut work = 0;
        while self.segments.withheld < self.goal_withheld(self.staging.reserved) {
            // The record of evictions is read out between two steps, and has room for those of one.
            if work >= STEP || self.is_record_half_full() {
                return true;
            }
            if self.segments.free > self.free_for_copies() {
                self.withhold_one();
                work += self.segments.size();
                continue;
            }
            if !self.begin_cleaning() {
                return false;
            }
            // What was never read is not copied for it: so of such items the oldest go, as in an LRU list.
            let keep = match self.survivors() {
                Survivors::Used => Survivors::Read,
                keep => keep,
            };
            let Some(bytes) = self.clean_few(keep) else {
                // Another is chosen, and live items give way if all are given up.
                if self.lossless {
                    return false;
                }
                self.count_futile();
                work += GIVEN_UP;
                continue;
            };
            work += bytes;
            // Half of them may be copied, so that the walk comes to an end.
            self.copies
                .earn(bytes / (2 * COPY_RATE), self.segments.size());
        }
        false
    }

    /// Returns the segments that stay free for copies: of any item, if all live ones are kept.
    fn free_for_copies(&self) -> usize {
        match self.survivors() {
            Survivors::All => SPARE + self.segments.span(self.largest()),
            _ => SPARE,
        }
    }

    /// Returns the segments that can be withheld while so many bytes are reserved: fewer than the
    /// limit asks for, if reservations need them.
    fn goal_withheld(&self, reserved: usize) -> usize {
        // Half as much again, because reservations do not fill segments to their ends.
        let needed = reserved + reserved / 2 + self.largest() * ITEMS_MIN;
        let needed = self.segments.span(needed) + COUNT_MIN;
        let most = self.segments.count().saturating_sub(needed);
        self.segments.withhold.min(most)
    }

    /// Makes withheld segments free for a reservation of `len` bytes, which was admitted under a
    /// higher limit. As reservations end, [`Store::adjust`] withholds them again.
    pub(super) fn restore_for(&mut self, len: usize) {
        let goal = self.goal_withheld(self.staging.reserved + len);
        while self.segments.withheld > goal {
            self.segments.restore_one();
        }
    }

    /// Withholds free segments in place of those that a run has taken.
    pub(super) fn withhold_free(&mut self) {
        let goal = self.goal_withheld(self.staging.reserved);
        while self.segments.withheld < goal && self.segments.free > SPARE {
            self.withhold_one();
        }
    }

    fn withhold_one(&mut self) {
        let Some(number) = self.segments.find_free() else {
            return;
        };
        self.segments.free -= 1;
        self.segments.withheld += 1;
        // Before the memory is given back: no item can be placed there from now on.
        self.segments.heads[number].state = State::Withheld;
        let start = self.segments.start(number);
        let returned = self.items.give_back(start..start + self.segments.size());
        self.counters.returns_failed += u64::from(returned.is_err());
    }
}
