//! `delete` (the meta command `md`): removal, invalidation, or an item without its value.

use herdwick_layout::chunk::ChunkHeader;
use herdwick_request::{Clock, Deadline, Delete, Reply, Request, Status};

use crate::{
    fresh::Fresh,
    metas::{Chunk, bit},
    store::Store,
};

impl Store {
    pub(crate) fn delete(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        delete: &Delete,
    ) -> Reply<'_> {
        let chunk = match self.lookup(request) {
            Ok(chunk) => chunk,
            Err(absent) => return absent.reply(Status::NotFound),
        };
        let version = self.header(chunk).version;
        if delete.compare.is_some_and(|compare| compare != version) {
            return Reply::bare(Status::Exists);
        }
        if !delete.drop_value && !delete.invalidate {
            self.unlink(request, chunk);
            return Reply::bare(Status::Done);
        }
        if !delete.drop_value {
            self.invalidate(clock, delete, chunk);
            return Reply::with(Status::Done, self.item(chunk));
        }
        match self.drop_value(clock, request, delete, chunk) {
            Some(chunk) => Reply::with(Status::Done, self.item(chunk)),
            None => Reply::bare(Status::OutOfMemory),
        }
    }

    /// Marks the item stale, with a new version and the request's deadline, if it has one.
    fn invalidate(&mut self, clock: &Clock, delete: &Delete, chunk: Chunk) {
        let version = delete.version.unwrap_or_else(|| self.next_version());
        let header = self.header(chunk);
        let deadline = delete.exptime.map(|exptime| clock.deadline(exptime));
        let header = ChunkHeader {
            deadline: deadline.unwrap_or(header.deadline),
            version,
            ..header
        };
        let meta = self.metas.get_mut(chunk);
        // The next reader wins the right to recache it.
        meta.bits = (meta.bits | bit::STALE) & !bit::WIN_SENT;
        self.set_header(chunk, &header);
    }

    /// Replaces the item by an empty one, which is stale if the request invalidates. One that is not
    /// keeps the version unless the request gives one. It has the request's flags and deadline, or no
    /// deadline.
    fn drop_value(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        delete: &Delete,
        chunk: Chunk,
    ) -> Option<Chunk> {
        let deadline = delete
            .exptime
            .map_or(Deadline::NEVER, |exptime| clock.deadline(exptime));
        let kept = self.header(chunk).version;
        let version = match delete.version {
            None if delete.invalidate => None,
            version => Some(version.unwrap_or(kept)),
        };
        let fresh = Fresh {
            flags: delete.flags,
            deadline,
            version,
            bits: if delete.invalidate { bit::STALE } else { 0 },
        };
        self.store(request, Some(chunk), &[], &fresh)
    }
}
