//! Ordering of requests for one key: they take effect in the order of submission. A request that
//! may not overtake another for its key is held back, unwritten, until that one's slot is free.
//!
//! Slots are independent, and a lost line is written again later, so only a line that is not yet
//! written is certain to arrive later. Reads may overtake reads.
//!
//! In a circle with `client` and `channel`: the client holds channels, which take its options and keep
//! their requests in order, and the order looks at a channel's slots.

use herdwick_request::KeyHash;

use super::channel::{Channel, SlotState};
use crate::wire::{LINE_BYTES, OVERFLOW_BYTES, REQUEST_BYTES_MAX, Stamp};

/// Buckets a slot. A new request shares its bucket with one of 32 in flight with a probability of
/// one eighth; the slots are then compared one by one.
const BUCKETS_PER_SLOT: usize = 8;

/// Counts unfinished requests by some bits of their keys' hashes: reads in the lower half of each
/// number, mutations in the upper half.
pub(super) struct Keys(Box<[u32]>);

const READ: u32 = 1;
const MUTATION: u32 = 1 << 16;

impl Keys {
    pub(super) fn new(window: usize) -> Self {
        Self(vec![0; window * BUCKETS_PER_SLOT].into())
    }

    #[inline]
    pub(super) fn bucket(&self, hash: KeyHash) -> u16 {
        hash.0 as u16 & (self.0.len() - 1) as u16
    }

    /// Whether a request of this bucket may have to wait for another.
    #[inline]
    pub(super) fn may_conflict(&self, bucket: u16, is_read: bool) -> bool {
        let least = if is_read { MUTATION } else { READ };
        self.0[usize::from(bucket)] >= least
    }

    #[inline]
    pub(super) fn add(&mut self, bucket: u16, is_read: bool) {
        self.0[usize::from(bucket)] += if is_read { READ } else { MUTATION };
    }

    #[inline]
    pub(super) fn remove(&mut self, bucket: u16, is_read: bool) {
        self.0[usize::from(bucket)] -= if is_read { READ } else { MUTATION };
    }
}

impl Channel {
    /// Counts the requests that a request for the key of `hash` would have to wait for.
    #[cold]
    pub(super) fn conflicts(&self, bucket: u16, hash: KeyHash, is_read: bool) -> u16 {
        let slots = self.slots.iter().zip(&self.lines);
        let earlier = slots.filter(|(slot, line)| {
            slot.bucket == bucket
                && slot.state != SlotState::Free
                && line.hash() == hash
                && !(is_read && slot.is_read)
        });
        earlier.count() as u16
    }

    /// Returns a free slot for a request that is held back: the one that the next requests reach
    /// last, because the worker looks for requests in slot order and a gap delays it.
    #[cold]
    pub(super) fn remote_slot(&self) -> usize {
        let mask = self.slots.len() - 1;
        let mut index = self.next.wrapping_sub(1) & mask;
        while self.slots[index].state != SlotState::Free {
            index = index.wrapping_sub(1) & mask;
        }
        index
    }

    /// Queues the requests that waited for the one in the slot at `index`, which has ended.
    #[cold]
    pub(super) fn resume(&mut self, index: usize) {
        let (hash, is_read) = (self.lines[index].hash(), self.slots[index].is_read);
        // A request that was itself held back precedes only those behind it in `held`.
        let place = |held: &u16| usize::from(*held) == index;
        let mut next = 0;
        if let Some(place) = self.held.iter().position(place) {
            self.held.remove(place);
            next = place;
        }
        while let Some(held) = self.held.get(next).copied() {
            let held = usize::from(held);
            let slot = &mut self.slots[held];
            if self.lines[held].hash() == hash && !(is_read && slot.is_read) {
                slot.waits_for -= 1;
                if slot.waits_for == 0 {
                    self.held.remove(next);
                    self.queue(held);
                    continue;
                }
            }
            next += 1;
        }
    }

    /// Queues the held-back request of the slot at `from`, moved to the slot in which the worker
    /// expects the next request, if a slot is free.
    fn queue(&mut self, from: usize) {
        self.resumed = true;
        let to = self.free_slot().unwrap_or(from);
        if to != from {
            self.relocate(from, to);
        }
        self.next = (to + 1) & (self.slots.len() - 1);
        self.slots[to].state = SlotState::Queued;
        self.pending.push(to as u16);
    }

    /// Moves a request that was never written into another slot, with its key's bucket.
    fn relocate(&mut self, from: usize, to: usize) {
        let held = self.slots[from];
        self.slots[from].state = SlotState::Free;
        self.slots[to] = super::channel::Slot {
            sequence: self.slots[to].sequence,
            ..held
        };
        let stamp = Stamp::new(self.spec.epoch, self.slots[to].sequence);
        self.lines[to] = self.lines[from];
        self.lines[to].restamp(stamp);
        if held.overflow_len > 0 {
            let body = &mut self.overflow[..held.overflow_len.into()];
            let at = |slot| slot * REQUEST_BYTES_MAX + LINE_BYTES;
            self.stage.read_bytes(at(from), body);
            self.stage.write_bytes(at(to), body);
        }
    }
}

// The counters of a bucket have 16 bits each for a window's slots, and a bucket's index has 16.
const _: () = {
    assert!(crate::wire::Window::MAX * BUCKETS_PER_SLOT <= 1 << 16);
    assert!(OVERFLOW_BYTES <= u16::MAX as usize);
};
