//! The operations, in memcached's meaning of them.

mod arith;
mod delete;
mod get;
mod put;

use crate::{Reply, Status, store::Absent};

impl Absent {
    fn reply<'a>(self, status: Status) -> Reply<'a> {
        Reply {
            expired: self.expired,
            flushed: self.flushed,
            ..Reply::bare(status)
        }
    }
}

/// Arithmetic, append and prepend take a version of 0 for none given, as memcached does.
fn differs(compare: Option<u64>, version: u64) -> bool {
    compare.is_some_and(|compare| compare != 0 && compare != version)
}
