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
        // The upper bits have chosen the worker, so keys of one channel differ in the lower ones.
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
        // No early exit, so that a row is compared as vectors.
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
        // Any mutation makes the number at least `MUTATION`, so one comparison answers either
        // question.
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

/// The requests that are held back, at most a window of them. Each bucket lists its own, so that the end of a
/// request looks at those that share its bucket alone.
pub(super) struct Held {
    /// By place; what is at a free place is no request.
    waiting: Box<[Waiting]>,
    /// The list of each bucket, in the order of submission.
    lists: Box<[List]>,
    /// Encoded requests by place, without the stamps of slots.
    lines: Box<[Line]>,
    /// Overflowing bodies, `body_bytes` apart. No page of it is touched before it is used.
    bodies: Box<[u8]>,
    body_bytes: usize,
    /// Places that are free.
    free: Vec<u16>,
    /// How many requests were ever held back.
    pushed: u64,
    /// Memory for [`Held::in_order`].
    places: Vec<u16>,
}

/// The places of a list's first and last request, or [`NOWHERE`] without one.
#[derive(Clone, Copy)]
struct List {
    first: u16,
    last: u16,
}

/// No place.
const NOWHERE: u16 = u16::MAX;
/// The number of no request.
const NOT_HELD: u64 = u64::MAX;

/// A request that is held back.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) token: u64,
    hash: KeyHash,
    /// When it times out, in nanoseconds; `u64::MAX` until a scan has found it.
    pub(super) deadline: u64,
    /// The number of its submission.
    number: u64,
    /// How many requests for its key must leave their slots first, if it is the first of its key that is held
    /// back; the others wait for that one. In slots are either reads of a key or one mutation, and no more of
    /// them while one is held back.
    waits_for: u16,
    bucket: u16,
    /// The place of the next request of its bucket.
    next: u16,
    overflow_len: u16,
    is_read: bool,
}

impl Waiting {
    const NONE: Self = Self {
        token: 0,
        hash: KeyHash(0),
        deadline: 0,
        number: NOT_HELD,
        waits_for: 0,
        bucket: 0,
        next: NOWHERE,
        overflow_len: 0,
        is_read: false,
    };
}

impl Held {
    /// Makes room for `window` requests whose bodies have up to `body_bytes`.
    pub(super) fn new(window: usize, body_bytes: usize) -> Self {
        let list = List {
            first: NOWHERE,
            last: NOWHERE,
        };
        Self {
            waiting: vec![Waiting::NONE; window].into(),
            lists: vec![list; window * BUCKETS_PER_SLOT].into(),
            lines: vec![Line::default(); window].into(),
            bodies: vec![0; window * body_bytes].into(),
            body_bytes,
            free: (0..window as u16).rev().collect(),
            pushed: 0,
            places: Vec::with_capacity(window),
        }
    }

    /// Whether a request of this bucket is held back.
    #[inline]
    pub(super) fn has(&self, bucket: u16) -> bool {
        self.lists[usize::from(bucket)].first != NOWHERE
    }

    /// Returns the request at `place`, if there is one.
    pub(super) fn get_mut(&mut self, place: u16) -> Option<&mut Waiting> {
        let waiting = self.waiting.get_mut(usize::from(place));
        waiting.filter(|waiting| waiting.number != NOT_HELD)
    }

    /// Returns the places of all requests, in the order of submission. The memory goes back by
    /// [`Held::reuse`].
    pub(super) fn in_order(&mut self) -> Vec<u16> {
        let mut places = std::mem::take(&mut self.places);
        if self.free.len() < self.waiting.len() {
            let all = (0..).zip(&self.waiting);
            let held = all.filter(|(_, waiting)| waiting.number != NOT_HELD);
            places.extend(held.map(|(place, _)| place));
            places.sort_unstable_by_key(|place: &u16| self.waiting[usize::from(*place)].number);
        }
        places
    }

    pub(super) fn reuse(&mut self, mut places: Vec<u16>) {
        places.clear();
        self.places = places;
    }

