//! The requests in flight on the fabric, by token.

use std::time::Duration;

use super::translate::OpKind;
use crate::Ticket;

/// The requests in flight: at most as many as all windows together hold.
#[derive(Debug)]
pub(super) struct Pending {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// A time before which no entry is due.
    due: Option<Duration>,
}

#[derive(Debug, Default)]
struct Slot {
    entry: Option<Entry>,
    key: Vec<u8>,
}

/// One request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) ticket: Ticket,
    pub(super) unix: u64,
    pub(super) due: Duration,
    pub(super) kind: OpKind,
}

impl Pending {
    pub(super) fn new(capacity: u32) -> Self {
        let slots = (0..capacity).map(|_| Slot::default()).collect();
        Self {
            slots,
            free: (0..capacity).rev().collect(),
            due: None,
        }
    }

    /// Takes a free token, to be filled or released.
    pub(super) fn reserve(&mut self) -> Option<u64> {
        self.free.pop().map(u64::from)
    }

    pub(super) fn fill(&mut self, token: u64, entry: Entry, key: &[u8]) {
        let slot = &mut self.slots[token as usize];
        slot.key.clear();
        slot.key.extend_from_slice(key);
        slot.entry = Some(entry);
        self.due = Some(self.due.map_or(entry.due, |due| due.min(entry.due)));
    }

    pub(super) fn release(&mut self, token: u64) {
        self.slots[token as usize].entry = None;
        self.free.push(token as u32);
        if self.free.len() == self.slots.len() {
            self.due = None;
        }
    }

    pub(super) fn entry(&self, token: u64) -> Option<&Entry> {
        self.slots.get(token as usize)?.entry.as_ref()
    }

    /// The key of the request in flight under `token`.
    pub(super) fn key(&self, token: u64) -> Option<&[u8]> {
        let slot = self.slots.get(token as usize)?;
        slot.entry.is_some().then_some(&slot.key)
    }

    /// Returns when the oldest is due; searches for it only once the hint has passed.
    pub(super) fn due(&mut self, now: Duration) -> Option<Duration> {
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
    pub(super) fn due_hint(&self) -> Option<Duration> {
        self.due
    }
}
