//! Stores of new values: in place where the size is unchanged, else in new room, with
//! index and counters kept in step.

use herdwick_layout::{
    bucket::Offset,
    item::{Header, bit, check, footprint, shape},
};
use herdwick_request::{Deadline, KeyHash, Request};

use crate::{
    index::Place,
    store::{Hit, Store},
};

/// The attributes of an item about to be stored, besides key and value.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fresh {
    pub(crate) flags: u32,
    pub(crate) deadline: Deadline,
    pub(crate) bits: u8,
    /// `None` for the next version.
    pub(crate) version: Option<u64>,
}

impl Store {
    /// Stores a value: in place if `old` has the same footprint, else as a new item.
    #[inline(always)]
    pub(crate) fn store(
        &mut self,
        request: &Request<'_>,
        old: Option<Hit>,
        value: &[u8],
        fresh: &Fresh,
    ) -> Offset {
        let len = footprint(request.key.len(), value.len());
        match old {
            Some(hit) if self.items.header(hit.at).footprint() == len && !self.writes_beside() => {
                let mut header = self.header(request.key, value.len(), fresh);
                let old = self.items.header(hit.at).bits;
                let uses = self.count_use(hit.at, old) & bit::COUNT;
                header.bits = (header.bits & !bit::COUNT) | uses;
                self.items.overwrite(hit.at, header, value);
                self.segments.defer(hit.at, fresh.deadline);
                hit.at
            }
            _ => self.store_anew(request, old, value, fresh),
        }
    }

    #[inline(never)]
    fn store_anew(
        &mut self,
        request: &Request<'_>,
        old: Option<Hit>,
        value: &[u8],
        fresh: &Fresh,
    ) -> Offset {
        let header = self.header(request.key, value.len(), fresh);
        let len = header.footprint();
        if let Some(old) = old
            && self.writes_beside()
        {
            self.make_way(fresh.deadline, len);
            let at = self.take(&header);
            self.items.write(at, header, request.key, value);
            return self.replace(request.hash, old, at);
        }
        let place = old.map(|hit| self.unlink(hit));
        self.make_way(fresh.deadline, len);
        let at = self.claim(request.hash, place, &header);
        self.items.write(at, header, request.key, value);
        self.segments.commit(at);
        at
    }

    /// Replaces `old` by an item with the value `front`, the value of `old`, `back`. Room is made
    /// while the old item is live, and is kept so; `None` if there was none to keep it.
    pub(crate) fn store_around(
        &mut self,
        request: &Request<'_>,
        old: Hit,
        (front, back): (&[u8], &[u8]),
        fresh: &Fresh,
    ) -> Option<Offset> {
        let value_len = front.len() + self.items.header(old.at).value_len() + back.len();
        self.protected = Some(old.at);
        self.make_way(fresh.deadline, footprint(request.key.len(), value_len));
        self.protected = None;
        let old = self.seek(request).ok()?;
        let run = self.items.value_run(old.at);
        let header = self.header(request.key, value_len, fresh);
        if self.writes_beside() {
            let at = self.take(&header);
            self.items
                .write_around(at, header, request.key, (front, run, back));
            return Some(self.replace(request.hash, old, at));
        }
        // Its segment may be free from here on: the new item may lie over the old one.
        let place = self.unlink(old);
        let at = self.claim(request.hash, Some(place), &header);
        self.items
            .write_around(at, header, request.key, (front, run, back));
        self.segments.commit(at);
        Some(at)
    }

    /// Replaces the item of a key by one with another header of the same lengths, and its value
    /// changed by `edit`: for a store that [`Self::writes_beside`], which has made room. `None` if
    /// there was none.
    pub(crate) fn store_edited(
        &mut self,
        request: &Request<'_>,
        header: Header,
        edit: impl FnOnce(&mut [u8]),
    ) -> Option<Offset> {
        if !self.make_way(header.deadline(), header.footprint()) {
            return None;
        }
        let old = self.seek(request).ok()?;
        let run = self.items.value_run(old.at);
        let at = self.take(&header);
        self.items
            .write_around(at, header, request.key, (&[], run, &[]));
        edit(self.items.value_mut(at));
        self.items.seal(at);
        Some(self.replace(request.hash, old, at))
    }

    /// Returns whether a new value is complete in another place before the old one goes, so that a
    /// kill at any instant leaves one of them.
    pub(crate) fn writes_beside(&self) -> bool {
        self.lossless && self.items.sums
    }

    /// Makes the item at `at`, which is complete, that of its key, in place of `old`.
    pub(crate) fn replace(&mut self, hash: KeyHash, old: Hit, at: Offset) -> Offset {
        self.segments.commit(at);
        self.counters.bytes += self.items.header(at).footprint() as u64;
        self.counters.bytes -= self.items.header(old.at).footprint() as u64;
        self.index.point(old.place, hash, at);
        self.bury(old.at, self.items.header(old.at).footprint());
        at
    }

    /// Removes an item from the index and the counters, and marks it dead where it lies. Returns its
    /// place, now free.
    pub(crate) fn unlink(&mut self, hit: Hit) -> Place {
        self.index.remove(hit.place);
        let len = self.items.header(hit.at).footprint();
        self.bury(hit.at, len);
        self.counters.items -= 1;
        self.counters.bytes -= len as u64;
        hit.place
    }

    /// Marks an item of `len` bytes dead where it lies.
    pub(crate) fn bury(&mut self, at: Offset, len: usize) {
        if self.items.sums {
            self.items.bury(at);
        }
        self.segments.release(at, len);
    }

    /// Counts a use of an item. Returns its new bits.
    #[inline]
    pub(crate) fn count_use(&mut self, at: Offset, bits: u8) -> u8 {
        let counted = bit::counted(bits);
        if counted != bits {
            self.segments.used(at);
        }
        counted
    }

    #[inline]
    pub(crate) fn header(&mut self, key: &[u8], value_len: usize, fresh: &Fresh) -> Header {
        let version = match fresh.version {
            Some(version) => version,
            None => self.next_version(),
        };
        self.counters.total_items += 1;
        Header {
            key_len: key.len() as u8,
            bits: bit::with_count(fresh.bits, 1),
            generation: self.generation.into(),
            check: check(0, fresh.deadline),
            last_access: self.now.0.into(),
            version: version.into(),
            shape: shape(value_len, fresh.flags),
        }
    }

    /// Takes room that [`Self::make_way`] has made, and points an index entry there: the one at
    /// `place`, or a new one. The caller writes the item at once. The previous contents stay readable
    /// until then.
    fn claim(&mut self, hash: KeyHash, place: Option<Place>, header: &Header) -> Offset {
        let at = self.take(header);
        self.counters.items += 1;
        self.counters.bytes += header.footprint() as u64;
        match place {
            Some(place) => self.index.point(place, hash, at),
            None => self.insert(hash, at),
        }
        at
    }

    pub(crate) fn insert(&mut self, hash: KeyHash, at: Offset) {
        let segments = &self.segments;
        if let Some(loser) = self.index.insert(hash, at, |at| segments.age(at)) {
            self.counters.index_evictions += u64::from(!self.gone(loser));
            let len = self.items.header(loser).footprint();
            self.count_dropped(loser);
            self.bury(loser, len);
        }
    }

    /// Returns the bytes of live items and reservations.
    #[inline]
    pub(crate) fn live(&self) -> usize {
        self.counters.bytes as usize + self.staging.reserved
    }

    /// Returns the bytes that the largest item takes.
    pub(crate) fn largest(&self) -> usize {
        footprint(0, self.item_bytes_max)
    }
}
