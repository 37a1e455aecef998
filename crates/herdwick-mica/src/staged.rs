//! Staged puts: a large value is written to its final place in the store as it arrives.
//!
//! A reservation is an item without an index entry. A bit of its header marks it, and its checksum
//! covers header and key only: a walk over the store, after a kill too, finds a dead item of known
//! length. In segments it is moved when its segment has to be cleared. At the old end of a log it
//! is carried over to the young end, with the part of the value that has arrived. Where a copy is
//! not safe, because released bytes are still to be read, it waits outside the log until the
//! request is done. [`Store::take_in`] bounds the bytes that one request may move; a reservation in
//! the way beyond that is dropped, and its put refused.

use herdwick_layout::{
    bucket::Offset,
    item::{HEADER, Header, bit, footprint, shape},
};
use herdwick_request::{Clock, Mode, Put, Reply, Request, Second, Staged, Status};

use crate::{
    evict::Keep,
    reservations::{Id, Location, Reservation},
    room::Fresh,
    store::{Hit, Store},
};

/// Reservations may take at most this part of the log, so that the rest always has room for the
/// largest item and for what it skips at the physical end.
const RESERVED: (usize, usize) = (3, 8);

impl Store {
    /// Returns how many values of the maximum size may be staged at a time, under the limit of
    /// [`Store::leave_unused`]: before a lower one is reached, too, and once [`Store::adjust`] has
    /// carried out a higher one.
    #[must_use]
    pub fn staged_max(&self) -> usize {
        let most = if self.segmented() {
            self.segments.usable() / RESERVED.1 * RESERVED.0
        } else {
            self.reserved_max(self.window)
        };
        most / self.largest().max(1)
    }

    /// Returns the bytes that may be reserved: [`RESERVED`], and under a limit on the memory no more
    /// than leaves room for the largest items.
    fn reserved_max(&self, window: usize) -> usize {
        let part = self.items.len() / RESERVED.1 * RESERVED.0;
        if window == self.log.len() {
            return part;
        }
        part.min(self.reserved_under(window))
    }

    /// Reserves room for a value of `value_len` bytes. Readable items do not change, but may be
    /// evicted. A refusal is reported at the end, by the [`Put`]: where reservations would exceed
    /// three eighths of the log, or where the store would refuse the put at once. A limit on the
    /// memory refuses none: it may have been lowered since the value was admitted by the number of
    /// [`Self::staged_max`].
    pub fn stage(&mut self, now: Second, key: &[u8], value_len: usize) -> Staged {
        Staged::new(self.reserve(now, key, value_len).0, value_len)
    }

    fn reserve(&mut self, now: Second, key: &[u8], value_len: usize) -> Id {
        self.tick(now);
        let len = footprint(key.len(), value_len);
        let reserved = self.staging.reserved + len;
        let refusal = if self.too_large(key, value_len) {
            Some(Status::TooLarge)
        } else if key.is_empty() || key.len() > herdwick_request::KEY_BYTES_MAX {
            Some(Status::BadKey)
        } else if reserved > self.reserved_max(self.log.len())
            || self.lossless && !self.make_room(0, len)
        {
            Some(Status::OutOfMemory)
        } else {
            None
        };
        if let Some(status) = refusal {
            return self.staging.add(Location::Refused(status), 0, value_len);
        }
        let at = if self.segmented() {
            self.take_staged(len)
        } else {
            self.widen(reserved);
            self.take_in(len);
            self.run_ahead(len, self.log.tail());
            self.let_go(len, None);
            self.log.reserve(&mut self.items, len)
        };
        let id = self.staging.add(Location::At(at), len, value_len);
        let header = Header {
            key_len: key.len() as u8,
            bits: bit::STAGED,
            generation: 0.into(),
            check: 0.into(),
            last_access: now.0.into(),
            version: id.0.get().into(),
            shape: shape(value_len, 0),
        };
        self.items.stage(at, header, key);
        self.commit(at);
        self.settle();
        id
    }

    /// Returns the room for the rest of the value; empty if the value is complete or refused.
    /// Report the bytes written to it with [`Self::fill`].
    pub fn room(&mut self, staged: Staged) -> &mut [u8] {
        match self.staging.get(Id(staged.id())) {
            Some(&mut Reservation {
                place: Location::At(at),
                came,
                ..
            }) => &mut self.items.value_mut(at)[came..],
            _ => &mut [],
        }
    }

