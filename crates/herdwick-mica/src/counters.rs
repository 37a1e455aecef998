//! The store's counters, as memcached's `stats` reports them.

/// Counters of a store. The name of memcached's own counter follows in parentheses where there is
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Items in the index, expired or flushed ones that have not been removed yet included
    /// (`curr_items`).
    pub items: u64,
    /// Bytes of those items in the log: header, key, value, padding to 8 (`bytes`).
    pub bytes: u64,
    /// Items stored since the start, each update counted (`total_items`).
    pub total_items: u64,
    /// Valid items evicted by the log or by the index (`evictions`).
    pub evictions: u64,
    /// The part of `evictions` for which the index had no slot.
    pub index_evictions: u64,
    /// Evicted items that had a deadline (`evicted_nonzero`).
    pub evicted_nonzero: u64,
    /// Evicted items never read (`evicted_unfetched`).
    pub evicted_unfetched: u64,
    /// Expired or flushed items with their room reused (`reclaimed`).
    pub reclaimed: u64,
    /// The part of `reclaimed` that was never read (`expired_unfetched`).
    pub expired_unfetched: u64,
    /// Items copied to the young end because they had been used since they were last copied or
    /// stored.
    pub refreshed: u64,
    /// Items copied to the young end because the log was sparse, or because the store evicts
    /// nothing.
    pub kept: u64,
    /// Requests with a hash that does not belong to the key, or with a key of invalid length.
    pub bad_keys: u64,
}

impl Counters {
    /// Resets the event counters but not the gauges `items` and `bytes`, as memcached's `stats
    /// reset` does.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            items: self.items,
            bytes: self.bytes,
            ..Self::default()
        };
    }
}
