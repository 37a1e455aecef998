//! Entries that a client held when it was removed: those that it had not linked are retired. The server
//! walks the chain of the key that an entry names to find out whether it was linked.

use herdwick_fabric::Port;

use super::{
    Server,
    entries::State,
    index::Phase,
    tasks::{FRONT, Reason, Task},
};
use crate::{
    layout::{Entry, KeyHash, UNIT},
    nodes::{Landed, Nodes},
};

/// Entries that one pass looks at.
const ENTRIES_PER_PASS: u32 = 1 << 12;

impl Server {
    /// Looks at the next entry.
    pub(super) fn reap<P: Port>(&mut self, port: &mut P) {
        let Some(client) = self.reaper.clients.front().copied() else {
            return;
        };
        if self.reaper.busy || !self.tasks.has_room() {
            return;
        }
        let held = self
            .entries
            // Bounded: a pass must not walk over all entries.
            .held_from(self.reaper.next, ENTRIES_PER_PASS, client);
        match held {
            Ok(number) => {
                (self.reaper.next, self.reaper.busy) = (number, true);
                let place = self.entries.place(number);
                let class = self.entries.geometry().class_at(place.target);
                let len = FRONT.min(UNIT << class.unwrap_or(0));
                self.tasks
                    .begin(Task::Orphan { number }, |nodes: &mut Nodes, index| {
                        nodes.read(port, index, place.offset(), len);
                    });
            }
            Err(end) if end == self.entries.geometry().count() => {
                self.reaper.next = 0;
                // Only now may the index of the client be another's (`next_id`).
                self.reaper.clients.pop_front();
            }
            Err(end) => self.reaper.next = end,
        }
    }

    /// Takes the front of an entry.
    pub(super) fn orphaned<P: Port>(&mut self, port: &mut P, landed: Landed, number: u32) {
        let mut bytes = [0; FRONT];
        self.tasks.nodes.bytes(landed, &mut bytes);
        self.tasks.end(landed);
        let place = self.entries.place(number);
        // The table does not know whether the client wrote a value or a tombstone.
        let deleted = crate::layout::Place {
            tombstone: true,
            ..place
        };
        let entry = Entry::parsed(place, &bytes).or_else(|| Entry::parsed(deleted, &bytes));
        let hash = entry.map(|entry| KeyHash::of(&self.hash_key, entry.key));
        let Some(slot) = hash.and_then(|hash| self.index.find(&hash)) else {
            // Never written, or the key has no chain.
            return self.reaped(number);
        };
        if self.index.slot(slot).phase == Phase::Broken {
            self.abandoned(number);
        } else if self.index.reserve(slot) {
            self.collect(port, slot, Reason::Orphan(number));
        } else {
            // A task works on the key: later.
            self.reaper.busy = false;
        }
    }

    /// The entry may be part of a chain that makes no sense.
    pub(super) fn abandoned(&mut self, number: u32) {
        let place = self.entries.place(number);
        // As if it were linked: then it is never free again.
        self.entries.link(place);
        self.reaper.skip();
    }

    /// The chain of the entry's key is known to its end.
    pub(super) fn reaped(&mut self, number: u32) {
        let place = self.entries.place(number);
        // A walk of the chain has made it `Linked` if it is part of it.
        if let Some((_, State::Held(_))) = self.entries.find(place)
            && self.entries.retire(place)
        {
            self.counters.reclaimed += 1;
        }
        self.reaper.skip();
    }
}
