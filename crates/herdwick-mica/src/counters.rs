/// What the store holds and what became of the rest; in memcached's words where it has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Items that a read may find, those expired or flushed but not yet met included (`curr_items`).
    pub items: u64,
    /// Bytes of those items in the log: header, key, value, padding to 8 (`bytes`).
    pub bytes: u64,
    /// Items stored since the start, each update counted (`total_items`).
    pub total_items: u64,
    /// Valid items that gave way to others (`evictions`), by the log or by the index.
    pub evictions: u64,
    /// Of those, the ones that the index had no slot for.
    pub index_evictions: u64,
    /// Evicted items that had a deadline (`evicted_nonzero`).
    pub evicted_nonzero: u64,
    /// Evicted items never read (`evicted_unfetched`).
    pub evicted_unfetched: u64,
    /// Expired or flushed items whose room was reused (`reclaimed`).
    pub reclaimed: u64,
    /// Of those, the ones never read (`expired_unfetched`).
    pub expired_unfetched: u64,
    /// Items copied to the young end because they had been used since they came to where they were.
    pub refreshed: u64,
    /// Items copied to the young end because little of the log was live.
    pub kept: u64,
    /// Requests whose hash was not their key's, or whose key's length was out of range.
    pub bad_keys: u64,
}

impl Counters {
    /// Forgets what happened and keeps what is there, as memcached's `stats reset` does.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            items: self.items,
            bytes: self.bytes,
            ..Self::default()
        };
    }
}
