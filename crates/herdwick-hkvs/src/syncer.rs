//! The machine that brings the secondary store up to date: it turns changes of slots into operations on keys.
//! It knows which key each slot holds, so that what a slot held before goes.
//!
//! The operations are begun in the order of the changes, and those of a key are executed in the order in which
//! they are begun.

use std::collections::VecDeque;

use herdwick_request::KEY_BYTES_MAX;

use crate::change::{Act, Change, Outcome};

/// An operation on the secondary store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncOp<'a> {
    /// Store a record under a key.
    Store {
        /// The key.
        key: &'a [u8],
        /// The record.
        record: &'a [u8],
    },
    /// Delete a key, stored or not.
    Delete {
        /// The key.
        key: &'a [u8],
    },
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncAnswer {
    /// Done; or there was nothing to delete.
    Done,
    /// There is no room: nothing was changed.
    Refused,
}

/// Names an operation that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SyncToken {
    change: usize,
    stores: bool,
}

/// Bytes of memory for a key, on average over the slots of all workers: fewer slots are used if keys are longer.
const KEY_ROOM: usize = 64;
/// What the allocator adds to a key, at most.
const KEY_OVERHEAD: usize = 24;

/// The keys of a worker, by slot.
type HeldKeys = Box<[Box<[u8]>]>;

/// The machine, of all workers.
#[derive(Debug)]
pub struct Syncer {
    /// The key that each slot of each worker holds, or is about to; an empty one: nothing.
    held: Vec<HeldKeys>,
    /// Bytes of memory that are left for keys.
    room: usize,
    /// Changes that have not ended.
    changes: Vec<Option<Progress>>,
    free: Vec<usize>,
    /// Operations that have not begun, in order.
    due: VecDeque<Due>,
    /// The connection.
    epoch: u64,
}

#[derive(Debug)]
struct Progress {
    worker: usize,
    change: Change,
    /// Operations that have not ended.
    left: usize,
}

#[derive(Debug)]
enum Due {
    /// The item of a change.
    Store(usize),
    /// A key, for a change.
    Delete(usize, Box<[u8]>),
    /// The key of a change whose item was refused.
    Undo(usize),
}

impl SyncToken {
    /// Returns whether the operation is [`SyncOp::Store`].
    #[must_use]
    pub fn stores(self) -> bool {
        self.stores
    }
}

impl Syncer {
    /// Makes a machine for so many workers, each of so many slots, of an empty store.
    #[must_use]
    pub fn new(workers: usize, slots: usize) -> Self {
        Self {
            held: vec![vec![Box::default(); slots].into(); workers],
            // One key fits in any case.
            room: (workers * slots * KEY_ROOM).max(KEY_BYTES_MAX + KEY_OVERHEAD),
            changes: Vec::new(),
            free: Vec::new(),
            due: VecDeque::new(),
            epoch: 0,
        }
    }

    /// Returns the bytes of memory that it has for the slots of a worker.
    #[must_use]
    pub fn bytes(slots: usize) -> usize {
        slots * (size_of::<Box<[u8]>>() + KEY_ROOM)
    }

    /// Begins with a connection of this number, to an empty store.
    pub fn begin(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Takes a change of a worker. It comes back at once if there is nothing to do, or if it is for an earlier
    /// connection.
    pub fn accept(&mut self, worker: usize, mut change: Change) -> Option<Change> {
        // Its slots hold nothing in the store of this connection.
        if change.epoch != self.epoch {
            change.outcome = Outcome::Lost;
            return Some(change);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.changes.push(None);
            self.changes.len() - 1
        });
        let before = self.due.len();
        match change.act {
            Act::Put if self.holds(worker, &change) => self.due.push_back(Due::Store(index)),
            Act::Put => {
                self.release(worker, change.slot, index);
                match self.hold(worker, &change) {
                    true => self.due.push_back(Due::Store(index)),
                    false => change.outcome = Outcome::Refused,
                }
            }
            Act::Remove => self.release(worker, change.slot, index),
            Act::Clear => {
                let slots = self.held[worker].len() as u32;
                (0..slots).for_each(|slot| self.release(worker, slot, index));
            }
        }
        // Each operation that was added is one that the change waits for.
        let left = self.due.len() - before;
        if left == 0 {
            self.free.push(index);
            return Some(change);
        }
        self.changes[index] = Some(Progress {
            worker,
            change,
            left,
        });
        None
    }

