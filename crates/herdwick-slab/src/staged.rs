//! Staged puts: a large value is written to its chunk as it arrives. The chunk is in no list until the
//! value is an item, and its slab is not emptied meanwhile.

use std::num::NonZeroU64;

use herdwick_layout::chunk::{ChunkHeader, HEADER, len};
use herdwick_request::{
    Clock, KEY_BYTES_MAX, Mode, Op, Put, Reply, Request, Second, Staged, Status,
};

use crate::{
    fresh::Fresh,
    metas::{Chunk, state},
    reservations::{Location, Reservation},
    store::Store,
};

/// Reservations may take at most this part of the slabs, so that the rest always has room for the
/// largest item.
const RESERVED: (usize, usize) = (3, 8);

impl Store {
    /// Returns how many values of the maximum size may be staged at a time, under the limit of
    /// [`Store::leave_unused`].
    #[must_use]
    pub fn staged_max(&self) -> usize {
        let largest = self.classes.last().map_or(1, |class| class.taken);
        let most = (self.budget - self.unused) / RESERVED.1 * RESERVED.0;
        (most / largest).max(1)
    }

    /// Reserves room for a value of `value_len` bytes. Readable items do not change, but may be
    /// evicted. A refusal is reported at the end, by the [`Put`]: where reservations would exceed
    /// three eighths of the memory, or where the store would refuse the put at once.
    pub fn stage(&mut self, now: Second, key: &[u8], value_len: usize) -> Staged {
        self.tick(now);
        let place = match self.reserve(key, value_len) {
            Ok(chunk) => Location::In(chunk),
            Err(status) => Location::Refused(status),
        };
        self.staging.last += 1;
        // The count begins with 1, and does not wrap in practice.
        let id = NonZeroU64::new(self.staging.last).unwrap_or(NonZeroU64::MIN);
        self.staging.under_way.push(Reservation {
            id,
            place,
            came: 0,
            value_len,
        });
        Staged::new(id, value_len)
    }

    fn reserve(&mut self, key: &[u8], value_len: usize) -> Result<Chunk, Status> {
        if self.too_large(key, value_len) {
            return Err(Status::TooLarge);
        }
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(Status::BadKey);
        }
        let class = self.slabs.class_for(len(key, value_len));
        let class = class.ok_or(Status::TooLarge)?;
        // A chunk counts in full, whatever its value's length.
        let bytes = self.slabs.slab_bytes() / self.classes[class].per_slab;
        if self.staging.reserved + bytes > self.budget / RESERVED.1 * RESERVED.0 {
            return Err(Status::OutOfMemory);
        }
        let chunk = self.allocate(class).ok_or(Status::OutOfMemory)?;
        self.metas.get_mut(chunk).state = state::STAGED;
        self.slabs.add_staged(chunk);
        self.staging.reserved += bytes;
        let header = ChunkHeader {
            key_len: key.len() as u8,
            value_len: value_len as u32,
            ..ChunkHeader::default()
        };
        let bytes = self.slabs.bytes_mut(chunk);
        header.write(bytes);
        bytes[HEADER..header.front()].copy_from_slice(key);
        Ok(chunk)
    }

    /// Returns the room for the rest of the value; empty if the value is complete or refused.
    /// Report the bytes written to it with [`Self::fill`].
    pub fn room(&mut self, staged: Staged) -> &mut [u8] {
        match self.staging.get(staged) {
            Some(&mut Reservation {
                place: Location::In(chunk),
                came,
                ..
            }) => {
                let header = self.header(chunk);
                &mut self.slabs.bytes_mut(chunk)[header.front() + came..header.end()]
            }
            _ => &mut [],
        }
    }

    /// Records that the first `count` bytes of [`Self::room`] have been written.
    pub fn fill(&mut self, staged: Staged, count: usize) {
        if let Some(reservation) = self.staging.get(staged) {
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

    /// Ends a reservation without storing the value.
    pub fn abort(&mut self, staged: Staged) {
        if let Some(reservation) = self.staging.take(staged)
            && let Location::In(chunk) = reservation.place
        {
            self.release(chunk);
            self.free(chunk);
        }
    }

    /// Counts the bytes of a chunk as reserved no more.
    fn release(&mut self, chunk: Chunk) {
        self.slabs.drop_staged(chunk);
        let class = self.slabs.class_of(chunk);
        self.staging.reserved -= self.slabs.slab_bytes() / self.classes[class].per_slab;
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
        let Some(reservation) = self.staging.take(staged) else {
            return Reply::bare(Status::BadKey);
        };
        let chunk = match reservation.place {
            Location::Refused(status) => {
                self.drop_old(request, put);
                return Reply::bare(status);
            }
            Location::In(chunk) => chunk,
        };
        self.release(chunk);
        // The reservation may be another key's, if a client names it.
        if reservation.came < reservation.value_len || self.key(chunk) != request.key {
            self.free(chunk);
            return Reply::bare(Status::BadKey);
        }
        if matches!(put.mode, Mode::Append | Mode::Prepend) {
            return self.put_elsewhere(clock, request, put, chunk);
        }
        let (old, judged) = match self.lookup(request) {
            Ok(old) if put.mode == Mode::Add => (Some(old), Err(Reply::bare(Status::NotStored))),
            Ok(old) => (Some(old), self.judge_over(clock, put, old)),
            Err(absent) => (None, Self::judge_new(clock, put, absent)),
        };
        match judged {
            Ok(fresh) => self.publish(request, old, chunk, &fresh),
            Err(refusal) => {
                self.free(chunk);
                refusal
            }
        }
    }

    /// Executes a put of a staged value that is not an item's whole value, as one of a copy.
    fn put_elsewhere(
        &mut self,
        clock: &Clock,
        request: &Request<'_>,
        put: &Put<'_>,
        chunk: Chunk,
    ) -> Reply<'_> {
        // A copy, because its chunk is given back before room is made.
        let value = self.item(chunk).value.to_vec();
        self.free(chunk);
        let put = Put {
            value: &value,
            staged: None,
            ..*put
        };
        let op = Op::Put(put);
        self.mutate(clock, &Request { op, ..*request })
    }

    /// Makes a reservation the item of its key.
    fn publish(
        &mut self,
        request: &Request<'_>,
        old: Option<Chunk>,
        chunk: Chunk,
        fresh: &Fresh,
    ) -> Reply<'_> {
        let value_len = self.header(chunk).value_len as usize;
        let header = self.new_header(request.key, value_len, fresh);
        // Not sealed yet: `link` seals it with the stag that it takes over.
        header.write(self.slabs.bytes_mut(chunk));
        self.link(request.hash, old, chunk, fresh.bits);
        Reply::with(Status::Done, self.item(chunk))
    }
}
