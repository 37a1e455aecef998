//! An evicted item, and the list of those not taken yet.

use herdwick_layout::{bucket::Offset, item::bit};
use herdwick_request::{Deadline, KEY_BYTES_MAX, Second};

use crate::items::Items;

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

    pub(crate) fn new(items: &Items, at: Offset, now: Second) -> Self {
        let header = items.header(at);
        let mut key = [0; KEY_BYTES_MAX];
        key[..usize::from(header.key_len)].copy_from_slice(items.key(at));
        Self {
            deadline: header.deadline,
            last_access: header.last_access(now),
            value_len: header.value_len(),
            fetched: header.has(bit::FETCHED),
            key,
            key_len: header.key_len,
        }
    }
}

/// Evictions since the last [`Store::take_evictions`](crate::Store::take_evictions).
#[derive(Default)]
pub(crate) struct EvictionRecord {
    pub(crate) list: Vec<Evicted>,
    pub(crate) missed: u64,
}