    /// Records that the first `count` bytes of [`Self::room`] have been written.
    pub fn fill(&mut self, staged: Staged, count: usize) {
        if let Some(reservation) = self.staging.get(Id(staged.id())) {
            let lacking = reservation.value_len - reservation.came;
            reservation.came += count.min(lacking);
        }
    }

    /// Appends to the value. Bytes beyond its length, or of a refused value, are dropped.
    pub fn append(&mut self, staged: Staged, bytes: &[u8]) {
        let room = self.room(staged);
        let count = bytes.len().min(room.len());
        room[..count].copy_from_slice(&bytes[..count]);
        self.fill(staged, bytes.len());
    }

    /// Ends a reservation without storing the value. Its room is reclaimed like a deleted item's.
    pub fn abort(&mut self, staged: Staged) {
        if let Some(reservation) = self.staging.take(Id(staged.id()))
            && let Location::At(at) = reservation.place
        {
            self.drop_staged(at, reservation.footprint);
        }
    }

    /// Gives up the room of a reservation that has ended.
    fn drop_staged(&mut self, at: Offset, len: usize) {
        if self.segmented() {
            self.segments.drop_staged(at, len);
        }
    }

    /// Returns the bytes that the reservation at `at` takes, and those that have arrived with its
    /// header and key; `None` if it has ended or moved.
    pub(crate) fn staged_at(&mut self, at: Offset) -> Option<(usize, usize)> {
        let header = *self.items.header(at);
        let reservation = self.staging.live_at(&header, at)?;
        let front = HEADER + usize::from(header.key_len);
        Some((reservation.footprint, front + reservation.came))
    }

    /// Records that the reservation at `at` was moved, or has to be refused.
    pub(crate) fn move_staged(&mut self, at: Offset, to: Option<Offset>) {
        let header = *self.items.header(at);
        let Some(reservation) = self.staging.live_at(&header, at) else {
            return;
        };
        match to {
            Some(to) => reservation.place = Location::At(to),
            None => {
                let id = reservation.id;
                self.staging.refuse(id);
            }
        }
    }

