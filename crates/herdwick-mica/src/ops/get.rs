//! Reads: `get`, `gat`, `touch` (the meta command `mg`), with recache wins and items created on a
//! miss.

use herdwick_layout::{
    bucket::Offset,
    item::{Header, bit},
};
use herdwick_request::{Clock, Deadline, Get, LARGE_BYTES, Reply, Request, Status};

use crate::{
    room::Fresh,
    store::{Absent, Hit, Store},
};

impl Store {
    /// Executes a get. Returns `None` if the sink has no room for the value; then nothing was done.
    #[inline(always)]
    pub(crate) fn get(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        get: &Get,
        guess: Hit,
        has_room_for: impl FnOnce(usize) -> bool,
    ) -> Option<Reply<'_>> {
        match self.lookup(request, guess) {
            Ok(hit) => {
                let header = self.items.header(hit.at);
                let value_len = header.value_len();
                // For a smaller value the sink was asked before (`Sink::has_room`).
                if value_len >= LARGE_BYTES && !has_room_for(value_len) {
                    return None;
                }
                Some(self.read(clock, request, get, (hit.at, header)))
            }
            Err(absent) => Some(self.miss(clock, request, get, absent)),
        }
    }

    #[inline(always)]
    fn read(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        get: &Get,
        (mut at, before): (Offset, Header),
    ) -> Reply<'_> {
        let now = self.now;
        let won = wins(clock, get, &before);
        if let Some(exptime) = get.touch {
            match self.set_deadline(request, at, clock.deadline(exptime)) {
                Some(now) => at = now,
                // It was evicted for the room that the longer header takes.
                None if !self.lossless => return Reply::bare(Status::NotFound),
                None => return Reply::bare(Status::OutOfMemory),
            }
        }
        // A touch may have written it anew, from a copy with fewer uses.
        let held = match get.touch {
            Some(_) => self.items.header(at).bits,
            None => before.bits,
        };
        let mut bits = held;
        if won {
            bits |= bit::WIN_SENT;
        }
        if !get.quiet_access {
            bits = self.count_use(at, bits | bit::FETCHED);
            if before.last_access(now) != now {
                self.items.set_last_access(at, now);
            }
        }
        // Store only on a change: a dirty line has to be written back to memory.
        if bits != held {
            self.items.set_bits(at, bits);
        }
        // With the attributes as they were before; a touch may have changed the form.
        let form = if get.touch.is_some() {
            self.items.header(at).form
        } else {
            before.form
        };
        let mut item = self.item_of(at, &Header { form, ..before });
        item.won = won;
        Reply::with(Status::Done, item)
    }

    #[cold]
    fn miss(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        get: &Get,
        absent: Absent,
    ) -> Reply<'_> {
        let Some(exptime) = get.vivify else {
            return absent.reply(Status::NotFound);
        };
        if self.too_large(request.key, 0) {
            return absent.reply(Status::TooLarge);
        }
        let read = if get.quiet_access { 0 } else { bit::FETCHED };
        let fresh = Fresh {
            deadline: clock.deadline(exptime),
            // The reply tells this client that it has won; the next ones find the right taken.
            bits: bit::WIN_SENT | read,
            version: get.version,
            ..Fresh::default()
        };
        let (at, _) = self.store(request, None, &[], &fresh);
        let mut item = self.item(at);
        // The reply shows the item as it was before this read.
        item.fetched = false;
        item.win_sent = false;
        item.won = true;
        Reply {
            made: true,
            ..Reply::with(Status::Done, item)
        }
    }
}

/// Returns whether this reader wins the right to recache the item: the first reader since the item
/// became stale, or since its time left fell below `recache`.
fn wins(clock: &Clock, get: &Get, header: &Header) -> bool {
    if header.has(bit::WIN_SENT) {
        return false;
    }
    (header.has(bit::STALE) && !get.unaware)
        || get.recache.is_some_and(|exptime| {
            let deadline = match get.touch {
                Some(touch) if get.touch_first => clock.deadline(touch),
                _ => header.deadline,
            };
            deadline != Deadline::NEVER && deadline.0 < clock.deadline(exptime).0
        })
}
