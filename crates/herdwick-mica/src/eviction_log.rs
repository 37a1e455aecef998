//! A bounded record of recent evictions, for memcached's `watch evictions`. Off unless requested.

use crate::{
    Deadline, KEY_BYTES_MAX, Second,
    item::bit,
    log::{Log, Offset},
    store::Store,
};

/// Maximum number of evictions recorded between two [`Store::take_evictions`]; further ones are not
/// recorded.
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

    fn new(log: &Log, at: Offset) -> Self {
        let header = log.header(at);
        let mut key = [0; KEY_BYTES_MAX];
        key[..usize::from(header.key_len)].copy_from_slice(log.key(at));
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

impl Store {
    /// Turns the recording of evictions on or off.
    pub fn record_evictions(&mut self, on: bool) {
        if on == self.obituaries.is_some() {
            return;
        }
        self.obituaries = on.then(|| Vec::with_capacity(EVICTIONS_MAX));
    }

    /// Calls `visit` for the evictions since the last call, oldest first, at most 64, and forgets
    /// them.
    pub fn take_evictions(&mut self, visit: impl FnMut(&Evicted)) {
        if let Some(obituaries) = &mut self.obituaries {
            obituaries.iter().for_each(visit);
            obituaries.clear();
        }
    }

    pub(crate) fn record_eviction(&mut self, at: Offset) {
        if let Some(obituaries) = &mut self.obituaries
            && obituaries.len() < EVICTIONS_MAX
        {
            obituaries.push(Evicted::new(&self.log, at));
        }
    }
}
