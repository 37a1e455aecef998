//! Ordering of requests for one key: they take effect in the order of submission. A request that
//! may not overtake another for its key is held back, outside the slots, until that one has left its
//! slot.
//!
//! Slots are independent, and a lost line is written again later, so only a line that is not yet
//! written is certain to arrive later. Reads may overtake reads. A request gets its slot when it may
//! be sent: the worker looks for requests in slot order, and a slot that is taken without being
//! written delays those behind it.
//!
//! Circular import with `client` and `channel`: the client holds channels, which take its options and keep
//! their requests in order, and the order looks at a channel's slots.

use herdwick_request::{KeyHash, Request};

use super::channel::{Channel, SlotState};
use crate::wire::{
    LINE_BYTES, Line, OVERFLOW_BYTES, REQUEST_BYTES_MAX, Sequence, Stamp, Unencodable, encode,
};

/// Buckets a slot. A new request shares its bucket with one of 32 in flight with a probability of
/// one eighth; the slots are then compared one by one.
const BUCKETS_PER_SLOT: usize = 8;

/// Unfinished requests by some bits of their keys' hashes.
pub(super) struct Keys {
    /// How many there are in each bucket: reads in the lower half of each number, mutations in the
    /// upper half.
    counts: Box<[u32]>,
    /// The bucket of the request in each slot, [`FREE`] without one; searched many at a time.
    of_slots: Box<[[u16; ROW]]>,
}

/// One of each in a number of [`Keys`]; a window holds far fewer than either half counts to.
const READ: u32 = 1;
const MUTATION: u32 = 1 << 16;
/// Slots that are searched at a time: two vectors.
const ROW: usize = 16;
/// No bucket.
const FREE: u16 = u16::MAX;

impl Keys {
    pub(super) fn new(window: usize) -> Self {
        Self {
            counts: vec![0; window * BUCKETS_PER_SLOT].into(),
            of_slots: vec![[FREE; ROW]; window.div_ceil(ROW)].into(),
        }
    }

    #[inline]
    pub(super) fn bucket(&self, hash: KeyHash) -> u16 {
        hash.0 as u16 & (self.counts.len() - 1) as u16
    }

    /// Adds the request that takes a slot.
    #[inline]
    pub(super) fn take_slot(&mut self, slot: usize, bucket: u16, is_read: bool) {
        self.of_slots[slot / ROW][slot % ROW] = bucket;
        self.add(bucket, is_read);
    }

    /// Removes the request that leaves a slot, and returns its bucket; `None`: it had no place in the order.
    #[inline]
    pub(super) fn leave_slot(&mut self, slot: usize, is_read: bool) -> Option<u16> {
        let place = &mut self.of_slots[slot / ROW][slot % ROW];
        let bucket = std::mem::replace(place, FREE);
        if bucket == FREE {
            return None;
        }
        self.remove(bucket, is_read);
        Some(bucket)
    }

    /// Returns the slots that have a request of this bucket.
    fn slots_of(&self, bucket: u16) -> impl Iterator<Item = usize> {
        let has = move |row: &[u16; ROW]| row.iter().fold(false, |any, b| any | (*b == bucket));
        let rows = self
            .of_slots
            .iter()
            .enumerate()
            .filter(move |(_, row)| has(row));
        rows.flat_map(move |(number, row)| {
            let same = row.iter().enumerate().filter(move |(_, b)| **b == bucket);
            same.map(move |(at, _)| number * ROW + at)
        })
    }

    /// Whether a request of this bucket, and another that is counted, may have to be kept in order.
    #[inline]
    pub(super) fn may_conflict(&self, bucket: u16, is_read: bool) -> bool {
        let least = if is_read { MUTATION } else { READ };
        self.counts[usize::from(bucket)] >= least
    }

    #[inline]
    fn add(&mut self, bucket: u16, is_read: bool) {
        self.counts[usize::from(bucket)] += if is_read { READ } else { MUTATION };
    }

    #[inline]
    fn remove(&mut self, bucket: u16, is_read: bool) {
        self.counts[usize::from(bucket)] -= if is_read { READ } else { MUTATION };
    }
}

/// The requests that are held back, at most a window of them.
pub(super) struct Held {
    /// In the order of submission.
    queue: Vec<Waiting>,
    /// Encoded requests, without the stamps of slots; each at its [`Waiting::place`].
    lines: Box<[Line]>,
    /// Overflowing bodies, `body_bytes` apart. No page of it is touched before it is used.
    bodies: Box<[u8]>,
    body_bytes: usize,
    /// Places that are free.
    free: Vec<u16>,
}

/// A request that is held back.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) token: u64,
    hash: KeyHash,
    /// When it times out, in nanoseconds; `u64::MAX` until a scan has found it.
    pub(super) deadline: u64,
    /// How many earlier requests for its key must end first.
    waits_for: u16,
    /// Where its line and its body are.
    place: u16,
    overflow_len: u16,
    is_read: bool,
}

