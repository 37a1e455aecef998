//! A worker's part: which keys of its partition are popular, and what has to be changed in the secondary store.
//!
//! No call waits. Where as many changes are under way as may be, a popular key that is written is dropped: it
//! is removed from the secondary store as soon as there is room, and read from the primary meanwhile.

use std::{collections::VecDeque, time::Duration};

use herdwick_request::{Item, KeyHash, Marks, Second};

use crate::{
    change::{Act, CHANGES_MAX, Change, Outcome, WorkerEnd},
    counters::TrackerCounters,
    popularity::{Popularity, Seen},
    record::{Record, VALUE_BYTES_MAX},
};

/// How long a change may be under way before clients get no more leases of the secondary store.
pub const LAG_MAX: Duration = Duration::from_millis(250);
/// How long a client may read the secondary store after it sent a request whose reply allows it.
pub const LEASE: Duration = Duration::from_millis(250);
/// The longest time for which a client reads what a completed write has replaced.
pub const STALENESS_MAX: Duration = LAG_MAX.saturating_add(LEASE);
/// Numbers by which replies name the connection that a lease is for.
pub const STORE_NUMBERS: u64 = 16;
/// Least time from the beginning of a connection to that of the next.
pub const CONNECT_EVERY: Duration = Duration::from_secs(2);
/// The longest time between two leases of which a client takes the same number for the same connection.
pub const QUIET_MAX: Duration = Duration::from_secs(20);
// The next connection of a number is behind all others: the one after next begins so much later at least.
const _: () = assert!(CONNECT_EVERY.as_secs() * (STORE_NUMBERS - 2) > QUIET_MAX.as_secs());
/// How long no key is admitted after the secondary store had no room for one.
const FULL_PAUSE: Duration = Duration::from_millis(100);
/// Keys that wait for their removal; if there are more, all are removed.
const DROPPED_MAX: usize = 1024;

/// Tells the size class that the secondary store has an item in, by the lengths of its key and its record: it has
/// memory of its own for each.
pub type SizeClass = fn(usize, usize) -> u8;

/// The tracker of a worker.
pub struct Tracker {
    policy: Box<dyn Popularity>,
    size_class: SizeClass,
    slots: Box<[Slot]>,
    end: WorkerEnd,
    /// The connection to the secondary store; 0: none.
    epoch: u64,
    /// Changes under way, by their numbers, from the oldest that has not ended.
    under_way: VecDeque<UnderWay>,
    next: u64,
    /// Slots to be removed, and since when.
    dropped: VecDeque<(u32, Duration)>,
    /// All are to be removed, since then.
    clears: Option<Duration>,
    /// No key is admitted before this second: a flush is pending.
    pause: Second,
    /// No key is admitted before this time: the secondary store is full.
    full: Duration,
    now: Duration,
    leased: bool,
    /// Changes were sent since [`Tracker::take_sent`].
    sent: bool,
    counters: TrackerCounters,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The number of the change that made it its key's; 0: it is free.
    admission: u64,
    /// That change, or a later one, is done.
    replicated: bool,
    /// The version of the item in the change that was sent last.
    version: u64,
    /// Its size class.
    class: u8,
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    since: Duration,
    ended: bool,
    /// A client may read what it replaces. It cannot where the secondary store had nothing of the slot's.
    replaces: bool,
}

impl Tracker {
    /// Makes a tracker without a connection, of a policy whose slots are below `slots`.
    #[must_use]
    pub fn new(
        (policy, slots): (Box<dyn Popularity>, usize),
        size_class: SizeClass,
        end: WorkerEnd,
    ) -> Self {
        Self {
            policy,
            size_class,
            slots: vec![Slot::default(); slots].into(),
            end,
            epoch: 0,
            under_way: VecDeque::with_capacity(CHANGES_MAX),
            next: 1,
            dropped: VecDeque::with_capacity(DROPPED_MAX),
            clears: None,
            pause: Second(0),
            full: Duration::ZERO,
            now: Duration::ZERO,
            leased: false,
            sent: false,
            counters: TrackerCounters::default(),
        }
    }

    /// Returns the bytes of a tracker of so many slots, without its policy and its changes.
    #[must_use]
    pub fn bytes(slots: usize) -> usize {
        slots * size_of::<Slot>() + DROPPED_MAX * size_of::<(u32, Duration)>()
    }

    /// Begins a batch: takes the changes that have ended, and sends those that had to wait. `epoch` is the
    /// number of the connection to the secondary store, and 0 without one.
    pub fn begin(&mut self, now: Duration, epoch: u64) {
        self.now = now;
        while let Some(change) = self.end.back.pop() {
            self.take_back(change);
        }
        // After the changes that came back, which are judged by the connection before.
        if epoch != self.epoch {
            self.connect(epoch);
        }
        self.send_waiting();
        // In order of time, so the first that has not ended is the oldest.
        let mut replacing = self.under_way.iter().filter(|it| it.replaces && !it.ended);
        let oldest = [
            replacing.next().map(|change| change.since),
            self.dropped.front().map(|(_, since)| *since),
            self.clears,
        ];
        let oldest = oldest.into_iter().flatten().min().unwrap_or(now);
        // A lease is the promise that what it reads is old by `STALENESS_MAX` at most: not while a change
        // that a client may miss takes too long.
        self.leased = self.epoch != 0 && now.saturating_sub(oldest) <= LAG_MAX;
    }

