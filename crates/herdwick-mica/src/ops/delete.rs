//! `delete` (the meta command `md`): removal, invalidation, or an item without its value.

use herdwick_layout::{
    bucket::Offset,
    item::{Header, bit},
};
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
        let version = self.items.header(hit.at).version;
        if delete.compare.is_some_and(|compare| compare != version) {
            return Reply::bare(Status::Exists);
        }
        if !delete.drop_value && !delete.invalidate {
            self.unlink(hit);
            return Reply::bare(Status::Done);
        }
        let at = if delete.drop_value {
            Some(self.drop_value(clock, request, delete, hit))
        } else {
            self.invalidate(clock, request, delete, hit)
        };
        match at {
            Some(at) => Reply::with(Status::Done, self.item(at)),
            None => Reply::bare(Status::OutOfMemory),
        }
    }

    /// Marks the item stale, with a new version and the request's deadline, if it has one. `None` if
    /// it has to be written anew, and there is no room for it.
    fn invalidate(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        delete: &Delete,
        hit: Hit,
    ) -> Option<Offset> {
        let version = delete.version.unwrap_or_else(|| self.next_version());
        let old = self.items.header(hit.at);
        let deadline = delete.exptime.map(|exptime| clock.deadline(exptime));
        let header = Header {
            // The next reader wins the right to recache it.
            bits: (old.bits | bit::STALE) & !bit::WIN_SENT,
            deadline: deadline.unwrap_or(old.deadline),
            version,
            ..old
        };
        if self.writes_beside() {
            return self.store_edited(request, &header.fitting(), |_| {});
        }
        self.set_header(request, hit.at, &header)
    }

    /// Replaces the item by an empty one, which is stale if the request invalidates. One that is not
    /// keeps the version unless the request gives one. It has the request's flags and deadline, or no
    /// deadline.
    fn drop_value(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        delete: &Delete,
        hit: Hit,
    ) -> Offset {
        let deadline = delete
            .exptime
            .map_or(Deadline::NEVER, |exptime| clock.deadline(exptime));
        let kept = self.items.header(hit.at).version;
        let version = match delete.version {
            None if delete.invalidate => self.next_version(),
            version => version.unwrap_or(kept),
        };
        let fresh = Fresh {
            flags: delete.flags,
            deadline,
            version: Some(version),
            bits: if delete.invalidate { bit::STALE } else { 0 },
        };
        self.store(request, Some(hit), &[], &fresh).0
    }
}
