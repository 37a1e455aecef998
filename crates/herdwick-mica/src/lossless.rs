//! Store mode: nothing is evicted, and what there is no room for is refused.

use crate::{
    Mode, Op, Reply, Request, Status,
    evict::{Keep, Oldest},
    item::{ALIGN, footprint},
    store::Store,
};

/// Live items may take this part of the log: to find room, the walk along its old end then meets
/// at least one dead byte for three live ones that it copies.
const LIVE: (usize, usize) = (3, 4);
/// What a request that is about to be refused may look at, so that it is not for want of looking.
const LAST_CHECK: usize = 32;
/// Most digits of a number.
const DIGITS: usize = 20;

impl Store {
    /// Evicts nothing from now on. What there is no room for is answered with
    /// [`Status::OutOfMemory`]: as soon as live items, with what is to be stored, take more than
    /// three quarters of the log, or the key's part of the index is full.
    pub fn evict_nothing(&mut self) {
        self.lossless = true;
    }

    /// Makes room for what the request may store; or the answer, if there is none.
    #[cold]
    pub(crate) fn prepare(&mut self, request: &Request<'_>) -> Option<Reply<'static>> {
        if matches!(&request.op, Op::Put(put) if put.staged.is_some()) {
            // It has its room.
            return None;
        }
        let hit = self.seek(request).ok();
        let value_len = hit.map_or(0, |hit| self.log.header(hit.at).value_len());
        let stored = match &request.op {
            Op::Put(put) if matches!(put.mode, Mode::Append | Mode::Prepend) => {
                value_len + put.value.len()
            }
            Op::Put(put) => put.value.len(),
            Op::Arith(_) => value_len.max(DIGITS),
            Op::Get(get) if get.vivify.is_some() => 0,
            Op::Delete(delete) if delete.drop_value => 0,
            Op::Get(_) | Op::Delete(_) => return None,
        };
        if self.too_large(request.key, stored) {
            return None;
        }
        let old = hit.map_or(0, |hit| self.log.header(hit.at).footprint());
        let len = footprint(request.key.len(), stored);
        let has_slot = hit.is_some() || self.index.has_way(request.hash);
        if len == old || (has_slot && self.make_room(old, len)) {
            return None;
        }
        if let Op::Put(put) = &request.op {
            self.drop_old(request, put);
        }
        Some(Reply::bare(Status::OutOfMemory))
    }

    /// Whether `len` bytes in the place of `old` can be stored without a loss, now or ever.
    pub(crate) fn make_room(&mut self, old: usize, len: usize) -> bool {
        for _ in 0..LAST_CHECK {
            if self.fits(old, len) {
                return true;
            }
            if !self.clean_oldest() {
                return false;
            }
        }
        self.fits(old, len)
    }

    fn fits(&self, old: usize, len: usize) -> bool {
        let live = self.counters.bytes as usize + self.staging.reserved - old + len;
        live <= self.log.share(LIVE) && self.log.free() >= self.log.needs(len) + self.spare()
    }

    /// Bytes that stay free, so that the largest item at the old end can be copied, and what is
    /// skipped at the physical end on the way.
    fn spare(&self) -> usize {
        2 * (self.item_bytes_max.next_multiple_of(ALIGN) + ALIGN)
    }

    /// Copies the oldest item to the young end, or lets go of it if it is dead; whether it could.
    pub(crate) fn clean_oldest(&mut self) -> bool {
        let Some(Oldest { at, .. }) = self.peek_oldest() else {
            return false;
        };
        let len = self.log.header(at).footprint();
        if self.log.needs(len) > self.log.free() {
            return false;
        }
        self.release_oldest(Keep::All);
        true
    }
}
