//! Stores at the young end of the log: in place where the size is unchanged, else in new room, with
//! index and counters kept in step.

use herdwick_layout::{
    bucket::Offset,
    item::{Header, bit, footprint, shape},
};
use herdwick_request::{Deadline, KeyHash, Request};

use crate::{
    evict::Keep,
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
            Some(hit) if self.items.header(hit.at).footprint() == len => {
                let mut header = self.header(request.key, value.len(), fresh);
                header.bits |= bit::used(self.items.header(hit.at).bits) & bit::USES;
                self.items.overwrite(hit.at, header, value);
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
        let place = old.map(|hit| self.unlink(hit));
        self.take_in(len);
        self.run_ahead(len, self.log.tail());
        self.let_go(len, None);
        let at = self.claim(request.hash, place, len);
        self.items.write(at, header, request.key, value);
        self.log.commit();
        at
    }

    /// Replaces `old` by an item with the value `front`, the value of `old`, `back`.
    pub(crate) fn store_around(
        &mut self,
        request: &Request<'_>,
        old: Hit,
        (front, back): (&[u8], &[u8]),
        fresh: &Fresh,
    ) -> Offset {
        let run = self.items.value_run(old.at);
        let header = self.header(request.key, front.len() + run.len + back.len(), fresh);
        let len = header.footprint();
        self.take_in(len);
        self.let_go(len, Some(old.at));
        // The old value is read from its released room. So until then no item may be copied to
        // the young end, which could overwrite it; only the new item may, in `write_around`.
        let place = self.unlink(old);
        let tail = self.log.tail();
        let at = self.claim(request.hash, Some(place), len);
        self.items
            .write_around(at, header, request.key, (front, run, back));
        self.log.commit();
        self.run_ahead(len, tail);
        at
    }

    /// Removes an item from the index and the counters, and marks it dead in the log. Its room is
    /// reclaimed when the head reaches it. Returns its place, now free.
    pub(crate) fn unlink(&mut self, hit: Hit) -> Place {
        self.index.remove(hit.place);
        self.items.bury(hit.at);
        self.counters.items -= 1;
        self.counters.bytes -= self.items.header(hit.at).footprint() as u64;
        hit.place
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
            bits: fresh.bits,
            generation: self.generation.into(),
            crc: 0.into(),
            deadline: fresh.deadline.0.into(),
            last_access: self.now.0.into(),
            version: version.into(),
            shape: shape(value_len, fresh.flags),
        }
    }

    /// Reserves `len` bytes at the young end, evicting items to make room, and points an index
    /// entry there: the one at `place`, or a new one. The caller writes the item at once. The
    /// previous contents stay readable until then.
    fn claim(&mut self, hash: KeyHash, place: Option<Place>, len: usize) -> Offset {
        while self.log.free() < self.log.needs(len) {
            self.release_oldest(Keep::None);
        }
        let at = self.log.reserve(&mut self.items, len);
        self.counters.items += 1;
        self.counters.bytes += len as u64;
        match place {
            Some(place) => self.index.point(place, hash, at),
            None => self.insert(hash, at),
        }
        at
    }

    pub(crate) fn insert(&mut self, hash: KeyHash, at: Offset) {
        let log = &self.log;
        if let Some(loser) = self.index.insert(hash, at, |at| log.age(at)) {
            self.counters.index_evictions += u64::from(!self.gone(loser));
            self.count_dropped(loser);
            self.items.bury(loser);
        }
    }
}
