//! Stores of new values: in place where the size is unchanged, else in new room, with
//! index and counters kept in step.

use herdwick_layout::{
    bucket::Offset,
    item::{Form, Header, bit, footprint},
};
use herdwick_request::{Deadline, KeyHash, Request};

use crate::{
    index::Place,
    segments::Past,
    store::{Hit, Store},
    uses,
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
    /// Stores a value: in place if `old` has the same footprint, in its own form or a longer one, else
    /// as a new item. Returns where it is, and its header.
    #[inline(always)]
    pub(crate) fn store(
        &mut self,
        request: &Request<'_>,
        old: Option<Hit>,
        value: &[u8],
        fresh: &Fresh,
    ) -> (Offset, Header) {
        let mut header = self.header(request.key, value.len(), fresh);
        if let Some(hit) = old
            && !self.writes_beside()
        {
            let old = self.items.header(hit.at);
            // A longer form than it needs is kept where the place fits: then nothing moves.
            let form = header.form.max(old.form);
            let is_alike = (form, value.len()) == (old.form, old.value_len());
            if is_alike || footprint(form, request.key.len(), value.len()) == old.footprint() {
                header.form = form;
                // A value that is written again is in use: it inherits the uses, and this is one of
                // them.
                let uses = self.count_use(hit.at, old.bits);
                header.bits |= uses & (bit::USED | bit::LEVEL);
                // The key stays where it is, and is not written.
                if header.form == old.form {
                    self.items.overwrite(hit.at, &header, value);
                } else {
                    self.items.write(hit.at, &header, request.key, value);
                }
                // Its segment is to last as long; for the deadline before it does.
                if fresh.deadline != old.deadline {
                    self.segments.defer(hit.at, fresh.deadline);
                }
                return (hit.at, header);
            }
        }
        self.store_anew(request, old, value, header)
    }

    #[inline(never)]
    fn store_anew(
        &mut self,
        request: &Request<'_>,
        old: Option<Hit>,
        value: &[u8],
        mut header: Header,
    ) -> (Offset, Header) {
        let len = header.footprint();
        // First: the old item may be gone when room was made.
        let past = self.inherit(old, &mut header);
        if let Some(old) = old
            && self.writes_beside()
        {
            self.make_way(header.deadline, len, past);
            let at = self.take(&header, past);
            self.items.write(at, &header, request.key, value);
            return (self.replace(request.hash, old, at), header);
        }
        // Before room is made, so that the room of the old item may be part of it.
        let place = old.map(|hit| self.unlink(hit));
        self.make_way(header.deadline, len, past);
        let at = self.take(&header, past);
        self.items.write(at, &header, request.key, value);
        self.link(request.hash, place, at, len);
        self.segments.commit(at);
        (at, header)
    }

    /// Gives the header of an item the uses of the one that it replaces, the store included, and returns
    /// since when they were counted.
    fn inherit(&mut self, old: Option<Hit>, header: &mut Header) -> Past {
        let Some(hit) = old else {
            return Past::NONE;
        };
        let bits = self.items.header(hit.at).bits;
        let bits = uses::after_copy(uses::after_use(bits, || self.draw()));
        header.bits = bit::with_level(header.bits, bit::level(bits)) & !bit::USED;
        self.segments.past(hit.at)
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
        let form = self.form(fresh, value_len);
        let len = footprint(form, request.key.len(), value_len);
        let old = self.make_way_beside(request, old.at, fresh.deadline, len)?;
        let mut header = self.header(request.key, value_len, fresh);
        let past = self.inherit(Some(old), &mut header);
        Some(self.write_around(request, old, (front, back), (&header, past)))
    }

    /// Changes the deadline of the item at `at`; one whose form has none is written anew. Returns where
    /// it is now; `None` if there was no room for it.
    #[inline]
    pub(crate) fn set_deadline(
        &mut self,
        request: &Request<'_>,
        at: Offset,
        deadline: Deadline,
    ) -> Option<Offset> {
        let header = self.items.header(at);
        if header.deadline == deadline {
            return Some(at);
        }
        if header.form == Form::Compact {
            let header = Header { deadline, ..header };
            return self.set_header(request, at, &header);
        }
        self.items.touch(at, deadline);
        self.segments.defer(at, deadline);
        Some(at)
    }

    /// Changes the header of the item at `at`, but not its lengths. As [`Self::set_deadline`].
    pub(crate) fn set_header(
        &mut self,
        request: &Request<'_>,
        at: Offset,
        header: &Header,
    ) -> Option<Offset> {
        let header = header.fitting();
        if header.form != self.items.header(at).form {
            return self.store_reformed(request, at, &header);
        }
        self.items.amend(at, &header);
        self.segments.defer(at, header.deadline);
        Some(at)
    }

    /// Replaces the item at `at` by one with the same value and a header of another form. `None` if
    /// there is no room for it.
    #[cold]
    fn store_reformed(
        &mut self,
        request: &Request<'_>,
        at: Offset,
        header: &Header,
    ) -> Option<Offset> {
        let len = header.footprint();
        if self.lossless && !self.make_room(self.items.header(at).footprint(), len) {
            return None;
        }
        let old = self.make_way_beside(request, at, header.deadline, len)?;
        // Another form is no use: they stay what they are, or became when it was copied for the room.
        let uses = bit::USED | bit::LEVEL;
        let bits = header.bits & !uses | self.items.header(old.at).bits & uses;
        let past = self.segments.past_whole(old.at);
        Some(self.write_around(
            request,
            old,
            (&[], &[]),
            (&Header { bits, ..*header }, past),
        ))
    }

    /// Makes room for a new item of `len` bytes that the one at `old` is read for, which is kept
    /// meanwhile. Returns where that is now; `None` if there was no room to keep it.
    fn make_way_beside(
        &mut self,
        request: &Request<'_>,
        at: Offset,
        deadline: Deadline,
        len: usize,
    ) -> Option<Hit> {
        // While room is made it may be copied elsewhere, but not evicted.
        self.protected = Some(at);
        let past = self.segments.past(at);
        self.make_way(deadline, len, past);
        self.protected = None;
        // Looked up again, because it may have been copied.
        self.seek(request).ok()
    }

    /// Writes an item with the value `front`, the value of `old`, `back`, in place of `old`.
    fn write_around(
        &mut self,
        request: &Request<'_>,
        old: Hit,
        (front, back): (&[u8], &[u8]),
        (header, past): (&Header, Past),
    ) -> Offset {
        let run = self.items.value_run(old.at);
        // In a file the new item is complete before the old one goes, in a cache, too.
        if self.items.sums {
            let at = self.take(header, past);
            self.items
                .write_around(at, header, request.key, (front, run, back));
            return self.replace(request.hash, old, at);
        }
        // Its segment may be free from here on: the new item may lie over the old one.
        let place = self.unlink(old);
        let at = self.take(header, past);
        self.items
            .write_around(at, header, request.key, (front, run, back));
        self.link(request.hash, Some(place), at, header.footprint());
        self.segments.commit(at);
        at
    }

    /// Replaces the item of a key by one with another header of the same lengths, and its value
    /// changed by `edit`: for a store that [`Self::writes_beside`], which has made room. `None` if
    /// there was none.
    pub(crate) fn store_edited(
        &mut self,
        request: &Request<'_>,
        header: &Header,
        edit: impl FnOnce(&mut [u8]),
    ) -> Option<Offset> {
        if !self.make_way(header.deadline, header.footprint(), Past::NONE) {
            return None;
        }
        let old = self.seek(request).ok()?;
        let run = self.items.value_run(old.at);
        let at = self.take(header, Past::NONE);
        self.items
            .write_around(at, header, request.key, (&[], run, &[]));
        edit(self.items.value_mut(at));
        // The copy of the old value was sealed; its edit has changed that.
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
        // In this order a kill leaves the old item, both, or the new one, and a reader in another
        // process finds one of them: the new one is complete, then it is found, then the old one is
        // marked dead.
        self.segments.commit(at);
        let before = self.items.header(old.at);
        self.counters.bytes += self.items.header(at).footprint() as u64;
        self.counters.bytes -= before.footprint() as u64;
        self.index.point(old.place, hash, at);
        self.bury(old.at, &before);
        at
    }

    /// Removes an item from the index and the counters, and marks it dead where it lies. Returns its
    /// place, now free.
    pub(crate) fn unlink(&mut self, hit: Hit) -> Place {
        self.index.remove(hit.place);
        let header = self.items.header(hit.at);
        self.bury(hit.at, &header);
        self.counters.items -= 1;
        self.counters.bytes -= header.footprint() as u64;
        hit.place
    }

    /// Marks an item with this header dead where it lies.
    pub(crate) fn bury(&mut self, at: Offset, header: &Header) {
        if self.items.sums {
            self.items.bury(at);
        }
        self.segments.bury(at, header.footprint(), header.bits);
    }

    /// Counts a use of an item. Returns its new bits.
    #[inline]
    pub(crate) fn count_use(&mut self, at: Offset, bits: u8) -> u8 {
        let counted = uses::after_use(bits, || self.draw());
        // Most uses of a hot item leave its bits, and so the table, as they are.
        if counted != bits {
            self.segments.used(at, bits, counted);
        }
        counted
    }

    /// Returns 32 bits of a sequence that is random enough to sample uses (Numerical Recipes' LCG).
    #[inline]
    fn draw(&mut self) -> u32 {
        self.drawn = self
            .drawn
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        self.drawn
    }

    /// Returns the form of a new item. A store that evicts nothing writes all in the longest: so what it
    /// has room for depends on lengths alone, and a touch needs none.
    #[inline]
    fn form(&self, fresh: &Fresh, value_len: usize) -> Form {
        // The version that `next_version` will assign.
        let version = fresh.version.unwrap_or(self.sequence + 1);
        match self.lossless {
            true => Form::Full,
            false => Form::of(fresh.flags, fresh.deadline, version, value_len),
        }
    }

    #[inline(always)]
    pub(crate) fn header(&mut self, key: &[u8], value_len: usize, fresh: &Fresh) -> Header {
        let form = self.form(fresh, value_len);
        let version = match fresh.version {
            Some(version) => version,
            None => self.next_version(),
        };
        self.counters.total_items += 1;
        Header {
            key_len: key.len() as u8,
            bits: fresh.bits,
            form,
            value_len: value_len as u32,
            flags: fresh.flags,
            deadline: fresh.deadline,
            version,
            accessed: self.now.0,
        }
    }

    /// Counts a new item of `len` bytes, which is complete, and points an index entry to it: the one at
    /// `place`, or a new one.
    #[inline]
    fn link(&mut self, hash: KeyHash, place: Option<Place>, at: Offset, len: usize) {
        self.counters.items += 1;
        self.counters.bytes += len as u64;
        match place {
            Some(place) => self.index.point(place, hash, at),
            None => self.insert(hash, at),
        }
    }

    pub(crate) fn insert(&mut self, hash: KeyHash, at: Offset) {
        let segments = &self.segments;
        if let Some(loser) = self.index.insert(hash, at, |at| segments.age(at)) {
            self.drop_loser(loser);
        }
    }

    pub(crate) fn drop_loser(&mut self, loser: Offset) {
        let header = self.items.header(loser);
        let gone = self.is_gone(loser, &header);
        // One that had expired is no loss.
        self.counters.index_evictions += u64::from(!gone);
        self.count_dropped((loser, &header), gone);
        self.bury(loser, &header);
    }

    /// Returns the bytes of live items and reservations.
    #[inline]
    pub(crate) fn live(&self) -> usize {
        self.counters.bytes as usize + self.staging.reserved
    }

    /// Returns the bytes that the largest item takes.
    pub(crate) fn largest(&self) -> usize {
        // `item_bytes_max` includes header and key, so no item takes more.
        footprint(Form::Full, 0, self.item_bytes_max)
    }
}