    /// Another connection, or none: nothing is replicated.
    #[cold]
    fn connect(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.policy.clear();
        self.slots.fill(Slot::default());
        self.under_way.clear();
        self.dropped.clear();
        self.clears = None;
        self.full = Duration::ZERO;
        self.next = 1;
    }

    fn take_back(&mut self, change: Change) {
        // Changes of an earlier connection come back, too: their slots and numbers are others' by now.
        if change.epoch == self.epoch {
            self.ended(&change);
        }
        self.end.free.push(change);
    }

    fn ended(&mut self, change: &Change) {
        // Their numbers follow each other, and they may end in any order: only the oldest are forgotten.
        let first = self.next - self.under_way.len() as u64;
        let index = change.serial.checked_sub(first).map(|index| index as usize);
        if let Some(change) = index.and_then(|index| self.under_way.get_mut(index)) {
            change.ended = true;
        }
        while self.under_way.front().is_some_and(|change| change.ended) {
            self.under_way.pop_front();
        }
        let slot = &mut self.slots[change.slot as usize];
        // The slot may have become another key's since: then the outcome is that of a key that has
        // left.
        let is_current = slot.admission != 0 && slot.admission == change.admission;
        match change.outcome {
            Outcome::Done if is_current && change.act == Act::Put => slot.replicated = true,
            Outcome::Refused => {
                self.counters.refused += 1;
                if is_current {
                    let class = (self.size_class)(change.key.len(), change.record.len());
                    self.make_room(change.slot, class);
                }
            }
            Outcome::Done | Outcome::Lost => {}
        }
        self.counters.changes += u64::from(change.outcome == Outcome::Done);
    }

    /// The secondary store had no room for the item of this slot: it goes, with the key of its size class that
    /// would be evicted next. Those of others would make no room for it.
    #[cold]
    fn make_room(&mut self, slot: u32, class: u8) {
        // Others would be refused, too, until the removals have made room.
        self.full = self.now + FULL_PAUSE;
        self.drop_slot(slot);
        let slots = &self.slots;
        let is_of_class = |slot: u32| slots[slot as usize].class == class;
        if let Some(victim) = self.policy.next_victim(&is_of_class) {
            self.counters.evictions += 1;
            self.drop_slot(victim);
        }
    }

    /// Sends removals that had to wait.
    fn send_waiting(&mut self) {
        if let Some(since) = self.clears
            && self.send(Act::Clear, 0, since)
        {
            self.clears = None;
        }
        while let Some((slot, since)) = self.dropped.front().copied()
            // A removal of all that waits comes first.
            && self.clears.is_none()
            && self.send(Act::Remove, slot, since)
        {
            self.dropped.pop_front();
        }
    }

    /// Sends a change without an item, if there is room.
    fn send(&mut self, act: Act, slot: u32, since: Duration) -> bool {
        let Some(mut change) = self.end.free.pop() else {
            return false;
        };
        change.key.clear();
        change.record.clear();
        (change.act, change.slot) = (act, slot);
        self.push(change, since, true);
        true
    }

    /// Numbers a change and sends it: the queue has room for each that there is.
    fn push(&mut self, mut change: Change, since: Duration, replaces: bool) {
        (change.epoch, change.serial, change.since) = (self.epoch, self.next, since);
        change.admission = match change.act {
            Act::Put => self.slots[change.slot as usize].admission,
            Act::Remove | Act::Clear => 0,
        };
        change.outcome = Outcome::Done;
        self.next += 1;
        self.sent = true;
        let ended = false;
        self.under_way.push_back(UnderWay {
            since,
            ended,
            replaces,
        });
        if let Err(change) = self.end.changes.push(change) {
            self.end.free.push(change);
        }
    }

