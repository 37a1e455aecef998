//! Reads: `get`, `gat`, `touch` (the meta command `mg`), with recache wins and items created on a
//! miss.

use herdwick_layout::chunk::ChunkHeader;
use herdwick_request::{Clock, Deadline, Get, Item, LARGE_BYTES, Reply, Request, Status};

use crate::{
    fresh::Fresh,
    metas::{Chunk, bit},
    store::{Absent, Store},
};

impl Store {
    /// Executes a get. Returns `None` if the sink has no room for the value; then nothing was done.
    #[inline]
    pub(crate) fn get(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        get: &Get,
        has_room_for: impl FnOnce(usize) -> bool,
    ) -> Option<Reply<'_>> {
        match self.lookup(request) {
            Ok(chunk) => {
                let value_len = self.header(chunk).value_len as usize;
                if value_len >= LARGE_BYTES && !has_room_for(value_len) {
                    return None;
                }
                Some(self.read(clock, get, chunk))
            }
            Err(absent) => Some(self.miss(clock, request, get, absent)),
        }
    }

    #[inline]
    fn read(&mut self, clock: &Clock, get: &Get, chunk: Chunk) -> Reply<'_> {
        let now = self.now;
        let before = self.header(chunk);
        let meta = *self.metas.get(chunk);
        let won = wins(clock, get, &before, meta.bits);
        if let Some(exptime) = get.touch {
            let deadline = clock.deadline(exptime);
            self.set_header(chunk, &ChunkHeader { deadline, ..before });
        }
        let mut bits = meta.bits;
        if won {
            bits |= bit::WIN_SENT;
        }
        if !get.quiet_access {
            self.count_use(chunk);
            bits |= bit::FETCHED;
            // Stored only on a change, here and below, so that a hot item's cache line stays clean.
            if meta.accessed != now.0 {
                self.metas.get_mut(chunk).accessed = now.0;
            }
        }
        if bits != meta.bits {
            self.metas.get_mut(chunk).bits = bits;
        }
        // The attributes are those before the operation.
        let item = Item {
            deadline: before.deadline,
            fetched: meta.bits & bit::FETCHED != 0,
            last_access: herdwick_request::Second(meta.accessed),
            win_sent: meta.bits & bit::WIN_SENT != 0,
            won,
            ..self.item(chunk)
        };
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
            // The reply shows this client that it has won; the next ones find the right taken.
            bits: bit::WIN_SENT | read,
            version: get.version,
            ..Fresh::default()
        };
        let Some(chunk) = self.store(request, None, &[], &fresh) else {
            return absent.reply(Status::OutOfMemory);
        };
        let item = Item {
            fetched: false,
            win_sent: false,
            won: true,
            ..self.item(chunk)
        };
        Reply {
            made: true,
            ..Reply::with(Status::Done, item)
        }
    }
}

/// Returns whether this reader wins the right to recache the item: the first reader since the item
/// became stale, or since its time left fell below `recache`.
fn wins(clock: &Clock, get: &Get, header: &ChunkHeader, bits: u8) -> bool {
    if bits & bit::WIN_SENT != 0 {
        return false;
    }
    (bits & bit::STALE != 0 && !get.unaware)
        || get.recache.is_some_and(|exptime| {
            let deadline = match get.touch {
                Some(touch) if get.touch_first => clock.deadline(touch),
                _ => header.deadline,
            };
            deadline != Deadline::NEVER && deadline.0 < clock.deadline(exptime).0
        })
}
