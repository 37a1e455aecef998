//! The index grows while too many of its slots are used, and takes the memory of the last segments.

use crate::{segments::COPY_RATE, store::Store};

impl Store {
    /// Divides a block of the index, if it has the memory. If not, a few items of the segment that is to
    /// be ceded to it are cleaned.
    #[cold]
    pub(crate) fn grow_index(&mut self) {
        if self.reserve_for_index(self.index.bytes_grown()) {
            return self.index.grow();
        }
        if self.segments.ceding().is_some() && self.begin_cleaning() {
            let walked = self.clean_few(self.survivors()).unwrap_or_default();
            // Half of them may be copied, as under a limit.
            let size = self.segments.size();
            self.copies.earn(walked / (2 * COPY_RATE), size);
        }
    }

    /// Takes the memory of segments for so many bytes of index, as far as the last ones are free. Returns
    /// whether there is as much.
    pub(crate) fn reserve_for_index(&mut self, bytes: usize) -> bool {
        loop {
            self.take_ceded();
            if bytes <= self.index_room {
                return true;
            }
            // Under a limit some of the last ones may be withheld.
            let limited = self.segments.withhold > 0 || self.segments.withheld > 0;
            if limited || self.segments.ceding().is_some() {
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
            let returned = self.items.give_back(bytes);
            self.counters.returns_failed += u64::from(returned.is_err());
        }
    }
}
