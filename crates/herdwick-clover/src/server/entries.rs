//! What the metadata server knows of each entry's memory: free, held by a client, part of a chain, or
//! waiting until no client can use it any more. Private memory: nothing that a client writes changes it.

use std::collections::VecDeque;

use crate::layout::{CLASSES, Geometry, Place};

/// The use of an entry's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// Handed to the client of this index, which may have linked it.
    Held(u16),
    /// The first entry of a key that is being created.
    Creating,
    /// Part of a chain.
    Linked,
    /// Taken out of its chain.
    Retired,
}

#[derive(Clone, Copy, Debug)]
struct Use {
    version: u16,
    state: State,
}

/// An entry that waits for all clients to leave an epoch.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    number: u32,
    epoch: u64,
    /// Whether it waits a second time, for all cursors to be forgotten: its version begins again.
    wrapped: bool,
}

/// All entries.
#[derive(Debug)]
pub(super) struct Entries {
    geometry: Geometry,
    table: Vec<Use>,
    free: [VecDeque<u32>; CLASSES],
    waiting: VecDeque<Waiting>,
    /// Entries that each client holds.
    held: Vec<u32>,
    epoch: u64,
    flush: u64,
    /// Whether an entry was retired in this epoch.
    retired: bool,
    pub(super) recycled: u64,
    pub(super) wraps: u64,
}

impl Entries {
    /// Returns the bytes that the tables for `count` entries have.
    pub(super) fn bytes(count: usize) -> usize {
        count * (size_of::<Use>() + size_of::<u32>() + size_of::<Waiting>())
    }

    /// All entries are free once [`Entries::open`] is called.
    pub(super) fn new(geometry: Geometry, clients: usize) -> Self {
        let free = Use {
            version: 0,
            state: State::Free,
        };
        Self {
            table: vec![free; geometry.count() as usize],
            free: geometry
                .entries
                .map(|count| VecDeque::with_capacity(count as usize)),
            waiting: VecDeque::with_capacity(geometry.count() as usize),
            held: vec![0; clients],
            geometry,
            epoch: 1,
            flush: 0,
            retired: false,
            recycled: 0,
            wraps: 0,
        }
    }

    /// Fills the lists of free entries.
    pub(super) fn open(&mut self) {
        for number in 0..self.table.len() as u32 {
            if self.table[number as usize].state == State::Free {
                self.give(number);
            }
        }
    }

    fn give(&mut self, number: u32) {
        let target = self.geometry.target_of(number);
        if let Some(class) = self.geometry.class_at(target) {
            self.free[class].push_back(number);
        }
    }

    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The server's epoch, and the last one at whose beginning cursors have to go.
    pub(super) fn epochs(&self) -> (u64, u64) {
        (self.epoch, self.flush)
    }

    /// Returns how many entries a client holds.
    pub(super) fn held(&self, client: u16) -> u32 {
        self.held[usize::from(client)]
    }

    /// Returns how many entries of a class are free.
    pub(super) fn free(&self, class: usize) -> usize {
        self.free[class].len()
    }

    /// Hands the entry that has been free for longest to a client.
    pub(super) fn take(&mut self, class: usize, client: u16) -> Option<Place> {
        // Free for longest first: uses are spread over all entries, and versions wrap as late as
        // can be.
        let number = self.free.get_mut(class)?.pop_front()?;
        let entry = &mut self.table[number as usize];
        entry.state = State::Held(client);
        self.held[usize::from(client)] += 1;
        Some(self.place(number))
    }

    /// Returns the place of an entry in its present use; not whether it is a tombstone.
    pub(super) fn place(&self, number: u32) -> Place {
        Place {
            target: self.geometry.target_of(number),
            version: self.table[number as usize].version,
            tombstone: false,
        }
    }

    /// Returns the number of the entry at `place`, and its state, if this is its present use.
    pub(super) fn find(&self, place: Place) -> Option<(u32, State)> {
        let (_, number) = self.geometry.entry_at(place.target)?;
        let entry = &self.table[number as usize];
        // A place of an earlier use is none: what a client claims of it is refused.
        (entry.version == place.version).then_some((number, entry.state))
    }