    /// Removes all of them, in the order of submission.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Waiting> {
        let places = self.in_order();
        // Each is the first of its list when its turn comes.
        places.into_iter().map(|place| self.remove(NOWHERE, place))
    }

    /// Returns the requests of a bucket, in the order of submission.
    fn of(&self, bucket: u16) -> impl Iterator<Item = &Waiting> {
        let at = |place: u16| self.waiting.get(usize::from(place));
        let first = at(self.lists[usize::from(bucket)].first);
        std::iter::successors(first, move |waiting| at(waiting.next))
    }

    /// Encodes `request` and appends it to its bucket's list; it waits for `waits_for` earlier ones.
    fn push(
        &mut self,
        request: &Request<'_>,
        token: u64,
        is_read: bool,
        (stamp, bucket, waits_for): (Stamp, u16, u16),
    ) -> Result<(), Unencodable> {
        let Some(place) = self.free.last().copied() else {
            unreachable!("the window, which has room, is not larger");
        };
        let at = usize::from(place);
        let body = &mut self.bodies[at * self.body_bytes..][..self.body_bytes];
        // Encoded before the place is taken: a request that cannot be encoded leaves it free.
        let overflow_len = encode(request, stamp, &mut self.lines[at], body)?;
        self.free.pop();
        self.waiting[at] = Waiting {
            token,
            hash: request.hash,
            deadline: u64::MAX,
            number: self.pushed,
            waits_for,
            bucket,
            next: NOWHERE,
            overflow_len: overflow_len as u16,
            is_read,
        };
        self.pushed += 1;
        let list = &mut self.lists[usize::from(bucket)];
        match self.waiting.get_mut(usize::from(list.last)) {
            Some(last) => last.next = place,
            None => list.first = place,
        }
        list.last = place;
        Ok(())
    }

    /// Removes the request at `place`, whose bucket's list has it behind that at `before`; [`NOWHERE`]: first.
    fn remove(&mut self, before: u16, place: u16) -> Waiting {
        let at = usize::from(place);
        let waiting = std::mem::replace(&mut self.waiting[at], Waiting::NONE);
        let list = &mut self.lists[usize::from(waiting.bucket)];
        match self.waiting.get_mut(usize::from(before)) {
            Some(before) => before.next = waiting.next,
            None => list.first = waiting.next,
        }
        if waiting.next == NOWHERE {
            list.last = before;
        }
        self.free.push(place);
        waiting
    }

    /// Returns the place before `place` in its bucket's list, [`NOWHERE`] if it is first.
    fn before(&self, place: u16) -> u16 {
        let bucket = self.waiting[usize::from(place)].bucket;
        let (mut before, mut at) = (NOWHERE, self.lists[usize::from(bucket)].first);
        while at != place && at != NOWHERE {
            (before, at) = (at, self.waiting[usize::from(at)].next);
        }
        before
    }

    /// Returns the place of the first request for the key of `hash`, and the place before it in its bucket's
    /// list; [`NOWHERE`] without one.
    fn first_of(&self, bucket: u16, hash: KeyHash) -> (u16, u16) {
        let (mut before, mut place) = (NOWHERE, self.lists[usize::from(bucket)].first);
        while let Some(waiting) = self.waiting.get(usize::from(place)) {
            if waiting.hash == hash {
                break;
            }
            (before, place) = (place, waiting.next);
        }
        (before, place)
    }

    fn line(&self, place: u16) -> &Line {
        &self.lines[usize::from(place)]
    }

    fn body(&self, place: u16, len: u16) -> &[u8] {
        &self.bodies[usize::from(place) * self.body_bytes..][..len.into()]
    }
}

impl Channel {
    /// Counts the requests that a request for the key of `hash` has to wait for. One that is held back stands
    /// for all.
    #[cold]
    pub(super) fn conflicts(&self, bucket: u16, hash: KeyHash, is_read: bool) -> u16 {
        if self.held.of(bucket).any(|held| held.hash == hash) {
            return 1;
        }
        self.conflicts_in_slots(bucket, hash, is_read)
    }

    fn conflicts_in_slots(&self, bucket: u16, hash: KeyHash, is_read: bool) -> u16 {
        // Hashes are compared and not keys: of two keys with one hash, one waits without need.
        let sent = self.keys.slots_of(bucket).filter(|slot| {
            self.lines[*slot].hash() == hash && !(is_read && self.slots[*slot].is_read)
        });
        sent.count() as u16
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
        // The sequence is the slot's that it gets: `restamp` sets it.
        let stamp = Stamp::new(self.spec.epoch, Sequence::default());
        let bucket = self.keys.bucket(request.hash);
        let order = (stamp, bucket, waits_for);
        self.held.push(request, token, is_read, order)?;
        // Counted in its bucket although it has no slot, so that later requests for the key find
        // it.
        self.keys.add(bucket, is_read);
        self.in_flight += 1;
        Ok(())
    }

