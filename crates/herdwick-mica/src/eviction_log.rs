//! A bounded record of recent evictions, for memcached's `watch evictions`. Off unless requested.

use herdwick_layout::bucket::Offset;

use crate::{
    evicted::{Evicted, EvictionRecord},
    store::Store,
};

/// Maximum number of evictions recorded between two [`Store::take_evictions`]; further ones are only
/// counted.
const EVICTIONS_MAX: usize = 64;

impl Store {
    /// Turns the recording of evictions on or off.
    pub fn record_evictions(&mut self, on: bool) {
        if on == self.evicted.is_some() {
            return;
        }
        self.evicted = on.then(|| EvictionRecord {
            list: Vec::with_capacity(EVICTIONS_MAX),
            missed: 0,
        });
    }

    /// Calls `visit` for the evictions since the last call, oldest first, at most 64, and forgets
    /// them. Returns the number of those beyond.
    pub fn take_evictions(&mut self, visit: impl FnMut(&Evicted)) -> u64 {
        let Some(EvictionRecord { list, missed }) = &mut self.evicted else {
            return 0;
        };
        list.iter().for_each(visit);
        list.clear();
        std::mem::take(missed)
    }

    /// Returns whether the record is half full, so that a walk that can be continued should stop.
    pub(crate) fn is_record_half_full(&self) -> bool {
        let record = self.evicted.as_ref();
        record.is_some_and(|record| record.list.len() >= EVICTIONS_MAX / 2)
    }

    pub(crate) fn record_eviction(&mut self, at: Offset) {
        let Some(EvictionRecord { list, missed }) = &mut self.evicted else {
            return;
        };
        if list.len() < EVICTIONS_MAX {
            list.push(Evicted::new(&self.items, at));
        } else {
            *missed += 1;
        }
    }
}
