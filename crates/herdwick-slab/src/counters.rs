//! The store's counters.

/// Counters of a store. `items` and `bytes` are what is there now; the others count events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Items stored now, those included that are expired or flushed and not removed yet.
    pub items: u64,
    /// Bytes of the items that are stored now: header, key, value, padding to 8.
    pub bytes: u64,
    /// Items ever stored, each update counted.
    pub total_items: u64,
    /// Valid items that made room for others.
    pub evictions: u64,
    /// Items evicted that had an expiry time.
    pub evicted_nonzero: u64,
    /// Items evicted that were never read.
    pub evicted_unfetched: u64,
    /// Expired or flushed items whose room was used again.
    pub reclaimed: u64,
    /// Expired or flushed items that were never read, among those whose room was used again or that a
    /// crawl removed.
    pub expired_unfetched: u64,
    /// Expired or flushed items that a crawl removed.
    pub crawler_reclaimed: u64,
    /// Items that crawls checked.
    pub crawler_items_checked: u64,
    /// Items at the end of their class's list that stayed, because they were in use.
    pub refreshed: u64,
    /// Items moved to another slab, because theirs was given to another class.
    pub moved: u64,
    /// Slabs emptied: given to another class, or to the system.
    pub slabs_moved: u64,
    /// Requests with a hash that does not belong to the key, or with a key of invalid length.
    pub bad_keys: u64,
    /// Times that the system did not take back memory, under a limit or of an emptied slab.
    pub returns_failed: u64,
}

impl Counters {
    /// Resets the events, as memcached's `stats reset` does.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            items: self.items,
            bytes: self.bytes,
            ..Self::default()
        };
    }
}
