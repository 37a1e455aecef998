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
            let returned = self.items.give_back(bytes);
            self.counters.returns_failed += u64::from(returned.is_err());
        }
    }
}
