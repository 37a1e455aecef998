//! The statistics of the engine Clover.

use herdwick_clover::ServerCounters;

herdwick_fabric::counters! {
    /// Statistics of the metadata server, and of its clients' sessions.
    pub(crate) struct CloverCounters {
        /// Calls of clients that Clover's metadata server has executed.
        clover_calls,
        /// Keys created.
        clover_keys_created,
        /// Keys forgotten after their DELETE.
        clover_keys_forgotten,
        /// Entries of the data node's memory handed to clients.
        clover_entries_taken,
        /// Entries that clients gave back unused.
        clover_entries_given,
        /// Calls for entries of a size class that had none: the memory is full.
        clover_entries_lacking,
        /// Entries superseded by a later version of their key.
        clover_entries_superseded,
        /// Superseded entries whose memory is free again.
        clover_entries_recycled,
        /// Entries found that clients had held when their sessions ended.
        clover_entries_reclaimed,
        /// Clients whose sessions ended because they did not call in time, or their connection failed.
        clover_clients_lapsed,
        /// Clients whose sessions the device would not end: the memory that they held is not used again.
        clover_clients_unreleased,
        /// Attempts to empty the memory of a secondary store that failed; each is repeated after a second.
        clover_reopens_failed,
        /// Calls of clients refused: malformed, or for what is not theirs.
        clover_calls_refused,
        /// Replies that found the way to their client full; they were sent later.
        clover_replies_held,
        /// Shortcuts or entries found invalid: a client overwrote the memory.
        clover_corrupt,
    }
}

impl CloverCounters {
    /// Returns these and the metadata server's.
    pub(crate) fn with(&self, server: &ServerCounters) -> Self {
        Self {
            clover_calls: server.calls,
            clover_keys_created: server.creates,
            clover_keys_forgotten: server.forgotten,
            clover_entries_taken: server.taken,
            clover_entries_given: server.given,
            clover_entries_lacking: server.empty_takes,
            clover_entries_superseded: server.superseded,
            clover_entries_recycled: server.recycled,
            clover_entries_reclaimed: server.reclaimed,
            clover_clients_lapsed: server.lapsed,
            clover_clients_unreleased: self.clover_clients_unreleased,
            clover_reopens_failed: self.clover_reopens_failed,
            clover_calls_refused: server.bad_length
                + server.bad_unknown
                + server.bad_claim
                + server.bad_right
                + server.bad_hoard,
            clover_replies_held: server.replies_held,
            clover_corrupt: server.corrupt,
        }
    }
}
