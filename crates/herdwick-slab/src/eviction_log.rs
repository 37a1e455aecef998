//! Evictions counted, and a bounded record of recent ones, for memcached's `watch evictions`. The record
//! is off unless requested.

use herdwick_layout::chunk::HEADER;
use herdwick_request::{Deadline, Second};

use crate::{
    evicted::{Evicted, EvictionRecord},
    metas::{Chunk, bit},
    store::Store,
};

/// Maximum number of evictions recorded between two [`Store::take_evictions`]; further ones are only
/// counted.
const EVICTIONS_MAX: usize = 64;

impl Store {
    /// Turns the recording of evictions on or off.
    pub fn record_evictions(&mut self, on: bool) {
        // What is on stays on, with what it has recorded.
        if on != self.evicted.is_some() {
            self.evicted = on.then(EvictionRecord::default);
        }
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

    /// Counts an item that leaves for want of room: one that is gone is reclaimed, another one evicted.
    pub(crate) fn count_dropped(&mut self, chunk: Chunk) {
        let gone = self.gone(chunk);
        let header = self.header(chunk);
        let fetched = self.metas.get(chunk).bits & bit::FETCHED != 0;
        let counters = &mut self.counters;
        if gone {
            counters.reclaimed += 1;
            counters.expired_unfetched += u64::from(!fetched);
            return;
        }
        counters.evictions += 1;
        counters.evicted_unfetched += u64::from(!fetched);
        counters.evicted_nonzero += u64::from(header.deadline != Deadline::NEVER);
        if let Some(record) = &mut self.evicted {
            if record.list.len() == EVICTIONS_MAX {
                record.missed += 1;
                return;
            }
            // Allocated, but only while evictions are watched.
            let key = self.slabs.bytes(chunk)[HEADER..header.front()].to_vec();
            record.list.push(Evicted {
                deadline: header.deadline,
                last_access: Second(self.metas.get(chunk).accessed),
                value_len: header.value_len as usize,
                fetched,
                key,
            });
        }
    }
}