    /// Returns the next entry from `number` on, among `count`, that a client holds; or where to go on.
    pub(super) fn held_from(&self, number: u32, count: u32, client: u16) -> Result<u32, u32> {
        let end = number.saturating_add(count).min(self.table.len() as u32);
        let mut numbers = number..end;
        let held = |number: &u32| self.table[*number as usize].state == State::Held(client);
        numbers.find(held).ok_or(end)
    }

    fn set(&mut self, number: u32, state: State) {
        let entry = &mut self.table[number as usize];
        if let State::Held(client) = entry.state {
            self.held[usize::from(client)] -= 1;
        }
        entry.state = state;
        if let State::Held(client) = state {
            self.held[usize::from(client)] += 1;
        }
    }

    /// Returns whether a client holds the entry at `place`.
    pub(super) fn is_held(&self, place: Place, client: u16) -> bool {
        let found = self.find(place);
        found.is_some_and(|(_, state)| state == State::Held(client))
    }

    /// A client creates a key with an entry that it holds; `false`: it does not.
    pub(super) fn create(&mut self, place: Place, client: u16) -> bool {
        match self.find(place) {
            Some((number, State::Held(holder))) if holder == client => {
                self.set(number, State::Creating);
                true
            }
            _ => false,
        }
    }

    /// The key was not created after all: the client holds the entry again.
    pub(super) fn uncreate(&mut self, place: Place, client: u16) {
        if let Some((number, State::Creating)) = self.find(place) {
            self.set(number, State::Held(client));
        }
    }

    /// An entry was found in a chain; `false`: it cannot be there.
    pub(super) fn link(&mut self, place: Place) -> bool {
        match self.find(place) {
            Some((number, State::Held(_) | State::Creating | State::Linked)) => {
                self.set(number, State::Linked);
                true
            }
            _ => false,
        }
    }

    /// An entry was found in a chain before [`Entries::open`]; `false`: it cannot be there, or was found
    /// before.
    pub(super) fn recover(&mut self, place: Place) -> bool {
        let found = self.geometry.entry_at(place.target);
        // The version is of memory that clients write.
        let Some((_, number)) = found.filter(|_| place.version < self.geometry.versions) else {
            return false;
        };
        let entry = &mut self.table[number as usize];
        // Two chains cannot share an entry: the second one found is invalid.
        let first = entry.state == State::Free;
        if first {
            (entry.version, entry.state) = (place.version, State::Linked);
        }
        first
    }

    /// An entry was taken out of its chain, or was never in one. Returns whether it was in use.
    pub(super) fn retire(&mut self, place: Place) -> bool {
        match self.find(place) {
            Some((number, State::Linked | State::Held(_))) => {
                self.set(number, State::Retired);
                self.waiting.push_back(Waiting {
                    number,
                    epoch: self.epoch,
                    wrapped: false,
                });
                self.retired = true;
                true
            }
            _ => false,
        }
    }

    /// Begins an epoch if anything was retired in this one, and frees what no client can use any more:
    /// all of them have published at least `published`.
    pub(super) fn advance(&mut self, published: u64) {
        // One epoch for all that was retired since the last pass.
        if std::mem::take(&mut self.retired) {
            self.epoch += 1;
        }
        // In order of their epochs: the first that has to wait ends the search.
        while let Some(first) = self.waiting.front().copied() {
            // Requests of a client that has published `epoch` may still use what was retired in
            // `epoch`.
            if first.epoch >= published.min(self.epoch) {
                return;
            }
            self.waiting.pop_front();
            let entry = &mut self.table[first.number as usize];
            if entry.version + 1 == self.geometry.versions && !first.wrapped {
                // Versions that clients remember mean another use from now on.
                self.wraps += 1;
                self.waiting.push_back(Waiting {
                    epoch: self.epoch,
                    wrapped: true,
                    ..first
                });
                self.flush = self.epoch + 1;
                self.retired = true;
                continue;
            }
            entry.version = (entry.version + 1) % self.geometry.versions;
            entry.state = State::Free;
            self.recycled += 1;
            self.give(first.number);
        }
    }
}
