//! An evicted item, and the list of those not taken yet.

use herdwick_request::{Deadline, Second};

/// A record of an evicted item.
#[derive(Clone, Debug)]
pub struct Evicted {
    /// When it would have expired.
    pub deadline: Deadline,
    /// The second of its last access.
    pub last_access: Second,
    /// Bytes of its value.
    pub value_len: usize,
    /// Whether it had been read.
    pub fetched: bool,
    /// Its key.
    pub key: Vec<u8>,
}

/// Evictions since the last [`Store::take_evictions`](crate::Store::take_evictions).
#[derive(Default)]
pub(crate) struct EvictionRecord {
    pub(crate) list: Vec<Evicted>,
    pub(crate) missed: u64,
}
