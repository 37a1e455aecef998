//! Storage: `set`, `add`, `replace`, `append`, `prepend`, `cas` (the meta command `ms`).

use herdwick_layout::item::bit;
use herdwick_request::{Clock, Mode, Put, Reply, Request, Status};

use super::differs;
use crate::{
    room::Fresh,
    store::{Absent, Hit, Store},
};

impl Store {
    #[inline]
    pub(crate) fn put(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        put: &Put<'_>,
        guess: Hit,
    ) -> Reply<'_> {
        if let Some(staged) = put.staged {
            return self.put_staged(clock, request, put, staged);
        }
        if self.too_large(request.key, put.value.len()) {
            self.drop_old(request, put);
            return Reply::bare(Status::TooLarge);
        }
        match self.lookup(request, guess) {
            Ok(hit) => match put.mode {
                Mode::Set | Mode::Replace => self.put_over(clock, request, put, hit),
                Mode::Add => Reply::bare(Status::NotStored),
                Mode::Append => self.join(clock, request, put, hit, (&[], put.value)),
                Mode::Prepend => self.join(clock, request, put, hit, (put.value, &[])),
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
            && let Ok(hit) = self.seek(request)
        {
            self.unlink(hit);
        }
    }

    #[inline(always)]
    fn put_over(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        put: &Put<'_>,
        hit: Hit,
    ) -> Reply<'_> {
        match self.judge_over(clock, put, hit) {
            Ok(fresh) => {
                let (at, header) = self.store(request, Some(hit), put.value, &fresh);
                Reply::with(Status::Done, self.item_of(at, &header))
            }
            Err(refusal) => refusal,
        }
    }

    /// Evaluates a Set or Replace of a present item: the attributes of the new item, or the
    /// refusal.
    #[inline(always)]
    pub(crate) fn judge_over(
        &self,
        clock: &Clock,
        put: &Put<'_>,
        hit: Hit,
    ) -> Result<Fresh, Reply<'static>> {
        let mut fresh = Fresh {
            flags: put.flags,
            deadline: clock.deadline(put.exptime),
            bits: 0,
            version: put.version,
        };
        if let Some(compare) = put.compare {
            let old = self.items.header(hit.at);
            let version = old.version;
            // memcached's `ms` with the flag I: a compare version lower than the item's stores the
            // value, marked stale.
            if put.invalidate && compare != 0 && compare < version {
                fresh.deadline = old.deadline;
                fresh.bits = bit::STALE | (old.bits & bit::WIN_SENT);
            } else if compare != version {
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
            Ok(fresh) => {
                let (at, header) = self.store(request, None, put.value, &fresh);
                Reply::with(Status::Done, self.item_of(at, &header))
            }
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
            // `ms` with the flag N: an append to no item makes one.
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
        hit: Hit,
        (front, back): (&[u8], &[u8]),
    ) -> Reply<'_> {
        let old = self.items.header(hit.at);
        if differs(put.compare, old.version) {
            return Reply::bare(Status::Exists);
        }
        // memcached refuses so, and keeps the old value: unlike a set, a failed append drops
        // nothing.
        if self.too_large(request.key, old.value_len() + put.value.len()) {
            return Reply::bare(Status::NotStored);
        }
        let fresh = Fresh {
            flags: old.flags,
            deadline: old.deadline,
            bits: 0,
            version: put.version,
        };
        match self.store_around(request, hit, (front, back), &fresh) {
            Some(at) => Reply::with(Status::Done, self.item(at)),
            // It was evicted for the room that the longer one takes.
            None => self.put_new(clock, request, put, Absent::default()),
        }
    }
}
