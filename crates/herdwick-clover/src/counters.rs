//! Counters of a client and of a metadata server.

use herdwick_fabric::counters;

counters! {
    /// Counters of a client, besides those of its READs.
    pub struct ClientCounters {
        /// GETs begun.
        gets,
        /// PUTs and DELETEs begun.
        mutations,
        /// GETs and PUTs that knew an entry of their key.
        cursor_hits,
        /// Calls to the metadata server for the chain of a key.
        finds,
        /// Calls for free entries.
        takes,
        /// Calls that gave entries back.
        gives,
        /// Keys created.
        creates,
        /// DELETEs that the server was asked for, since there was no entry for a tombstone.
        deletes,
        /// Entries that were read and had another use by then.
        recycled,
        /// CASes of a PUT or DELETE that found a later entry.
        overtaken,
        /// Times that all cursors were forgotten, because versions wrapped.
        flushes,
        /// Hints of superseded entries that were not sent to the server, for want of room.
        hints_dropped,
        /// Replies that belong to no call: dropped.
        unexpected_replies,
    }
}

counters! {
    /// Counters of a metadata server.
    pub struct ServerCounters {
        /// Calls executed.
        calls,
        /// Keys created.
        creates,
        /// Keys forgotten after their DELETE.
        forgotten,
        /// Entries handed to clients.
        taken,
        /// Entries that clients gave back.
        given,
        /// Keys deleted for clients that had no entry for a tombstone.
        deletes,
        /// Calls for entries of a class that had none.
        empty_takes,
        /// Entries taken out of chains.
        superseded,
        /// Entries whose memory is free again.
        recycled,
        /// Entries whose version began again at 0.
        wraps,
        /// Uncommitted links of other parties that this server completed.
        settled,
        /// Entries found that clients held when they were removed, and had not linked.
        reclaimed,
        /// Keys found in the memory at the start.
        recovered,
        /// Invalid shortcuts or entries of chains: the memory was overwritten.
        corrupt,
        /// Messages refused: their length differs from the one in their head.
        bad_length,
        /// Messages refused: no such operation, or a field that has no meaning.
        bad_unknown,
        /// Calls refused: an entry that the client does not hold, or a class or slot that is none.
        bad_claim,
        /// Calls refused: the client may only read.
        bad_right,
        /// Calls refused: the client holds as many entries as it may.
        bad_hoard,
        /// Replies that found the way to their client full; they were sent later.
        replies_held,
        /// Clients removed whose connection had failed, or whose lease was over.
        lapsed,
    }
}
