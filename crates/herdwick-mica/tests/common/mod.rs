//! Helpers that the store's tests share.

mod file;

use herdwick_request::{Deadline, HashKey, Reply, Second, Status};

#[allow(unused_imports, reason = "not every test has a store that lasts")]
pub(crate) use file::nameless_file;

/// The hash key of every test.
pub(crate) const HASH_KEY: HashKey = HashKey([1, 2]);

/// A reply with its value copied out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) flags: u32,
    pub(crate) version: u64,
    pub(crate) deadline: Deadline,
    pub(crate) fetched: bool,
    pub(crate) last_access: Second,
    pub(crate) won: bool,
    pub(crate) stale: bool,
    pub(crate) win_sent: bool,
    pub(crate) number: u64,
    pub(crate) expired: bool,
    pub(crate) flushed: bool,
}

impl From<&Reply<'_>> for Answer {
    fn from(reply: &Reply<'_>) -> Self {
        let item = reply.item;
        Self {
            status: reply.status,
            value: item.map(|item| item.value.to_vec()),
            flags: item.map_or(0, |item| item.flags),
            version: item.map_or(0, |item| item.version),
            deadline: item.map_or(Deadline::NEVER, |item| item.deadline),
            fetched: item.is_some_and(|item| item.fetched),
            last_access: item.map_or(Second(0), |item| item.last_access),
            won: item.is_some_and(|item| item.won),
            stale: item.is_some_and(|item| item.stale),
            win_sent: item.is_some_and(|item| item.win_sent),
            number: reply.number,
            expired: reply.expired,
            flushed: reply.flushed,
        }
    }
}
