//! `delete` (the meta command `md`): removal, invalidation, or an item without its value.

use herdwick_layout::item::bit;
use herdwick_request::{Clock, Deadline, Delete, Reply, Request, Status};

use crate::{
    room::Fresh,
    store::{Hit, Store},
};

impl Store {
    pub(crate) fn delete(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        delete: &Delete,
    ) -> Reply<'_> {
        let hit = match self.seek(request) {
            Ok(hit) => hit,
            Err(absent) => return absent.reply(Status::NotFound),
        };
        let version = self.items.header(hit.at).version.get();
        if delete.compare.is_some_and(|compare| compare != version) {
            return Reply::bare(Status::Exists);
        }
        if !delete.drop_value && !delete.invalidate {
            self.unlink(hit);
            return Reply::bare(Status::Done);
        }
        let mut at = hit.at;
        if delete.drop_value {
            at = self.drop_value(clock, request, delete, hit, version);
        }
        if delete.invalidate {
            let version = delete.version.unwrap_or_else(|| self.next_version());
            if let Some(exptime) = delete.exptime {
                self.defer(at, clock.deadline(exptime));
            }
            self.items.amend(at, |header| {
                if let Some(exptime) = delete.exptime {
                    header.deadline.set(clock.deadline(exptime).0);
                }
                header.bits = (header.bits | bit::STALE) & !bit::WIN_SENT;
                header.version.set(version);
            });
        }
        Reply::with(Status::Done, self.item(at))
    }

    /// Replaces the item by an empty one. It keeps the version unless the request gives one, and
    /// has the request's flags and deadline, or no deadline.
    fn drop_value(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        delete: &Delete,
        hit: Hit,
        version: u64,
    ) -> herdwick_layout::bucket::Offset {
        let deadline = delete
            .exptime
            .map_or(Deadline::NEVER, |exptime| clock.deadline(exptime));
        let fresh = Fresh {
            flags: delete.flags,
            deadline,
            version: Some(delete.version.unwrap_or(version)),
            ..Fresh::default()
        };
        self.store(request, Some(hit), &[], &fresh)
    }
}
