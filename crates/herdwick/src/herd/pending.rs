//! The requests in flight on the fabric, by token.

use std::time::Duration;

use super::translate::OpKind;
use crate::Ticket;

/// The requests in flight: at most as many as all windows together hold.
#[derive(Debug)]
pub(crate) struct Pending {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// A time before which no entry is due.
    due: Option<Duration>,
    /// Entries that are no reads.
    changes: usize,
}

#[derive(Debug, Default)]
struct Slot {
    entry: Option<Entry>,
    key: Vec<u8>,
}

/// One request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) ticket: Ticket,
    pub(crate) unix: u64,
    pub(crate) due: Duration,
    pub(crate) kind: OpKind,
}

impl Pending {
    pub(crate) fn new(capacity: u32) -> Self {
        let slots = (0..capacity).map(|_| Slot::default()).collect();
        Self {
            slots,
            free: (0..capacity).rev().collect(),
            due: None,
            changes: 0,
        }
    }

    /// Returns how many requests all windows together hold.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Takes a free token, to be filled or released.
    pub(crate) fn reserve(&mut self) -> Option<u64> {
        self.free.pop().map(u64::from)
    }

    pub(crate) fn fill(&mut self, token: u64, entry: Entry, key: &[u8]) {
        let slot = &mut self.slots[token as usize];
        slot.key.clear();
        slot.key.extend_from_slice(key);
        slot.entry = Some(entry);
        self.changes += usize::from(entry.kind != OpKind::Get);
        self.due = Some(self.due.map_or(entry.due, |due| due.min(entry.due)));
    }

    pub(crate) fn release(&mut self, token: u64) {
        // A token that was reserved and never filled has no entry.
        let entry = self.slots[token as usize].entry.take();
        self.changes -= usize::from(entry.is_some_and(|entry| entry.kind != OpKind::Get));
        self.free.push(token as u32);
        // Without requests there is no time to look for.
        if self.free.len() == self.slots.len() {
            self.due = None;
        }
    }

    pub(crate) fn entry(&self, token: u64) -> Option<&Entry> {
        self.slots.get(token as usize)?.entry.as_ref()
    }

    /// Returns the number of requests in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether a request for `key` is in flight, beside which one of `kind` has no order: two reads need
    /// none.
    pub(crate) fn holds(&self, key: &[u8], kind: OpKind) -> bool {
        self.slots.iter().any(|slot| {
            let reads = |entry: &Entry| entry.kind == OpKind::Get && kind == OpKind::Get;
            slot.entry.is_some_and(|entry| !reads(&entry)) && slot.key == key
        })
    }

    /// Whether a request for `key` is in flight that may change its item.
    pub(super) fn changes(&self, key: &[u8]) -> bool {
        // A session that only reads searches for nothing.
        self.changes > 0 && self.holds(key, OpKind::Get)
    }

    /// Ends every request in flight.
    pub(crate) fn drain(&mut self, mut end: impl FnMut(&Entry)) {
        for token in 0..self.slots.len() {
            if let Some(entry) = self.slots[token].entry {
                self.release(token as u64);
                end(&entry);
            }
        }
    }

    /// The key of the request in flight under `token`.
    pub(super) fn key(&self, token: u64) -> Option<&[u8]> {
        let slot = self.slots.get(token as usize)?;
        slot.entry.is_some().then_some(&slot.key)
    }

    /// Returns when the oldest is due; searches for it only once the hint has passed.
    pub(crate) fn due(&mut self, now: Duration) -> Option<Duration> {
        if self.due.is_some_and(|due| due <= now) {
            self.due = self
                .slots
                .iter()
                .filter_map(|slot| slot.entry)
                .map(|entry| entry.due)
                .min();
        }
        self.due
    }

    /// Returns a time before which no entry is due.
    pub(crate) fn due_hint(&self) -> Option<Duration> {
        self.due
    }
}
