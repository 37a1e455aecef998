use super::differs;
use crate::{
    Clock, Mode, Put, Reply, Request, Status,
    item::bit,
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
        if self.too_large(request.key, put.value.len()) {
            return self.refuse(request, put);
        }
        match self.lookup(request, guess) {
            Ok(hit) => match put.mode {
                Mode::Set | Mode::Replace => self.put_over(clock, request, put, hit),
                Mode::Add => Reply::bare(Status::NotStored),
                Mode::Append => self.join(request, put, hit, (&[], put.value)),
                Mode::Prepend => self.join(request, put, hit, (put.value, &[])),
            },
            Err(absent) => self.put_new(clock, request, put, absent),
        }
    }

    /// A plain Set that cannot be done leaves no value: better none than one that its owner
    /// believes replaced.
    #[cold]
    fn refuse(&mut self, request: &Request<'_>, put: &Put<'_>) -> Reply<'_> {
        if put.mode == Mode::Set
            && put.compare.is_none()
            && let Ok(hit) = self.seek(request)
        {
            self.unlink(hit);
        }
        Reply::bare(Status::TooLarge)
    }

    #[inline(always)]
    fn put_over(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        put: &Put<'_>,
        hit: Hit,
    ) -> Reply<'_> {
        let mut fresh = Fresh {
            flags: put.flags,
            deadline: clock.deadline(put.exptime),
            bits: 0,
            version: put.version,
        };
        if let Some(compare) = put.compare {
            let old = self.log.header(hit.at);
            let version = old.version.get();
            if put.invalidate && compare != 0 && compare < version {
                fresh.deadline = old.deadline();
                fresh.bits = bit::STALE | (old.bits & bit::WIN_SENT);
            } else if compare != version {
                return Reply::bare(Status::Exists);
            }
        }
        let at = self.store(request, Some(hit), put.value, &fresh);
        Reply::with(Status::Done, self.item(at))
    }

    fn put_new(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        put: &Put<'_>,
        absent: Absent,
    ) -> Reply<'_> {
        let exptime = match (put.mode, put.vivify) {
            (Mode::Set | Mode::Replace, _) if put.compare.is_some() => {
                return absent.reply(Status::NotFound);
            }
            (Mode::Set | Mode::Add, _) => put.exptime,
            (Mode::Append | Mode::Prepend, Some(exptime)) => exptime,
            (Mode::Append | Mode::Prepend | Mode::Replace, _) => {
                return absent.reply(Status::NotStored);
            }
        };
        let fresh = Fresh {
            flags: put.flags,
            deadline: clock.deadline(exptime),
            bits: 0,
            version: put.version,
        };
        let at = self.store(request, None, put.value, &fresh);
        Reply::with(Status::Done, self.item(at))
    }

    /// Append and Prepend: flags and deadline stay.
    fn join(
        &mut self,
        request: &Request<'_>,
        put: &Put<'_>,
        hit: Hit,
        (front, back): (&[u8], &[u8]),
    ) -> Reply<'_> {
        let old = *self.log.header(hit.at);
        if differs(put.compare, old.version.get()) {
            return Reply::bare(Status::Exists);
        }
        if self.too_large(request.key, old.value_len() + put.value.len()) {
            return Reply::bare(Status::NotStored);
        }
        let fresh = Fresh {
            flags: old.flags(),
            deadline: old.deadline(),
            bits: 0,
            version: put.version,
        };
        let at = self.store_around(request, hit, (front, back), &fresh);
        Reply::with(Status::Done, self.item(at))
    }
}
