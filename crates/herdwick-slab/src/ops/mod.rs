//! The operations on items, with memcached's semantics.

mod arith;
mod delete;
mod get;
mod put;

use herdwick_request::{Reply, Status};

use crate::store::Absent;

impl Absent {
    fn reply<'a>(self, status: Status) -> Reply<'a> {
        Reply {
            expired: self.expired,
            flushed: self.flushed,
            ..Reply::bare(status)
        }
    }
}

/// Returns whether a compare version fails. In arithmetic, append and prepend, version 0 means none
/// was given, as in memcached.
fn differs(compare: Option<u64>, version: u64) -> bool {
    compare.is_some_and(|compare| compare != 0 && compare != version)
}
