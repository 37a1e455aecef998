//! `incr` and `decr` (the meta command `ma`), with memcached's rules for width and expiry.

use herdwick_layout::bucket::Offset;
use herdwick_request::{
    Arith, Clock, Item, Reply, Request, Status,
    number::{self, Decimal},
};

use super::differs;
use crate::{
    room::Fresh,
    store::{Absent, Hit, Store},
};

impl Store {
    pub(crate) fn arith(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        arith: &Arith,
    ) -> Reply<'_> {
        let hit = match self.seek(request) {
            Ok(hit) => hit,
            Err(absent) => return self.initial(clock, request, arith, absent),
        };
        let value = self.items.value(hit.at);
        if value.is_empty() {
            return Reply::bare(Status::NonNumeric);
        }
        if differs(arith.compare, self.items.header(hit.at).version) {
            return Reply::bare(Status::Exists);
        }
        let Some(number) = number::parse(value) else {
            return Reply::bare(Status::NonNumeric);
        };
        let number = if arith.decrement {
            // memcached's rule: `decr` stops at 0, `incr` wraps at 2^64.
            number.saturating_sub(arith.delta)
        } else {
            number.wrapping_add(arith.delta)
        };
        let digits = Decimal::new(number);
        let fits = digits.as_bytes().len() <= value.len();
        let before = self.items.header(hit.at).deadline;
        let Some(mut at) = self.write_number(clock, request, arith, hit, &digits) else {
            return Reply::bare(Status::TooLarge);
        };
        // A longer number makes a new item, and memcached then touches the old one that it has
        // just replaced: the new deadline has no effect.
        if let (Some(exptime), true) = (arith.touch, fits) {
            match self.set_deadline(request, at, clock.deadline(exptime)) {
                Some(now) => at = now,
                None => return Reply::bare(Status::OutOfMemory),
            }
        }
        // The reply has the deadline from before the touch.
        let item = Item {
            deadline: before,
            ..self.item(at)
        };
        Reply {
            number,
            ..Reply::with(Status::Done, item)
        }
    }

    /// Writes a number. One no longer than the value overwrites it, padded with spaces; a longer
    /// one makes a new item. Returns `None` if that would be too large.
    fn write_number(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        arith: &Arith,
        hit: Hit,
        number: &Decimal,
    ) -> Option<Offset> {
        let digits = number.as_bytes();
        let old = self.items.header(hit.at);
        if digits.len() > old.value_len() {
            if self.too_large(request.key, digits.len()) {
                return None;
            }
            let fresh = Fresh {
                flags: old.flags,
                deadline: old.deadline,
                bits: 0,
                version: arith.version,
            };
            return Some(self.store(request, Some(hit), digits, &fresh).0);
        }
        let mut header = old;
        header.version = arith.version.unwrap_or_else(|| self.next_version());
        header.accessed = self.now.0;
        let write = |value: &mut [u8]| {
            let (to, padding) = value.split_at_mut(digits.len());
            to.copy_from_slice(digits);
            padding.fill(b' ');
        };
        if self.writes_beside() {
            // At once with the number: a touch afterwards might find no room.
            if let Some(exptime) = arith.touch {
                header.deadline = clock.deadline(exptime);
            }
            return self.store_edited(request, &header.fitting(), write);
        }
        header.bits = self.count_use(hit.at, old.bits);
        // At once, as the item may be copied for the room that another form takes.
        self.items.set_bits(hit.at, header.bits);
        write(self.items.value_mut(hit.at));
        self.items.seal(hit.at);
        self.set_header(request, hit.at, &header)
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
        let (at, _) = self.store(request, None, digits.as_bytes(), &fresh);
        Reply {
            number: arith.initial,
            made: true,
            ..Reply::with(Status::Done, self.item(at))
        }
    }
}
