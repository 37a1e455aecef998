//! Store mode: nothing is evicted, and a put without room is refused with
//! [`Status::OutOfMemory`].

use herdwick_layout::item::{ALIGN, footprint};
use herdwick_request::{Mode, Op, Put, Reply, Request, Status};

use crate::{evict::Keep, old_end::Oldest, store::Store};

/// Live items may take at most this part of the log. The walk along the old end then reclaims at
/// least one dead byte for every three live ones that it copies.
const LIVE: (usize, usize) = (3, 4);
/// Number of items that a request cleans at the old end before it is refused, so that room that one
/// short walk reclaims is not missed ...
const LAST_CHECK: usize = 32;
/// ... but not more than so many times the bytes that it stores, and one of the largest items.
const LAST_CHECK_RATE: usize = 4;
/// Maximum digits of a 64-bit number.
const DIGITS: usize = 20;

impl Store {
    /// Turns eviction off. A request that would make live items take more than three quarters of
    /// the log or 17 twentieths of the segments, or whose part of the index is full, then fails
    /// with [`Status::OutOfMemory`].
    pub fn evict_nothing(&mut self) {
        self.lossless = true;
    }

    /// Makes room for what the request may store. Returns the refusal if there is no room, else
    /// `None`.
    #[cold]
    pub(crate) fn prepare(&mut self, request: &Request<'_>) -> Option<Reply<'static>> {
        if matches!(&request.op, Op::Put(put) if put.staged.is_some()) {
            // The reservation is its room.
            return None;
        }
        let hit = self.seek(request).ok();
        let value_len = hit.map_or(0, |hit| self.items.header(hit.at).value_len());
        let joins = |put: &Put<'_>| matches!(put.mode, Mode::Append | Mode::Prepend);
        let stored = match &request.op {
            Op::Put(put) if joins(put) => value_len + put.value.len(),
            Op::Put(put) => put.value.len(),
            Op::Arith(_) => value_len.max(DIGITS),
            Op::Get(get) if get.vivify.is_some() => 0,
            Op::Delete(delete) if delete.drop_value => 0,
            Op::Delete(delete) if delete.invalidate && self.writes_beside() => value_len,
            Op::Get(_) | Op::Delete(_) => return None,
        };
        // What a delete stores is no larger than what was stored when larger items were allowed.
        if !matches!(&request.op, Op::Delete(_)) && self.too_large(request.key, stored) {
            return None;
        }
        let old = hit.map_or(0, |hit| self.items.header(hit.at).footprint());
        let len = footprint(request.key.len(), stored);
        let has_slot = hit.is_some() || self.index.has_way(request.hash);
        // A joined value is written beside the old one, which is read meanwhile.
        let in_place = len == old
            && !self.writes_beside()
            && !matches!(&request.op, Op::Put(put) if joins(put));
        if in_place || (has_slot && self.make_room(old, len)) {
            return None;
        }
        if let Op::Put(put) = &request.op {
            self.drop_old(request, put);
        }
        Some(Reply::bare(Status::OutOfMemory))
    }

    /// Returns whether an item of `len` bytes can replace one of `old` bytes without evicting
    /// another. Cleans up to [`LAST_CHECK`] items for it.
    pub(crate) fn make_room(&mut self, old: usize, len: usize) -> bool {
        if self.segmented() {
            return self.make_segment_room(old, len);
        }
        let most = len * LAST_CHECK_RATE + self.largest();
        let end = self.log.head().passed() + most as u64;
        for _ in 0..LAST_CHECK {
            if self.fits(old, len) {
                return true;
            }
            if self.log.head().passed() >= end || !self.clean_oldest() {
                return false;
            }
        }
        self.fits(old, len)
    }

    fn fits(&self, old: usize, len: usize) -> bool {
        let live = self.live() - old + len;
        live <= self.log.share(LIVE) && self.log.free() >= self.log.needs(len) + self.spare()
    }

    /// Returns the bytes that stay free: room to copy the largest item at the old end, and as much
    /// again for what that skips at the physical end.
    fn spare(&self) -> usize {
        2 * (self.item_bytes_max.next_multiple_of(ALIGN) + ALIGN)
    }

    /// Copies the oldest item to the young end, or releases it if it is dead. Returns whether it
    /// did; false if the log is empty or has no room for a copy.
    pub(crate) fn clean_oldest(&mut self) -> bool {
        let Some(Oldest { at, .. }) = self.peek_oldest() else {
            return false;
        };
        let len = self.items.header(at).footprint();
        if self.log.needs(len) > self.log.free() {
            return false;
        }
        self.release_oldest(Keep::All(None));
        true
    }
}
