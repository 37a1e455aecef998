//! Counters of both sides of Pilaf.

use herdwick_fabric::counters;

use crate::message::BadMessage;

counters! {
    /// Counters of a server.
    pub struct ServerCounters {
        /// Requests executed.
        requests,
        /// Keys stored or replaced.
        puts,
        /// Keys asked to be removed.
        deletes,
        /// Values sent to clients whose READs did not settle a GET.
        gets,
        /// PUTs refused for want of memory or of a place in the table.
        full,
        /// Messages refused: their length is not that of their part.
        bad_length,
        /// Messages refused: no such operation, or a reserved bit is set.
        bad_unknown,
        /// Messages refused: a length of key or value beyond its limit.
        bad_absurd,
        /// Messages refused: not the part of a request that was to come next.
        bad_part,
        /// Replies that found the way to their client full; they were sent later.
        replies_held,
        /// Moves of the table to a larger memory.
        growths,
        /// Clients whose connection failed, or that did not follow the table.
        clients_failed,
    }
}

impl ServerCounters {
    pub(crate) fn count_bad(&mut self, bad: BadMessage) {
        *match bad {
            BadMessage::Length => &mut self.bad_length,
            BadMessage::Unknown => &mut self.bad_unknown,
            BadMessage::Absurd => &mut self.bad_absurd,
        } += 1;
    }
}

counters! {
    /// Counters of a client, besides those of its READs.
    pub struct ClientCounters {
        /// GETs begun.
        gets,
        /// GETs that READs did not settle, and the server answered.
        fallbacks,
        /// PUTs and DELETEs begun.
        mutations,
        /// Entries that said that the table has moved.
        moved,
        /// Extents whose entry was replaced meanwhile: read again from the beginning.
        stale_extents,
        /// Extents of another key with the same tag.
        other_keys,
        /// Misses that a second look at all places found changed.
        misses_changed,
        /// Entries with a right checksum that name no extent: the server's mistake.
        absurd_entries,
        /// Replies that belong to no call: dropped.
        unexpected_replies,
    }
}
