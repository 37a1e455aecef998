//! Storage: `set`, `add`, `replace`, `append`, `prepend`, `cas` (the meta command `ms`).

use herdwick_request::{Clock, Mode, Put, Reply, Request, Status};

use super::differs;
use crate::{
    fresh::Fresh,
    metas::{Chunk, bit},
    store::{Absent, Store},
};

impl Store {
    pub(crate) fn put(&mut self, clock: &Clock, request: &Request<'_>, put: &Put<'_>) -> Reply<'_> {
        if let Some(staged) = put.staged {
            return self.put_staged(clock, request, put, staged);
        }
        if self.too_large(request.key, put.value.len()) {
            self.drop_old(request, put);
            return Reply::bare(Status::TooLarge);
        }
        match self.lookup(request) {
            Ok(old) => match put.mode {
                Mode::Set | Mode::Replace => match self.judge_over(clock, put, old) {
                    Ok(fresh) => self.put_value(request, Some(old), put, &fresh),
                    Err(refusal) => refusal,
                },
                Mode::Add => Reply::bare(Status::NotStored),
                Mode::Append => self.join(clock, request, put, old, (&[], put.value)),
                Mode::Prepend => self.join(clock, request, put, old, (put.value, &[])),
            },
            Err(absent) => self.put_new(clock, request, put, absent),
        }
    }

    /// Removes the old value when a plain Set fails, as memcached does: no value is better than one
    /// that the client believes replaced.
    #[cold]
    pub(crate) fn drop_old(&mut self, request: &Request<'_>, put: &Put<'_>) {
        if put.mode == Mode::Set
            && put.compare.is_none()
            && let Ok(old) = self.lookup(request)
        {
            self.unlink(request, old);
        }
    }

    fn put_value(
        &mut self,
        request: &Request<'_>,
        old: Option<Chunk>,
        put: &Put<'_>,
        fresh: &Fresh,
    ) -> Reply<'_> {
        match self.store(request, old, put.value, fresh) {
            Some(chunk) => Reply::with(Status::Done, self.item(chunk)),
            None => {
                self.drop_old(request, put);
                Reply::bare(Status::OutOfMemory)
            }
        }
    }

    /// Evaluates a Set or Replace of a present item: the attributes of the new item, or the
    /// refusal.
    pub(crate) fn judge_over(
        &self,
        clock: &Clock,
        put: &Put<'_>,
        old: Chunk,
    ) -> Result<Fresh, Reply<'static>> {
        let mut fresh = Fresh {
            flags: put.flags,
            deadline: clock.deadline(put.exptime),
            bits: 0,
            version: put.version,
        };
        if let Some(compare) = put.compare {
            let header = self.header(old);
            // memcached's `ms` with the flag I: a compare version lower than the item's stores the
            // value, marked stale.
            if put.invalidate && compare != 0 && compare < header.version {
                fresh.deadline = header.deadline;
                fresh.bits = bit::STALE | (self.metas.get(old).bits & bit::WIN_SENT);
            } else if compare != header.version {
                return Err(Reply::bare(Status::Exists));
            }
        }
        Ok(fresh)
    }

    fn put_new(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        put: &Put<'_>,
        absent: Absent,
    ) -> Reply<'_> {
        match Self::judge_new(clock, put, absent) {
            Ok(fresh) => self.put_value(request, None, put, &fresh),
            Err(refusal) => refusal,
        }
    }

    /// Evaluates a put of an absent item: the attributes of the new item, or the refusal.
    pub(crate) fn judge_new(
        clock: &Clock,
        put: &Put<'_>,
        absent: Absent,
    ) -> Result<Fresh, Reply<'static>> {
        let exptime = match (put.mode, put.vivify) {
            // A compare-and-swap of an item that is gone is NOT_FOUND, not NOT_STORED.
            (Mode::Set | Mode::Replace, _) if put.compare.is_some() => {
                return Err(absent.reply(Status::NotFound));
            }
            (Mode::Set | Mode::Add, _) => put.exptime,
            (Mode::Append | Mode::Prepend, Some(exptime)) => exptime,
            (Mode::Append | Mode::Prepend | Mode::Replace, _) => {
                return Err(absent.reply(Status::NotStored));
            }
        };
        Ok(Fresh {
            flags: put.flags,
            deadline: clock.deadline(exptime),
            bits: 0,
            version: put.version,
        })
    }

    /// Executes Append or Prepend on a present item: flags and deadline stay.
    fn join(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        put: &Put<'_>,
        old: Chunk,
        (front, back): (&[u8], &[u8]),
    ) -> Reply<'_> {
        let header = self.header(old);
        if differs(put.compare, header.version) {
            return Reply::bare(Status::Exists);
        }
        // memcached refuses so, and keeps the old value: unlike a set, a failed append drops
        // nothing.
        if self.too_large(request.key, header.value_len as usize + put.value.len()) {
            return Reply::bare(Status::NotStored);
        }
        let fresh = Fresh {
            flags: header.flags,
            deadline: header.deadline,
            bits: 0,
            version: put.version,
        };
        match self.store_around(request, old, (front, back), &fresh) {
            Some(chunk) => Reply::with(Status::Done, self.item(chunk)),
            None if self.lossless => Reply::bare(Status::OutOfMemory),
            // It was evicted for the room that the longer one takes, or could not be kept beside it.
            None => {
                if let Ok(old) = self.lookup(request) {
                    self.count_dropped(old);
                    self.unlink(request, old);
                }
                // As if it had never been there: NOT_STORED, unless the request may make an item.
                self.put_new(clock, request, put, Absent::default())
            }
        }
    }
}
