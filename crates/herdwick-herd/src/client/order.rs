//! Requests for one key take effect in the order of their submission: one that may not overtake
//! another of its key is held back, unwritten, until that one's slot is free again.
//!
//! Slots are independent, and a line may be lost and written again: only what is not written yet is
//! sure to come later. Reads may overtake reads.

use herdwick_mica::KeyHash;

use super::lane::{Lane, State};
use crate::wire::{LINE_BYTES, OVERFLOW_BYTES, REQUEST_BYTES_MAX, Stamp};

/// Buckets for each slot: two of 32 requests in flight meet in one with a chance of an eighth, and
/// then the slots are looked through.
const BUCKETS_PER_SLOT: usize = 8;

/// How many requests without an end there are, by a part of their keys' hashes: reads in the lower
/// half of a number, others in the upper.
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

impl Lane {
    /// For how many requests one for the key of `hash` would have to wait.
    #[cold]
    pub(super) fn conflicts(&self, bucket: u16, hash: KeyHash, is_read: bool) -> u16 {
        let slots = self.slots.iter().zip(&self.lines);
        let earlier = slots.filter(|(slot, line)| {
            slot.bucket == bucket
                && slot.state != State::Free
                && line.hash() == hash
                && !(is_read && slot.is_read)
        });
        earlier.count() as u16
    }

    /// A free slot for a request that is held back: the one that the next requests reach last, for
    /// the worker looks for them in the order of the slots, and a gap holds it up.
    #[cold]
    pub(super) fn remote_slot(&self) -> usize {
        let mask = self.slots.len() - 1;
        let mut index = self.next.wrapping_sub(1) & mask;
        while self.slots[index].state != State::Free {
            index = index.wrapping_sub(1) & mask;
        }
        index
    }

    /// The request in the slot at `index` has ended: those that waited for it may go.
    #[cold]
    pub(super) fn resume(&mut self, index: usize) {
        let (hash, is_read) = (self.lines[index].hash(), self.slots[index].is_read);
        // One that was held back itself ends before those behind it.
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

    /// Queues a request that was held back in the slot at `from`: in the slot that the worker
    /// expects the next one in, if that is free.
    fn queue(&mut self, from: usize) {
        self.resumed = true;
        let to = self.free_slot().unwrap_or(from);
        if to != from {
            self.relocate(from, to);
        }
        self.next = (to + 1) & (self.slots.len() - 1);
        self.slots[to].state = State::Queued;
        self.pending.push(to as u16);
    }

    /// Moves a request that was never written, and its key's count, into another slot.
    fn relocate(&mut self, from: usize, to: usize) {
        let held = self.slots[from];
        self.slots[from].state = State::Free;
        self.slots[to] = super::lane::Slot {
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

// A window's slots of a bucket are counted in 16 bits, and a bucket is named in 16.
const _: () = {
    assert!(crate::wire::Window::MAX * BUCKETS_PER_SLOT <= 1 << 16);
    assert!(OVERFLOW_BYTES <= u16::MAX as usize);
};
