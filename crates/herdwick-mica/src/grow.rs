//! The index grows while too many of its slots are used, and takes the memory of the last segments; it
//! shrinks while too few are, and returns that memory.

use herdwick_request::Second;

use crate::{segments::COPY_RATE, store::Store};

/// A walk over the index that did not go on for so many seconds was given up, or its caller waits: the index
/// shrinks then.
const WALK_PAUSE: u32 = 60;
/// Mutations of which one merges blocks, at most. Deletes one after the other need fewer: a block is merged for a
/// quarter of its slots. More of them wait after a walk, a crawl or a flush.
const MERGE_EVERY: u32 = 16;

impl Store {
    /// Divides a block of the index, if it has the memory. If not, a few items of the segment that is to
    /// be ceded to it are cleaned.
    #[cold]
    pub(crate) fn grow_index(&mut self) {
        if self.reserve_for_index(self.index.bytes_grown()) {
            return self.index.grow();
        }
        // While that one cannot be cleaned, as it holds a reservation, cleaning others does not help.
        let helps = self.cleaner.is_some() || self.segments.ceding_run().is_some();
        if helps && self.segments.ceding().is_some() && self.begin_cleaning() {
            let Some(walked) = self.clean_few(self.survivors()) else {
                return self.count_futile();
            };
            // Half of them may be copied, as under a limit.
            let size = self.segments.size();
            self.copies.earn(walked / (2 * COPY_RATE), size);
        }
    }

    /// Takes the memory of segments for so many bytes of index, as far as the last ones are free. Returns
    /// whether there is as much.
    pub(crate) fn reserve_for_index(&mut self, bytes: usize) -> bool {
        loop {
            // Each turn cedes one segment more. A last segment that is not free ends the loop, and
            // is cleaned.
            self.take_ceded();
            if bytes <= self.index_room {
                return true;
            }
            if self.segments.ceding().is_some() || self.is_limited_to_least() {
                return false;
            }
            self.segments.cede();
        }
    }

    /// Gives the memory of segments that were ceded to the index: the last one was the first.
    fn take_ceded(&mut self) {
        while self.ceded < self.segments.ceded {
            self.ceded += 1;
            let bytes = self.segments.ceded_bytes(self.ceded);
            self.index_room += bytes.len();
            self.items.forbid_huge_pages(bytes.clone());
            // If the system refuses, the process keeps memory that it does not use: counted, and
            // nothing else changes.
            let returned = self.items.give_back(bytes);
            self.counters.returns_failed += u64::from(returned.is_err());
        }
    }

    /// Merges two blocks of the index at one of a few mutations, unless a walk would miss what moves, and returns
    /// the memory to the segments that it lacks no more.
    #[cold]
    pub(crate) fn shrink_index(&mut self) {
        if self.until_merge > 0 {
            self.until_merge -= 1;
            return;
        }
        self.until_merge = MERGE_EVERY - 1;
        if self.is_walked_between() {
            return;
        }
        if let Some(returned) = self.index.merge() {
            self.counters.returns_failed += u64::from(returned.is_err());
            self.return_ceded();
        }
    }

    /// Returns whether a walk has passed the buckets that entries would move to, and will come to those
    /// that they move from.
    fn is_walked_between(&self) -> bool {
        let [to, from] = self.index.merging();
        // Not one that has passed the last bucket: it has ended.
        let between = to.start..from.end - 1;
        let since = Second(self.now.0.saturating_sub(WALK_PAUSE));
        self.walks.any_in(&between, since)
    }

    /// Returns the memory of ceded segments that the index does not need, the last one first.
    fn return_ceded(&mut self) {
        self.take_ceded();
        // What merged blocks still hold is not taken from the index.
        let held = self.index.bytes_held();
        if self.segments.ceding().is_some() && held <= self.index_room {
            self.segments.keep_ceding();
        }
        let ceded = self.ceded;
        while self.ceded > 0 {
            let bytes = self.segments.ceded_bytes(self.ceded).len();
            if held + bytes > self.index_room {
                break;
            }
            self.index_room -= bytes;
            self.ceded -= 1;
            self.segments.take_back();
        }
        if self.ceded < ceded {
            self.advise_huge_pages();
        }
    }
}
