//! Evictions counted, and a bounded record of recent ones, for memcached's `watch evictions`. The
//! record is off unless requested.

use herdwick_layout::{
    bucket::Offset,
    item::{Header, bit},
};
use herdwick_request::Deadline;

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
        // Asked for with each batch that is watched: what is on stays, with what it has recorded.
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

    /// Counts an item that leaves the index for want of room: one that is gone is reclaimed, another
    /// one evicted.
    pub(crate) fn count_dropped(&mut self, (at, header): (Offset, &Header), gone: bool) {
        let unfetched = u64::from(!header.has(bit::FETCHED));
        let counters = &mut self.counters;
        counters.items -= 1;
        counters.bytes -= header.footprint() as u64;
        if gone {
            counters.reclaimed += 1;
            counters.expired_unfetched += unfetched;
        } else {
            counters.evictions += 1;
            counters.evicted_unfetched += unfetched;
            counters.evicted_nonzero += u64::from(header.deadline != Deadline::NEVER);
            self.record_eviction(at);
        }
    }

    fn record_eviction(&mut self, at: Offset) {
        let Some(EvictionRecord { list, missed }) = &mut self.evicted else {
            return;
        };
        if list.len() < EVICTIONS_MAX {
            list.push(Evicted::new(&self.items, at, self.now));
        } else {
            *missed += 1;
        }
    }
}
