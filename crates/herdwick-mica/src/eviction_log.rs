use crate::{
    Deadline, KEY_BYTES_MAX, Second,
    item::bit,
    log::{Log, Offset},
    store::Store,
};

/// Evictions remembered between two [`Store::take_evictions`]; more are forgotten.
const EVICTIONS_MAX: usize = 64;

/// An item that gave way to others.
#[derive(Clone, Copy, Debug)]
pub struct Evicted {
    /// When it would have gone by itself.
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
    /// Remembers evictions from now on, or no more.
    pub fn record_evictions(&mut self, on: bool) {
        if on == self.obituaries.is_some() {
            return;
        }
        self.obituaries = on.then(|| Vec::with_capacity(EVICTIONS_MAX));
    }

    /// Shows what has been evicted since the last time, the first of them.
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
