//! Enumeration of a store's items, and removal of those that have expired, one list of the index at a
//! time.

use herdwick_request::{Item, Second};

use crate::{
    metas::{Chunk, bit},
    store::Store,
};

impl Store {
    /// Returns the number of lists of the index, the range of [`scan`](Self::scan).
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.index.lists()
    }

    /// Calls `visit` with key, item, and bytes in memory of each valid item in one list. Records
    /// no access.
    pub fn scan(
        &mut self,
        now: Second,
        bucket: usize,
        mut visit: impl FnMut(&[u8], &Item<'_>, usize),
    ) {
        self.tick(now);
        for chunk in self.index.items(&self.metas, bucket) {
            if !self.gone(chunk) {
                let bytes = self.header(chunk).end().next_multiple_of(8);
                visit(self.key(chunk), &self.item(chunk), bytes);
            }
        }
    }

    /// Removes the expired and flushed items of one list (memcached's crawler); returns how many
    /// items it has checked.
    pub fn remove_expired(&mut self, now: Second, bucket: usize) -> u64 {
        self.tick(now);
        let (mut checked, mut at) = (0, self.index.first(bucket));
        while let Some(chunk) = at.some() {
            // Read first: a removed chunk is in another list.
            at = self.metas.get(chunk).chain;
            checked += 1;
            if self.gone(chunk) {
                self.reclaim(chunk);
            }
        }
        self.counters.crawler_items_checked += checked;
        checked
    }

    fn reclaim(&mut self, chunk: Chunk) {
        self.counters.crawler_reclaimed += 1;
        let fetched = self.metas.get(chunk).bits & bit::FETCHED != 0;
        self.counters.expired_unfetched += u64::from(!fetched);
        self.remove(chunk);
    }
}
