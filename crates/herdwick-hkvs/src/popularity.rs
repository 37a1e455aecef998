//! What a policy is: it decides which keys are popular, so that they are replicated.

use herdwick_request::KeyHash;

/// Popular keys that [`Popularity::next_victim`] of this crate's policies looks at: some microseconds.
pub(crate) const LOOKED_AT: usize = 256;

/// A policy. Each worker has one for the keys of its partition.
///
/// A popular key has a *slot*, a number below the policy's size, until it is evicted or removed. A hash stands for
/// its key.
pub trait Popularity: Send {
    /// Notes a read of a key whose item has `bytes` bytes, key and value. A key that is not popular is admitted
    /// only if `may_admit`.
    fn read(&mut self, hash: KeyHash, bytes: usize, may_admit: bool) -> Seen;

    /// Notes a request that reads no item.
    fn other(&mut self);

    /// Returns the slot of a key, if it is popular.
    fn find(&self, hash: KeyHash) -> Option<u32>;

    /// Removes the key at `slot`, if there is one.
    fn remove(&mut self, slot: u32);

    /// Removes all popular keys.
    fn clear(&mut self);

    /// Returns the slot of the key that is to go next of those that `may_go`, where the secondary store has no room
    /// for as many as the policy; `None`: the policy names none. It need not look at all keys in one call, which
    /// the worker waits for, but at others in the next.
    fn next_victim(&mut self, may_go: &dyn Fn(u32) -> bool) -> Option<u32> {
        let _ = may_go;
        None
    }

    /// Returns the number of popular keys.
    fn len(&self) -> usize;

    /// Returns whether no key is popular.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Prefetches what the next calls for this key will access.
    fn prefetch(&self, hash: KeyHash) {
        let _ = hash;
    }
}

/// What a read has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The key is popular.
    Popular {
        /// Its slot.
        slot: u32,
    },
    /// The key is popular from now on.
    Admitted {
        /// Its slot.
        slot: u32,
        /// The slot was another key's, which is popular no longer.
        evicted: bool,
    },
    /// The key is not popular.
    Unpopular,
}

/// The sizes of a policy. The defaults are the paper's, for a whole server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most popular keys.
    pub keys: usize,
    /// Reads within the window that admit a key.
    pub reads: u8,
    /// Requests of the window.
    pub window: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            keys: 100_000,
            reads: 4,
            window: 800_000,
        }
    }
}

impl Limits {
    /// Returns the part of one of `workers` workers.
    #[must_use]
    pub fn share(self, workers: usize) -> Self {
        let workers = workers.max(1);
        Self {
            keys: (self.keys / workers).max(1),
            window: (self.window / workers).max(1),
            ..self
        }
    }
}