impl Held {
    /// Makes room for `window` requests whose bodies have up to `body_bytes`.
    pub(super) fn new(window: usize, body_bytes: usize) -> Self {
        Self {
            queue: Vec::with_capacity(window),
            lines: vec![Line::default(); window].into(),
            bodies: vec![0; window * body_bytes].into(),
            body_bytes,
            free: (0..window as u16).rev().collect(),
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Waiting> {
        self.queue.get_mut(index)
    }

    /// Removes all of them, in the order of submission.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Waiting> {
        self.free
            .extend(self.queue.iter().map(|waiting| waiting.place));
        self.queue.drain(..)
    }

    /// Encodes `request` and appends it; it waits for `waits_for` earlier ones.
    fn push(
        &mut self,
        request: &Request<'_>,
        token: u64,
        is_read: bool,
        (stamp, waits_for): (Stamp, u16),
    ) -> Result<(), Unencodable> {
        let Some(place) = self.free.last().copied() else {
            unreachable!("the window, which has room, is not larger");
        };
        let at = usize::from(place);
        let body = &mut self.bodies[at * self.body_bytes..][..self.body_bytes];
        let overflow_len = encode(request, stamp, &mut self.lines[at], body)?;
        self.free.pop();
        self.queue.push(Waiting {
            token,
            hash: request.hash,
            deadline: u64::MAX,
            waits_for,
            place,
            overflow_len: overflow_len as u16,
            is_read,
        });
        Ok(())
    }

    fn remove(&mut self, index: usize) -> Waiting {
        let waiting = self.queue.remove(index);
        self.free.push(waiting.place);
        waiting
    }

    fn line(&self, waiting: &Waiting) -> &Line {
        &self.lines[usize::from(waiting.place)]
    }

    fn body(&self, waiting: &Waiting) -> &[u8] {
        let at = usize::from(waiting.place) * self.body_bytes;
        &self.bodies[at..][..waiting.overflow_len.into()]
    }
}

impl Channel {
    /// Counts the requests that a request for the key of `hash` has to wait for.
    #[cold]
    pub(super) fn conflicts(&self, bucket: u16, hash: KeyHash, is_read: bool) -> u16 {
        let sent = self.keys.slots_of(bucket).filter(|slot| {
            self.lines[*slot].hash() == hash && !(is_read && self.slots[*slot].is_read)
        });
        let held = self.held.queue.iter();
        let held = held.filter(|held| held.hash == hash && !(is_read && held.is_read));
        (sent.count() + held.count()) as u16
    }

    /// Takes a request that has to wait for `waits_for` others.
    #[cold]
    pub(super) fn hold(
        &mut self,
        request: &Request<'_>,
        token: u64,
        is_read: bool,
        waits_for: u16,
    ) -> Result<(), Unencodable> {
        let stamp = Stamp::new(self.spec.epoch, Sequence::default());
        let order = (stamp, waits_for);
        self.held.push(request, token, is_read, order)?;
        self.keys.add(self.keys.bucket(request.hash), is_read);
        self.in_flight += 1;
        Ok(())
    }

    /// Sends the requests that waited for one for the key of `hash`, which has ended. Those before
    /// the one at `first` were submitted before it.
    #[cold]
    pub(super) fn resume(&mut self, hash: KeyHash, is_read: bool, first: usize) {
        let mut next = first;
        while let Some(waiting) = self.held.queue.get_mut(next) {
            if waiting.hash == hash && !(is_read && waiting.is_read) {
                waiting.waits_for -= 1;
                if waiting.waits_for == 0 {
                    self.send_held(next);
                    continue;
                }
            }
            next += 1;
        }
    }

    /// Removes a request that is held back, because it has timed out; those behind it do not wait
    /// for it any more.
    pub(super) fn drop_held(&mut self, index: usize) {
        let waiting = self.held.remove(index);
        self.keys
            .remove(self.keys.bucket(waiting.hash), waiting.is_read);
        self.in_flight -= 1;
        self.resume(waiting.hash, waiting.is_read, index);
    }

    /// Moves a request into the slot in which the worker expects the next one.
    fn send_held(&mut self, index: usize) {
        self.resumed = true;
        let waiting = self.held.remove(index);
        let bucket = self.keys.bucket(waiting.hash);
        self.keys.remove(bucket, waiting.is_read);
        let to = self.next_free();
        self.keys.take_slot(to, bucket, waiting.is_read);
        let slot = &mut self.slots[to];
        let stamp = Stamp::new(self.spec.epoch, slot.sequence);
        slot.token = waiting.token;
        slot.deadline = waiting.deadline;
        slot.overflow_len = waiting.overflow_len;
        slot.attempts = 0;
        slot.is_read = waiting.is_read;
        slot.state = SlotState::Queued;
        self.lines[to] = *self.held.line(&waiting);
        self.lines[to].restamp(stamp);
        self.stage.write_bytes(
            to * REQUEST_BYTES_MAX + LINE_BYTES,
            self.held.body(&waiting),
        );
        self.enqueue(to);
    }
}

// The counters of a bucket have 16 bits each for a window's slots, and a bucket's index has 16.
const _: () = {
    assert!(crate::wire::Window::MAX * BUCKETS_PER_SLOT <= FREE as usize);
    assert!(OVERFLOW_BYTES <= u16::MAX as usize);
};
