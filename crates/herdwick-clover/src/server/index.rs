//! The metadata server's index: the slot of each key, and the entry that its shortcut names.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasherDefault, Hasher},
};

use crate::layout::{KeyHash, Place};

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Free,
    /// The shortcut is being written for the first time.
    Creating,
    Live,
    /// The chain is closed, or about to be.
    Forgetting,
    /// The chain was overwritten: no entry of it is used again.
    Broken,
}

/// A key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) hash: KeyHash,
    /// The entry that the shortcut names: all before it are out of the chain.
    pub(super) place: Place,
    pub(super) phase: Phase,
    /// Whether a task works on it.
    pub(super) busy: bool,
    /// Whether it is in the queue of keys with superseded entries.
    queued: bool,
}

/// All keys.
#[derive(Debug)]
pub(super) struct Index {
    slots: Vec<Slot>,
    of: HashMap<KeyHash, u32, BuildHasherDefault<FirstWord>>,
    free: Vec<u32>,
    queue: VecDeque<u32>,
    /// The next slot to be looked at without a reason.
    sweep: u32,
}

impl Index {
    /// Returns the bytes that an index of `slots` keys has, at most.
    pub(super) fn bytes(slots: usize) -> usize {
        // A hash table that is at most seven eighths full, and a byte of control for each bucket.
        let buckets = (slots * 8 / 7 + 1).next_power_of_two();
        let listed = 2 * size_of::<u32>();
        slots * (size_of::<Slot>() + listed) + buckets * (size_of::<(KeyHash, u32)>() + 1)
    }

    pub(super) fn new(slots: u32) -> Self {
        let free = Slot {
            hash: KeyHash::default(),
            place: Place::default(),
            phase: Phase::Free,
            busy: false,
            queued: false,
        };
        let count = slots as usize;
        Self {
            slots: vec![free; count],
            of: HashMap::with_capacity_and_hasher(count, BuildHasherDefault::default()),
            free: Vec::with_capacity(count),
            queue: VecDeque::with_capacity(count),
            sweep: 0,
        }
    }

    /// Fills the list of free slots.
    pub(super) fn open(&mut self) {
        let slots = (0..self.slots.len() as u32).rev();
        let free = slots.filter(|slot| self.slots[*slot as usize].phase == Phase::Free);
        self.free.extend(free);
    }

    /// Returns the number of keys.
    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    pub(super) fn find(&self, hash: &KeyHash) -> Option<u32> {
        self.of.get(hash).copied()
    }

    pub(super) fn slot(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// Takes a slot for a new key.
    pub(super) fn create(&mut self, hash: KeyHash, place: Place) -> Option<u32> {
        let slot = self.free.pop()?;
        self.occupy(slot, hash, place, Phase::Creating);
        self.slot(slot).busy = true;
        Some(slot)
    }

    /// Puts a key into a slot; `false`: it is in another one.
    pub(super) fn occupy(&mut self, slot: u32, hash: KeyHash, place: Place, phase: Phase) -> bool {
        if self.of.contains_key(&hash) {
            return false;
        }
        self.of.insert(hash, slot);
        let one = self.slot(slot);
        (one.hash, one.place, one.phase) = (hash, place, phase);
        true
    }

    /// Forgets a key.
    pub(super) fn forget(&mut self, slot: u32) {
        let hash = self.slot(slot).hash;
        self.of.remove(&hash);
        self.slot(slot).phase = Phase::Free;
        self.free.push(slot);
    }

    /// Queues a key that has superseded entries; `false`: there is no such key.
    pub(super) fn hint(&mut self, slot: u64) -> bool {
        let slot = u32::try_from(slot).unwrap_or(u32::MAX);
        let Some(one) = self.slots.get_mut(slot as usize) else {
            return false;
        };
        let has_chain = !matches!(one.phase, Phase::Free | Phase::Broken);
        if has_chain && !one.queued {
            one.queued = true;
            self.queue.push_back(slot);
        }
        true
    }

    /// Returns a key that was queued and that no task works on, and has the caller's work on it.
    pub(super) fn next(&mut self) -> Option<u32> {
        // One that is busy goes to the end, so that it is looked at once more.
        for _ in 0..self.queue.len().min(TRIES) {
            let slot = self.queue.pop_front()?;
            if self.slot(slot).busy {
                self.queue.push_back(slot);
                continue;
            }
            self.slot(slot).queued = false;
            if self.reserve(slot) {
                return Some(slot);
            }
        }
        None
    }

    /// Has the caller's task work on a slot; `false`: another does, or it has no key.
    pub(super) fn reserve(&mut self, slot: u32) -> bool {
        let one = self.slot(slot);
        // One that is to be forgotten and idle was found so at the start.
        let idle = !one.busy && matches!(one.phase, Phase::Live | Phase::Forgetting);
        one.busy |= idle;
        idle
    }

    /// Queues the next key of all.
    pub(super) fn sweep(&mut self) {
        let slot = self.sweep;
        self.sweep = (slot + 1) % self.slots.len() as u32;
        self.hint(slot.into());
    }
}

/// Busy keys that are passed by at a time.
const TRIES: usize = 8;

/// Key hashes are hashes already.
#[derive(Debug, Default)]
struct FirstWord(u64);

impl Hasher for FirstWord {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only for completeness: `KeyHash` writes one word.
        for byte in bytes {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}