    /// Sends an item of a slot, if there is room. `replaces`: the secondary store may have something in its place.
    fn put(&mut self, slot: u32, (key, item): (&[u8], &Item<'_>), replaces: bool) -> bool {
        let Some(mut change) = self.end.free.pop() else {
            return false;
        };
        let Item {
            value,
            flags,
            version,
            ..
        } = *item;
        change.key.clear();
        change.key.extend_from_slice(key);
        change.record.clear();
        let record = Record {
            version,
            flags,
            value,
        };
        record.append_to(&mut change.record);
        (change.act, change.slot) = (Act::Put, slot);
        let class = (self.size_class)(key.len(), change.record.len());
        let of = &mut self.slots[slot as usize];
        (of.version, of.class) = (version, class);
        let now = self.now;
        self.push(change, now, replaces);
        true
    }

    /// The key of a slot is popular no longer, and what the slot holds is to go.
    fn drop_slot(&mut self, slot: u32) {
        self.policy.remove(slot);
        self.slots[slot as usize] = Slot::default();
        self.counters.dropped += 1;
        // The list is bounded, and a removal may not be lost: all are removed instead.
        if self.dropped.len() == DROPPED_MAX {
            return self.clear();
        }
        self.dropped.push_back((slot, self.now));
        self.send_waiting();
    }

    fn clear(&mut self) {
        self.policy.clear();
        self.slots.fill(Slot::default());
        let oldest = self.dropped.front().map_or(self.now, |(_, since)| *since);
        self.clears = Some(self.clears.unwrap_or(oldest));
        self.dropped.clear();
        self.send_waiting();
    }

    /// Notes a hit of a plain read. `may_be_admitted` is asked
    /// where a key is about to be admitted: whether the hash is the key's, and the key one of the secondary store.
    #[inline]
    pub fn read(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        item: &Item<'_>,
        (second, may_be_admitted): (Second, impl FnOnce() -> bool),
    ) -> Marks {
        if self.epoch == 0 {
            return Marks::default();
        }
        // No admission while removals wait: a slot that is to be emptied may be the one that would
        // be taken.
        let waits = self.clears.is_some() || !self.dropped.is_empty() || self.now < self.full;
        let has_room = !self.end.free.is_empty() && !waits;
        let may_admit = has_room && second >= self.pause && fits(item);
        self.counters.reads += 1;
        let bytes = key.len() + item.value.len();
        let replicated = match self.policy.read(hash, bytes, may_admit) {
            Seen::Unpopular => false,
            Seen::Popular { slot } => self.slots[slot as usize].replicated,
            Seen::Admitted { slot, evicted } => {
                self.counters.evictions += u64::from(evicted);
                // Asked last, because it hashes the key: only few reads come so far.
                match may_be_admitted() {
                    true => self.admit(slot, (key, item), evicted),
                    // The policy has given it the slot already: what that held before, if it was
                    // another key, is removed with it.
                    false => self.drop_slot(slot),
                }
                false
            }
        };
        self.counters.replicated_reads += u64::from(replicated);
        Marks {
            replicated,
            ..self.marks()
        }
    }

    #[cold]
    fn admit(&mut self, slot: u32, of: (&[u8], &Item<'_>), evicted: bool) {
        self.counters.admissions += 1;
        self.slots[slot as usize] = Slot {
            // The number of the change that is sent next, below.
            admission: self.next,
            ..Slot::default()
        };
        // There was room before the key was admitted.
        self.put(slot, of, evicted);
    }

    /// Notes that a key was written, or that its item has gone: `item` is what there is now.
    pub fn changed(&mut self, hash: KeyHash, key: &[u8], item: Option<&Item<'_>>) {
        if self.epoch == 0 {
            return;
        }
        self.policy.other();
        let Some(slot) = self.policy.find(hash) else {
            return;
        };
        let waits = self.clears.is_some();
        // Clients that have seen a higher version read nothing older than that. So where a version does not go
        // up, the key has to leave the secondary store, which replies show, before it comes back.
        let before = self.slots[slot as usize].version;
        match item.filter(|item| fits(item) && !waits && item.version > before) {
            Some(item) if self.put(slot, (key, item), true) => {}
            _ => self.drop_slot(slot),
        }
    }

    /// Notes that a key was looked for in vain, so that what is replicated of it goes. `is_own` is asked of a
    /// popular key: whether the hash is that of the key that was looked for.
    #[inline]
    pub fn missed(&mut self, hash: KeyHash, is_own: impl FnOnce() -> bool) {
        if self.epoch != 0
            && let Some(slot) = self.policy.find(hash)
            && is_own()
        {
            self.drop_slot(slot);
        }
    }

    /// Notes that all items go, at once or at a second to come.
    pub fn flush(&mut self, at: Second) {
        self.pause = at;
        if self.epoch != 0 {
            self.clear();
        }
    }

    /// Returns the marks of a reply that shows no item.
    #[must_use]
    pub fn marks(&self) -> Marks {
        Marks {
            replicated: false,
            leased: self.leased,
            store: store_number(self.epoch),
        }
    }

    /// Returns whether changes were sent since the last call: the other end has to be woken.
    #[inline]
    pub fn take_sent(&mut self) -> bool {
        std::mem::take(&mut self.sent)
    }

    /// Prefetches what a request for this key will access.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash) {
        self.policy.prefetch(hash);
    }

    /// Zeroes the counters.
    pub fn reset(&mut self) {
        self.counters.reset();
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> TrackerCounters {
        TrackerCounters {
            keys: self.policy.len() as u64,
            under_way: self.under_way.iter().filter(|change| !change.ended).count() as u64,
            ..self.counters
        }
    }
}

/// Returns what replies call the connection of this number.
#[must_use]
pub fn store_number(epoch: u64) -> u8 {
    (epoch % STORE_NUMBERS) as u8
}

/// Returns whether an item can be replicated: it does not expire, is not marked, and is no longer than a client
/// takes.
fn fits(item: &Item<'_>) -> bool {
    // Clients have to see such an item at the server: a win or a stale value is not theirs to
    // decide.
    let plain = !item.stale && !item.won && !item.win_sent;
    plain
        && item.deadline == herdwick_request::Deadline::NEVER
        && item.value.len() <= VALUE_BYTES_MAX
}
