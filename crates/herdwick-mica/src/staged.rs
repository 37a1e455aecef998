//! Staged puts: a large value is written to its final place as it arrives.
//!
//! A reservation is an item without an index entry. A bit of its header marks it, and its checksum
//! covers lengths and key only: a walk of its segment, after a kill too, finds a dead item of known
//! length. When its segment is cleaned, it is copied with the part of the value that has arrived.

use herdwick_layout::{
    bucket::Offset,
    item::{Form, Header, bit, footprint},
};
use herdwick_request::{Clock, Mode, Put, Reply, Request, Second, Staged, Status};

use crate::{
    reservations::{Id, Location, Reservation},
    room::Fresh,
    store::{Hit, Store},
};

/// Reservations may take at most this part of the segments, so that the rest always has room for the
/// largest item.
const RESERVED: (usize, usize) = (3, 8);

impl Store {
    /// Returns how many values of the maximum size may be staged at a time, under the limit of
    /// [`Store::leave_unused`]: before a lower one is reached, too, and once [`Store::adjust`] has
    /// carried out a higher one.
    #[must_use]
    pub fn staged_max(&self) -> usize {
        let most = self.segments.usable() / RESERVED.1 * RESERVED.0;
        most / self.largest().max(1)
    }

    /// Reserves room for a value of `value_len` bytes. Readable items do not change, but may be
    /// evicted. A refusal is reported at the end, by the [`Put`]: where reservations would exceed
    /// three eighths of the segments, or where the store would refuse the put at once. A limit on the
    /// memory refuses none: it may have been lowered since the value was admitted by the number of
    /// [`Self::staged_max`].
    pub fn stage(&mut self, now: Second, key: &[u8], value_len: usize) -> Staged {
        Staged::new(self.reserve(now, key, value_len).0, value_len)
    }

    fn reserve(&mut self, now: Second, key: &[u8], value_len: usize) -> Id {
        self.tick(now);
        let len = footprint(Form::Full, key.len(), value_len);
        let reserved = self.staging.reserved + len;
        let refusal = if self.too_large(key, value_len) {
            Some(Status::TooLarge)
        } else if key.is_empty() || key.len() > herdwick_request::KEY_BYTES_MAX {
            Some(Status::BadKey)
        } else if reserved > self.segments.bytes_kept() / RESERVED.1 * RESERVED.0
            || self.lossless && !self.make_room(0, len)
        {
            Some(Status::OutOfMemory)
        } else {
            None
        };
        if let Some(status) = refusal {
            // It takes no room, but its bytes are still counted as they come, so that the end of
            // the value is found.
            return self.staging.add(Location::Refused(status), 0, value_len);
        }
        let at = self.take_staged(len);
        let id = self.staging.add(Location::At(at), len, value_len);
        let header = Header {
            key_len: key.len() as u8,
            bits: bit::STAGED,
            form: Form::Full,
            value_len: value_len as u32,
            version: id.0.get(),
            accessed: now.0,
            ..Header::default()
        };
        self.items.stage(at, &header, key);
        // The end of the run moves behind it: a walk after a kill needs its header and key alone.
        self.segments.commit(at);
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
            self.segments.drop_staged(at, reservation.footprint);
        }
    }

    /// Returns the bytes that the reservation at `at` takes, and those that have arrived with its
    /// header and key; `None` if it has ended or moved.
    pub(crate) fn staged_at(&mut self, at: Offset) -> Option<(usize, usize)> {
        let header = self.items.header(at);
        let reservation = self.staging.live_at(&header, at)?;
        Some((reservation.footprint, header.front() + reservation.came))
    }

    /// Records that the reservation at `at` was moved, or has to be refused.
    pub(crate) fn move_staged(&mut self, header: &Header, at: Offset, to: Option<Offset>) {
        let Some(reservation) = self.staging.live_at(header, at) else {
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
                // The client believes its old value replaced, as with a put that is refused at
                // once.
                self.drop_old(request, put);
                return Reply::bare(status);
            }
            Location::At(at) => at,
        };
        let len = reservation.footprint;
        if reservation.came < reservation.value_len || !self.items.is(at, request.key) {
            self.segments.drop_staged(at, len);
            return Reply::bare(Status::BadKey);
        }
        // A value staged before a flush but stored now must not count as flushed, so it moves.
        if matches!(put.mode, Mode::Append | Mode::Prepend) || self.segments.is_flushed(at) {
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
                self.segments.drop_staged(at, len);
                return refusal;
            }
        };
        // In a cache the insertion replaces another entry; here there has to be a slot before
        // anything changes.
        if self.lossless && old.is_none() && !self.index.make_chain(request.hash) {
            self.segments.drop_staged(at, len);
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
        // A copy, because the room that is made for the value may be where it lies now.
        let value = self.items.value(at).to_vec();
        self.segments
            .drop_staged(at, self.items.header(at).footprint());
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
        let header = Header {
            form: Form::Full,
            ..self.header(request.key, value_len, fresh)
        };
        if let Some(old) = old
            && self.writes_beside()
        {
            self.items.publish(at, &header);
            self.settle_staged(at);
            self.replace(request.hash, old, at);
            return;
        }
        self.counters.items += 1;
        self.counters.bytes += header.footprint() as u64;
        // The old item goes first: the entry that it frees is the new one's. In a cache a kill in
        // between costs the item.
        let place = old.map(|hit| self.unlink(hit));
        self.items.publish(at, &header);
        self.settle_staged(at);
        match place {
            Some(place) => self.index.point(place, request.hash, at),
            None => self.insert(request.hash, at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreConfig;
    use herdwick_layout::item::HEADER_MAX;
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
        let len = ITEM_BYTES_MAX - HEADER_MAX - 1;
        let most = store.staged_max() as u8;
        let stage = |key: u8| {
            let staged = store.stage(Second(1), &[key], len);
            store.append(staged, &VALUE[..len]);
            staged
        };
        (0..most).map(stage).collect()
    }

    /// Reservations stay while other items take the place of all that was beside them, several times.
    #[test]
    fn reservations_stay_while_the_store_turns_over() {
        for grow in [false, true] {
            let mut store = store();
            for n in 0..2000u32 {
                set(&mut store, &n.to_le_bytes(), 200, Mode::Set);
            }
            assert!(store.counters().evictions > 0);
            let all = stage_all(&mut store);
            assert!(all.len() >= 20, "{}", all.len());
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
                set(&mut store, &key, 100, mode);
            }
            for (key, staged) in (0..).zip(all) {
                assert_eq!(ends(&mut store, &[key], staged), Status::Done);
            }
        }
    }

    /// A flush ends no reservation.
    #[test]
    fn reservations_outlive_flushes() {
        let mut store = store();
        let all = stage_all(&mut store);
        for _ in 0..1_000 {
            store.flush(Second(1), Second(1));
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
