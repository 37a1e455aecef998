//! What a tracker counts.

/// The counters of a worker, and two that go up and down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrackerCounters {
    /// Popular keys.
    pub keys: u64,
    /// Changes on their way to the secondary store.
    pub under_way: u64,
    /// Hits that were looked at.
    pub reads: u64,
    /// Those of keys that the secondary store had.
    pub replicated_reads: u64,
    /// Keys that became popular.
    pub admissions: u64,
    /// Keys that gave way to others.
    pub evictions: u64,
    /// Popular keys that were given up: written while too many changes were under way, deleted, or no longer
    /// fit to be replicated.
    pub dropped: u64,
    /// Changes that the secondary store has executed.
    pub changes: u64,
    /// Changes for which it had no room.
    pub refused: u64,
}

impl std::ops::AddAssign<&Self> for TrackerCounters {
    fn add_assign(&mut self, other: &Self) {
        // Taken apart whole: a new counter has to be added here.
        let Self {
            keys,
            under_way,
            reads,
            replicated_reads,
            admissions,
            evictions,
            dropped,
            changes,
            refused,
        } = other;
        self.keys += keys;
        self.under_way += under_way;
        self.reads += reads;
        self.replicated_reads += replicated_reads;
        self.admissions += admissions;
        self.evictions += evictions;
        self.dropped += dropped;
        self.changes += changes;
        self.refused += refused;
    }
}

impl TrackerCounters {
    /// Zeroes what only grows.
    pub fn reset(&mut self) {
        *self = Self {
            keys: self.keys,
            under_way: self.under_way,
            ..Self::default()
        };
    }
}
