//! A bounded record of recent evictions, for memcached's `watch evictions`. Off unless requested.

use herdwick_layout::{bucket::Offset, item::bit};
use herdwick_request::{Deadline, KEY_BYTES_MAX, Second};

use crate::{items::Items, store::Store};

/// Maximum number of evictions recorded between two [`Store::take_evictions`]; further ones are only
/// counted.
const EVICTIONS_MAX: usize = 64;

/// A record of an evicted item.
#[derive(Clone, Copy, Debug)]
pub struct Evicted {
    /// When it would have expired.
    pub deadline: Deadline,
    /// The second of its last access.
    pub last_access: Second,
    /// Bytes of its value.
    pub value_len: usize,
    /// Whether it had been read.
    pub fetched: bool,
    key: [u8; KEY_BYTES_MAX],
    key_len: u8,
}

impl Evicted {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key[..usize::from(self.key_len)]
    }

    fn new(items: &Items, at: Offset) -> Self {
        let header = items.header(at);
        let mut key = [0; KEY_BYTES_MAX];
        key[..usize::from(header.key_len)].copy_from_slice(items.key(at));
        Self {
            deadline: header.deadline(),
            last_access: header.last_access(),
            value_len: header.value_len(),
            fetched: header.has(bit::FETCHED),
            key,
            key_len: header.key_len,
        }
    }
}

/// Evictions since the last [`Store::take_evictions`].
#[derive(Default)]
pub(crate) struct EvictionRecord {
    list: Vec<Evicted>,
    missed: u64,
}

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