    /// Executes a put of a staged value.
    #[cold]
    pub(crate) fn put_staged(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        put: &Put<'_>,
        staged: Staged,
    ) -> Reply<'_> {
        let Some(reservation) = self.staging.take(Id(staged.id())) else {
            return Reply::bare(Status::BadKey);
        };
        let at = match reservation.place {
            Location::Refused(status) => {
                self.drop_old(request, put);
                return Reply::bare(status);
            }
            Location::At(at) => at,
            Location::Aside(_) => return Reply::bare(Status::BadKey),
        };
        let len = reservation.footprint;
        if reservation.came < reservation.value_len || !self.items.is(at, request.key) {
            self.drop_staged(at, len);
            return Reply::bare(Status::BadKey);
        }
        // A value staged before the horizon but stored now must not count as flushed, so it moves.
        if matches!(put.mode, Mode::Append | Mode::Prepend) || self.is_beyond_horizon(at) {
            return self.put_elsewhere(clock, request, put, at);
        }
        let (old, judged) = match self.seek(request) {
            Ok(hit) if put.mode == Mode::Add => (Some(hit), Err(Reply::bare(Status::NotStored))),
            Ok(hit) => (Some(hit), self.judge_over(clock, put, hit)),
            Err(absent) => (None, Self::judge_new(clock, put, absent)),
        };
        let fresh = match judged {
            Ok(fresh) => fresh,
            Err(refusal) => {
                self.drop_staged(at, len);
                return refusal;
            }
        };
        if self.lossless && old.is_none() && !self.index.has_way(request.hash) {
            self.drop_staged(at, len);
            return Reply::bare(Status::OutOfMemory);
        }
        self.publish(request, old, at, &fresh);
        Reply::with(Status::Done, self.item(at))
    }

    /// Executes a put of a staged value that cannot stay in place, as an ordinary put of a copy.
    fn put_elsewhere(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        put: &Put<'_>,
        at: Offset,
    ) -> Reply<'_> {
        let value = self.items.value(at).to_vec();
        self.drop_staged(at, self.items.header(at).footprint());
        let put = Put {
            value: &value,
            staged: None,
            ..*put
        };
        let request = Request {
            op: herdwick_request::Op::Put(put),
            ..*request
        };
        self.mutate(clock, &request, Hit::default())
    }

    /// Makes a reservation the live item of its key.
    fn publish(&mut self, request: &Request<'_>, old: Option<Hit>, at: Offset, fresh: &Fresh) {
        let value_len = self.items.header(at).value_len();
        let header = self.header(request.key, value_len, fresh);
        if let Some(old) = old
            && self.writes_beside()
        {
            self.items.publish(at, header);
            self.settle_staged(at);
            self.replace(request.hash, old, at);
            return;
        }
        self.counters.items += 1;
        self.counters.bytes += header.footprint() as u64;
        let place = old.map(|hit| self.unlink(hit));
        self.items.publish(at, header);
        if self.segmented() {
            self.settle_staged(at);
        }
        match place {
            Some(place) => self.index.point(place, request.hash, at),
            None => self.insert(request.hash, at),
        }
    }

    /// Carries over a reservation at the old end, after its room has been released. Does nothing if
    /// the reservation has ended.
    #[cold]
    pub(crate) fn carry(&mut self, at: Offset, keep: Keep) {
        let header = *self.items.header(at);
        let Some(reservation) = self.staging.live_at(&header, at) else {
            return;
        };
        let (id, len) = (reservation.id, reservation.footprint);
        let came = HEADER + usize::from(header.key_len) + reservation.came;
        if self.staging.may_move == 0 {
            return self.staging.refuse(id);
        }
        self.staging.may_move = self.staging.may_move.saturating_sub(len);
        let may_write = !matches!(keep, Keep::None);
        let place = if may_write && self.log.needs(len) <= self.log.free() {
            let to = self.log.reserve(&mut self.items, len);
            self.items.copy(at, came, to);
            self.log.commit();
            Location::At(to)
        } else {
            self.staging.aside.push_back(id);
            Location::Aside(self.items.bytes(at, came).to_vec())
        };
        if let Some(reservation) = self.staging.get(id) {
            reservation.place = place;
        }
    }

    /// Returns reservations that wait outside to the log. Unreserved room can always be made: it is
    /// more than twice the largest item.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if !self.staging.aside.is_empty() {
            self.settle_all();
        }
    }

    #[cold]
    fn settle_all(&mut self) {
        while let Some(id) = self.staging.aside.pop_front() {
            let Some(len) = self.staging.get(id).map(|waits| waits.footprint) else {
                continue;
            };
            // At most one lap: releasing more cannot help after that.
            let lap = self.log.head().passed() + self.log.len() as u64;
            while self.log.free() < self.log.needs(len) && self.log.head().passed() < lap {
                let released = if self.lossless {
                    self.clean_oldest()
                } else {
                    let any = self.peek_oldest().is_some();
                    self.release_oldest(Keep::None);
                    any
                };
                if !released {
                    break;
                }
            }
            if self.log.free() < self.log.needs(len) {
                self.staging.refuse(id);
                continue;
            }
            let at = self.log.reserve(&mut self.items, len);
            let waits = self.staging.get(id).map(|waits| &mut waits.place);
            if let Some(place) = waits
                && let Location::Aside(bytes) = std::mem::replace(place, Location::At(at))
            {
                self.items.put_back(at, &bytes);
                self.log.commit();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StoreConfig, StoreKind};
    use herdwick_request::{Execute, HashKey, KeyHash, Op};

    const HASH_KEY: HashKey = HashKey([3, 4]);
    const CLOCK: Clock = Clock {
        epoch_unix: 0,
        second: Second(1),
    };
    const ITEM_BYTES_MAX: usize = 4 << 10;
    const VALUE: [u8; ITEM_BYTES_MAX] = [b'v'; ITEM_BYTES_MAX];

    fn store() -> Store {
        Store::new(&StoreConfig {
            memory_bytes: 256 << 10,
            item_bytes_max: ITEM_BYTES_MAX,
            hash_key: HASH_KEY,
            kind: StoreKind::Log,
        })
        .unwrap()
    }

    fn put_as(store: &mut Store, hash: KeyHash, key: &[u8], put: Put<'_>) -> Status {
        let op = Op::Put(put);
        let mut status = None;
        let request = Request { hash, key, op };
        store.execute(CLOCK, &[request], &mut |_, reply: &Reply<'_>| {
            status = Some(reply.status);
        });
        status.unwrap()
    }

    fn put(store: &mut Store, key: &[u8], put: Put<'_>) -> Status {
        put_as(store, HASH_KEY.hash(key), key, put)
    }

    fn set(store: &mut Store, key: &[u8], len: usize, mode: Mode) {
        let value = &VALUE[..len];
        let status = put(
            store,
            key,
            Put {
                mode,
                value,
                ..Put::default()
            },
        );
        assert_eq!(status, Status::Done);
    }

    fn ends(store: &mut Store, key: &[u8], staged: Staged) -> Status {
        let staged = Some(staged);
        put(
            store,
            key,
            Put {
                staged,
                ..Put::default()
            },
        )
    }

    /// Stages the maximum number of values, complete but not stored.
    fn stage_all(store: &mut Store) -> Vec<Staged> {
        let len = ITEM_BYTES_MAX - HEADER - 1;
        let most = store.staged_max() as u8;
        let stage = |key: u8| {
            let staged = store.stage(Second(1), &[key], len);
            store.append(staged, &VALUE[..len]);
            staged
        };
        (0..most).map(stage).collect()
    }

    /// No request moves more of the log than eight times the bytes that it stores and a few of the
    /// largest items, wherever the reservations lie.
    #[test]
    fn adjacent_reservations_are_moved_over_many_requests() {
        for (grow, used) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut store = store();
            for n in 0..2000u32 {
                set(&mut store, &n.to_le_bytes(), 200, Mode::Set);
            }
            assert!(store.counters().evictions > 0);
            let all = stage_all(&mut store);
            assert!(all.len() > 20, "{}", all.len());
            for n in 0..4000u32 {
                let key = if grow { n % 50 + 9000 } else { n + 9000 }.to_le_bytes();
                let mode = match store.seek(&Request {
                    hash: HASH_KEY.hash(&key),
                    key: &key,
                    op: Op::Put(Put::default()),
                }) {
                    Ok(hit) if grow && store.items.header(hit.at).value_len() < 2000 => {
                        Mode::Append
                    }
                    _ => Mode::Set,
                };
                let before = store.log.head().passed();
                set(&mut store, &key, 100, mode);
                let moved = store.log.head().passed() - before;
                let stored = if grow { 2200 } else { 136 };
                let most = 8 * stored + 4 * ITEM_BYTES_MAX as u64;
                assert!(moved <= most, "{moved} by request {n}");
                assert!(store.staging.aside.is_empty());
                if used {
                    let get = Op::Get(herdwick_request::Get::default());
                    let hash = HASH_KEY.hash(&key);
                    let request = Request {
                        hash,
                        key: &key,
                        op: get,
                    };
                    store.execute(CLOCK, &[request], &mut |_, _: &Reply<'_>| {});
                }
            }
            assert!(store.log.tail().passed() > 3 * store.log.len() as u64);
            for (key, staged) in (0..).zip(all) {
                assert_eq!(ends(&mut store, &[key], staged), Status::Done);
            }
        }
    }

    #[test]
    fn reservation_beyond_the_move_limit_is_aborted() {
        let mut store = store();
        let all = stage_all(&mut store);
        store.take_in(0);
        for _ in 0..all.len() {
            store.release_oldest(Keep::Used(None));
        }
        let ends: Vec<_> = (0..)
            .zip(all)
            .map(|(key, staged)| ends(&mut store, &[key], staged))
            .collect();
        let done = ends.iter().take_while(|&&status| status == Status::Done);
        assert_eq!(done.count(), 1, "the largest item");
        assert!(ends[1..].iter().all(|&end| end == Status::OutOfMemory));
        assert_eq!(store.staging.reserved, 0);
    }

    /// The flush at which the generation number wraps moves nothing and takes no memory.
    #[test]
    fn generation_wrap_flushes_in_place() {
        let mut store = store();
        let all = stage_all(&mut store);
        let (head, tail) = (store.log.head(), store.log.tail());
        for _ in 0..=u16::MAX {
            store.flush(Second(1), Second(1));
            assert!((store.log.head(), store.log.tail()) == (head, tail));
            assert!(store.staging.aside.is_empty());
        }
        for (key, staged) in (0..).zip(all) {
            assert_eq!(ends(&mut store, &[key], staged), Status::Done);
        }
    }

    #[test]
    fn staged_put_with_wrong_hash_leaves_no_reservation() {
        let mut store = store();
        for (key, staged) in (0..).zip(stage_all(&mut store)) {
            let put = Put {
                staged: Some(staged),
                ..Put::default()
            };
            let status = put_as(&mut store, HASH_KEY.hash(b"other"), &[key], put);
            assert_eq!(status, Status::BadKey);
        }
        assert_eq!(store.staging.reserved, 0);
        for (key, staged) in (0..).zip(stage_all(&mut store)) {
            assert_eq!(ends(&mut store, &[key], staged), Status::Done);
        }
    }
}
