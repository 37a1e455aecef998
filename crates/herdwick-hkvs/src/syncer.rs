//! The machine that brings the secondary store up to date: it turns changes of slots into operations on keys.
//! It knows which key each slot holds, so that what a slot held before goes.
//!
//! The operations are begun in the order of the changes, and those of a key are executed in the order in which
//! they are begun.

use std::collections::{HashMap, VecDeque};

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

/// The machine, of all workers.
#[derive(Debug, Default)]
pub struct Syncer {
    /// What each slot of each worker holds, or is about to.
    held: Vec<HashMap<u32, Box<[u8]>>>,
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
}

impl SyncToken {
    /// Returns whether the operation is [`SyncOp::Store`].
    #[must_use]
    pub fn stores(self) -> bool {
        self.stores
    }
}

impl Syncer {
    /// Makes a machine for so many workers, of an empty store.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self {
            held: vec![HashMap::new(); workers],
            ..Self::default()
        }
    }

    /// Begins with a connection of this number, to an empty store.
    pub fn begin(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Takes a change of a worker. It comes back at once if there is nothing to do, or if it is for an earlier
    /// connection.
    pub fn accept(&mut self, worker: usize, mut change: Change) -> Option<Change> {
        if change.epoch != self.epoch {
            change.outcome = Outcome::Lost;
            return Some(change);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.changes.push(None);
            self.changes.len() - 1
        });
        let held = &mut self.held[worker];
        let before = self.due.len();
        match change.act {
            Act::Put => {
                let old = held.get(&change.slot).filter(|old| ***old != change.key);
                if let Some(old) = old {
                    self.due.push_back(Due::Delete(index, old.clone()));
                }
                held.insert(change.slot, change.key.as_slice().into());
                self.due.push_back(Due::Store(index));
            }
            Act::Remove => {
                let old = held.remove(&change.slot);
                self.due.extend(old.map(|old| Due::Delete(index, old)));
            }
            Act::Clear => {
                let all = held.drain().map(|(_, old)| Due::Delete(index, old));
                self.due.extend(all);
            }
        }
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
            Due::Delete(change, key) => {
                let token = SyncToken {
                    change: *change,
                    stores: false,
                };
                Some((token, SyncOp::Delete { key }))
            }
        }
    }

    /// Notes that the operation of [`Syncer::next_op`] has begun.
    pub fn begun(&mut self) {
        self.due.pop_front();
    }

    /// Notes how an operation ended. Returns its change and worker, if that was the last one.
    pub fn answered(&mut self, token: SyncToken, answer: SyncAnswer) -> Option<(usize, Change)> {
        let progress = self.changes.get_mut(token.change)?.as_mut()?;
        if answer == SyncAnswer::Refused {
            progress.change.outcome = Outcome::Refused;
            // A value from before must not stay. It goes before any other operation on the key begins.
            if token.stores {
                let key = progress.change.key.as_slice().into();
                self.due.push_front(Due::Delete(token.change, key));
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
        let workers = self.held.len();
        let changes = std::mem::take(self).changes;
        *self = Self::new(workers);
        let lost = changes.into_iter().flatten().map(|mut progress| {
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