    /// Sends the requests that waited for the one that has left the slot at `index`.
    #[cold]
    pub(super) fn resume_behind(&mut self, index: usize, bucket: u16) {
        let (hash, is_read) = (self.lines[index].hash(), self.slots[index].is_read);
        let (before, place) = self.held.first_of(bucket, hash);
        let Some(first) = self.held.get_mut(place) else {
            return;
        };
        // A read that is held back waits for a mutation, not for this read.
        if is_read && first.is_read {
            return;
        }
        first.waits_for -= 1;
        if first.waits_for == 0 {
            // Nothing else for its key is in a slot: a mutation waits for all, a read for a mutation, which
            // was alone.
            self.send_first(before, place, 0);
        }
    }

    /// Removes the request held back at `place`, because it has timed out; those behind it do not wait
    /// for it any more.
    pub(super) fn drop_held(&mut self, place: u16) {
        let Waiting { bucket, hash, .. } = self.held.waiting[usize::from(place)];
        let was_first = self.held.first_of(bucket, hash).1 == place;
        let before = self.held.before(place);
        let waiting = self.held.remove(before, place);
        self.keys.remove(bucket, waiting.is_read);
        self.in_flight -= 1;
        // The others of its key wait for the first one alone.
        if !was_first {
            return;
        }
        // The next of its key is the first one now, and waits for what it must not overtake in the
        // slots.
        let (before, place) = self.held.first_of(bucket, hash);
        let Some(first) = self.held.get_mut(place) else {
            return;
        };
        let is_read = first.is_read;
        let waits_for = self.conflicts_in_slots(bucket, hash, is_read);
        if waits_for == 0 {
            let in_slots = self.conflicts_in_slots(bucket, hash, false);
            self.send_first(before, place, in_slots);
        } else if let Some(first) = self.held.get_mut(place) {
            first.waits_for = waits_for;
        }
    }

    /// Sends the first request of its key, which is at `place` behind that at `before`; and if it is a read, all
    /// reads before the key's next mutation. What is left waits for them and for the reads of the key that were
    /// `in_slots` before.
    fn send_first(&mut self, mut before: u16, mut place: u16, in_slots: u16) {
        let Waiting { hash, is_read, .. } = self.held.waiting[usize::from(place)];
        let mut sent = 0;
        while let Some(waiting) = self.held.waiting.get_mut(usize::from(place)) {
            let next = waiting.next;
            if waiting.hash != hash {
                // Only one that stays in the list comes before the next.
                before = place;
            } else if sent > 0 && !(is_read && waiting.is_read) {
                waiting.waits_for = in_slots + sent;
                return;
            } else {
                self.send_held(before, place);
                sent += 1;
            }
            place = next;
        }
    }

    /// Moves the request at `place`, in its list behind that at `before`, into the slot in which the worker
    /// expects the next one.
    fn send_held(&mut self, before: u16, place: u16) {
        self.resumed = true;
        let waiting = self.held.remove(before, place);
        self.keys.remove(waiting.bucket, waiting.is_read);
        let to = self.next_free();
        self.keys.take_slot(to, waiting.bucket, waiting.is_read);
        let slot = &mut self.slots[to];
        let stamp = Stamp::new(self.spec.epoch, slot.sequence);
        slot.token = waiting.token;
        slot.deadline = waiting.deadline;
        slot.overflow_len = waiting.overflow_len;
        slot.attempts = 0;
        slot.is_read = waiting.is_read;
        slot.state = SlotState::Queued;
        self.lines[to] = *self.held.line(place);
        self.lines[to].restamp(stamp);
        self.stage.write_bytes(
            to * REQUEST_BYTES_MAX + LINE_BYTES,
            self.held.body(place, waiting.overflow_len),
        );
        self.enqueue(to);
    }
}

// The counters of a bucket have 16 bits each for a window's slots; a bucket's index has 16, and so has a place.
const _: () = {
    assert!(crate::wire::Window::MAX <= NOWHERE as usize);
    assert!(crate::wire::Window::MAX * BUCKETS_PER_SLOT <= FREE as usize);
    assert!(OVERFLOW_BYTES <= u16::MAX as usize);
};
