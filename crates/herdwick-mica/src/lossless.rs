//! Store mode: nothing is evicted, and a put without room is refused with
//! [`Status::OutOfMemory`].

use herdwick_layout::item::{Form, footprint};
use herdwick_request::{Mode, Op, Put, Reply, Request, Status};

use crate::store::Store;

/// Maximum digits of a 64-bit number.
const DIGITS: usize = 20;

impl Store {
    /// Turns eviction off. A request that would make live items take more than 17 twentieths of the
    /// segments, or leave no room for two of the largest, or whose part of the index is full, then
    /// fails with [`Status::OutOfMemory`].
    pub fn evict_nothing(&mut self) {
        self.lossless = true;
        if self.reserve_for_index(self.index.bytes_most()) {
            self.index.grow_at_once();
        }
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
        let len = footprint(Form::Full, request.key.len(), stored);
        let has_slot = hit.is_some() || self.index.make_chain(request.hash);
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
}
