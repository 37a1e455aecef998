//! `incr` and `decr` (the meta command `ma`), with memcached's rules for width and expiry.

use herdwick_layout::chunk::ChunkHeader;
use herdwick_request::{
    Arith, Clock, Item, Reply, Request, Status,
    number::{self, Decimal},
};

use super::differs;
use crate::{
    fresh::Fresh,
    metas::Chunk,
    store::{Absent, Store},
};

impl Store {
    pub(crate) fn arith(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        arith: &Arith,
    ) -> Reply<'_> {
        let chunk = match self.lookup(request) {
            Ok(chunk) => chunk,
            Err(absent) => return self.initial(clock, request, arith, absent),
        };
        let item = self.item(chunk);
        if item.value.is_empty() {
            return Reply::bare(Status::NonNumeric);
        }
        if differs(arith.compare, item.version) {
            return Reply::bare(Status::Exists);
        }
        let Some(number) = number::parse(item.value) else {
            return Reply::bare(Status::NonNumeric);
        };
        let number = if arith.decrement {
            // memcached's rule: `decr` stops at 0, `incr` wraps at 2^64.
            number.saturating_sub(arith.delta)
        } else {
            number.wrapping_add(arith.delta)
        };
        let before = item.deadline;
        match self.put_number(clock, request, arith, chunk, number) {
            Ok(chunk) => {
                // The reply has the deadline from before the touch.
                let item = Item {
                    deadline: before,
                    ..self.item(chunk)
                };
                Reply {
                    number,
                    ..Reply::with(Status::Done, item)
                }
            }
            Err(status) => Reply::bare(status),
        }
    }

    /// Writes a number. One no longer than the value overwrites it, padded with spaces, and gets the
    /// request's deadline; a longer one makes a new item, and memcached then touches the old one that it
    /// has just replaced: the new deadline has no effect.
    fn put_number(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        arith: &Arith,
        chunk: Chunk,
        number: u64,
    ) -> Result<Chunk, Status> {
        let digits = Decimal::new(number);
        let digits = digits.as_bytes();
        let old = self.header(chunk);
        if digits.len() > old.value_len as usize {
            if self.too_large(request.key, digits.len()) {
                return Err(Status::TooLarge);
            }
            let fresh = Fresh {
                flags: old.flags,
                deadline: old.deadline,
                bits: 0,
                version: arith.version,
            };
            let stored = self.store(request, Some(chunk), digits, &fresh);
            return stored.ok_or(Status::OutOfMemory);
        }
        let version = arith.version.unwrap_or_else(|| self.next_version());
        let deadline = arith.touch.map(|exptime| clock.deadline(exptime));
        let header = ChunkHeader {
            version,
            deadline: deadline.unwrap_or(old.deadline),
            ..old
        };
        // Written in place: a reader in another process believes nothing until it is sealed again.
        self.bury(chunk);
        let bytes = self.slabs.bytes_mut(chunk);
        let (to, padding) = bytes[header.front()..header.end()].split_at_mut(digits.len());
        to.copy_from_slice(digits);
        padding.fill(b' ');
        header.write(bytes);
        self.seal(chunk);
        self.count_use(chunk);
        self.metas.get_mut(chunk).accessed = self.now.0;
        Ok(chunk)
    }

    fn initial(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        arith: &Arith,
        absent: Absent,
    ) -> Reply<'_> {
        let Some(exptime) = arith.vivify else {
            return absent.reply(Status::NotFound);
        };
        let digits = Decimal::new(arith.initial);
        if self.too_large(request.key, digits.as_bytes().len()) {
            return absent.reply(Status::TooLarge);
        }
        let fresh = Fresh {
            deadline: clock.deadline(exptime),
            version: arith.version,
            ..Fresh::default()
        };
        let Some(chunk) = self.store(request, None, digits.as_bytes(), &fresh) else {
            return absent.reply(Status::OutOfMemory);
        };
        Reply {
            number: arith.initial,
            made: true,
            ..Reply::with(Status::Done, self.item(chunk))
        }
    }
}