    /// Returns whether the slot of a change holds its key.
    fn holds(&self, worker: usize, change: &Change) -> bool {
        *self.held[worker][change.slot as usize] == *change.key
    }

    /// Has an empty slot hold the key of a change, if there is memory for it.
    fn hold(&mut self, worker: usize, change: &Change) -> bool {
        let taken = change.key.len() + KEY_OVERHEAD;
        let fits = taken <= self.room;
        if fits {
            self.room -= taken;
            // A copy, because the change goes back to its worker before the slot is emptied.
            self.held[worker][change.slot as usize] = change.key.as_slice().into();
        }
        fits
    }

    /// Empties a slot for a change: the key that it held is to be deleted.
    fn release(&mut self, worker: usize, slot: u32, change: usize) {
        let old = std::mem::take(&mut self.held[worker][slot as usize]);
        if !old.is_empty() {
            self.due.push_back(Due::Delete(change, old));
        }
    }

    /// Returns the operation that is to begin next.
    #[must_use]
    pub fn next_op(&self) -> Option<(SyncToken, SyncOp<'_>)> {
        match self.due.front()? {
            Due::Store(change) => {
                let of = &self.changes[*change].as_ref()?.change;
                let token = SyncToken {
                    change: *change,
                    stores: true,
                };
                let (key, record) = (&of.key[..], &of.record[..]);
                Some((token, SyncOp::Store { key, record }))
            }
            Due::Delete(change, key) => Some((deletion(*change), SyncOp::Delete { key })),
            Due::Undo(change) => {
                let key = &self.changes[*change].as_ref()?.change.key;
                Some((deletion(*change), SyncOp::Delete { key }))
            }
        }
    }

    /// Notes that the operation of [`Syncer::next_op`] has begun.
    pub fn begun(&mut self) {
        if let Some(Due::Delete(_, key)) = self.due.pop_front() {
            // Only when its deletion has begun: until then the key takes memory.
            self.room += key.len() + KEY_OVERHEAD;
        }
    }

    /// Notes how an operation ended. Returns its change and worker, if that was the last one.
    pub fn answered(&mut self, token: SyncToken, answer: SyncAnswer) -> Option<(usize, Change)> {
        let progress = self.changes.get_mut(token.change)?.as_mut()?;
        if answer == SyncAnswer::Refused {
            progress.change.outcome = Outcome::Refused;
            // A value from before must not stay. It goes before any other operation on the key begins.
            if token.stores {
                // The token has the number of the change again: `left` still counts one operation,
                // now the deletion.
                self.due.push_front(Due::Undo(token.change));
                return None;
            }
        }
        progress.left -= 1;
        if progress.left > 0 {
            return None;
        }
        self.free.push(token.change);
        let ended = self.changes[token.change].take();
        ended.map(|progress| (progress.worker, progress.change))
    }

    /// Gives all changes back: the connection is lost, and another begins with an empty store.
    pub fn abandon(&mut self) -> Vec<(usize, Change)> {
        let (workers, slots) = (
            self.held.len(),
            self.held.first().map_or(0, |one| one.len()),
        );
        let before = std::mem::replace(self, Self::new(workers, slots));
        let lost = before.changes.into_iter().flatten().map(|mut progress| {
            progress.change.outcome = Outcome::Lost;
            (progress.worker, progress.change)
        });
        lost.collect()
    }

    /// Returns whether there is nothing to do.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.changes.len()
    }
}

fn deletion(change: usize) -> SyncToken {
    let stores = false;
    SyncToken { change, stores }
}
