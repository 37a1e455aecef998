//! A bounded set of keys by their hashes. A member has a slot, a number below the set's size, until it leaves.

use herdwick_mem::prefetch_read;
use herdwick_request::KeyHash;

/// A place of the index is empty.
const EMPTY: u64 = 0;
/// A place has the slot in its lower 32 bits, counted from 1, and a part of the hash in the others.
const SLOT_BITS: u32 = 32;

/// The set. Its index is a hash table with linear probing, at most half full.
#[derive(Debug)]
pub(crate) struct Members {
    hashes: Box<[KeyHash]>,
    index: Box<[u64]>,
    free: Vec<u32>,
}

impl Members {
    /// Makes an empty set of up to `most` members.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            hashes: vec![KeyHash(0); most].into(),
            index: vec![EMPTY; Self::places(most)].into(),
            free: (0..most as u32).rev().collect(),
        }
    }

    /// Returns the bytes of a set of up to `most` members.
    pub(crate) fn bytes(most: usize) -> usize {
        most * (size_of::<KeyHash>() + size_of::<u32>()) + Self::places(most) * size_of::<u64>()
    }

    fn places(most: usize) -> usize {
        // At most half full, so that probes are short.
        (2 * most).next_power_of_two().max(2)
    }

    /// Returns the number of members.
    pub(crate) fn len(&self) -> usize {
        self.hashes.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    #[inline]
    fn home(&self, hash: KeyHash) -> usize {
        hash.0 as usize & (self.index.len() - 1)
    }

    #[inline]
    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.index.len() - 1)
    }

    /// Returns the place of a member in the index.
    #[inline]
    fn position(&self, hash: KeyHash) -> Option<usize> {
        let mut place = self.home(hash);
        // Ends: at least half of the places are empty.
        loop {
            let word = self.index[place];
            if word == EMPTY {
                return None;
            }
            // The high half of the hash is compared in the word; only where it is equal the slot is
            // loaded.
            if word >> SLOT_BITS == hash.0 >> SLOT_BITS && self.hashes[slot(word)] == hash {
                return Some(place);
            }
            place = self.next(place);
        }
    }

    /// Returns a member's slot.
    #[inline]
    pub(crate) fn find(&self, hash: KeyHash) -> Option<u32> {
        self.position(hash)
            .map(|place| slot(self.index[place]) as u32)
    }

    /// Returns the hash of the member at `slot`.
    #[cfg(test)]
    pub(crate) fn hash(&self, slot: u32) -> KeyHash {
        self.hashes[slot as usize]
    }

    /// Adds a key that is no member; `None`: the set is full.
    pub(crate) fn insert(&mut self, hash: KeyHash) -> Option<u32> {
        let slot = self.free.pop()?;
        self.hashes[slot as usize] = hash;
        let mut place = self.home(hash);
        while self.index[place] != EMPTY {
            place = self.next(place);
        }
        // From 1, so that the word of a member is never 0.
        self.index[place] = hash.0 >> SLOT_BITS << SLOT_BITS | u64::from(slot + 1);
        Some(slot)
    }

    /// Removes the member at `slot`, if there is one.
    pub(crate) fn remove(&mut self, slot: u32) {
        if let Some(place) = self.place_of(slot) {
            self.free.push(slot);
            self.close(place);
        }
    }

    /// Returns whether there is a member at `slot`.
    pub(crate) fn has(&self, slot: u32) -> bool {
        self.place_of(slot).is_some()
    }

    /// Returns the place of the member at `slot` in the index.
    fn place_of(&self, slot: u32) -> Option<usize> {
        // The hash of a member that has left is still there, so the slot that is found is compared,
        // too.
        let place = self.position(self.hashes[slot as usize]);
        place.filter(|place| self.slot_at(*place) == slot)
    }

    fn slot_at(&self, place: usize) -> u32 {
        slot(self.index[place]) as u32
    }

    /// Empties a place, and moves back what stands behind it because it was taken.
    fn close(&mut self, mut gap: usize) {
        let mask = self.index.len() - 1;
        let mut place = self.next(gap);
        while self.index[place] != EMPTY {
            let home = self.home(self.hashes[slot(self.index[place])]);
            // The member may move to the gap if that is no farther from its home than where it
            // stands: distances are modulo the index.
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(gap) & mask {
                self.index[gap] = self.index[place];
                gap = place;
            }
            place = self.next(place);
        }
        self.index[gap] = EMPTY;
    }

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        self.index.fill(EMPTY);
        self.free.clear();
        self.free.extend((0..self.hashes.len() as u32).rev());
    }

    /// Prefetches what [`Members::find`] accesses first.
    #[inline]
    pub(crate) fn prefetch(&self, hash: KeyHash) {
        prefetch_read(&self.index, self.home(hash));
    }
}

/// Returns the slot of a place that is not empty.
#[inline]
fn slot(word: u64) -> usize {
    (word as u32 - 1) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few homes, so that many members stand away from theirs.
        #[test]
        fn members_are_those_of_a_map(
            most in 1_usize..12,
            steps in prop::collection::vec((0_u64..30, prop::bool::weighted(0.6)), 0..300),
        ) {
            let hash = |key: u64| KeyHash((key << 32) | (key % 3));
            let mut members = Members::new(most);
            let mut map: HashMap<u64, u32> = HashMap::new();
            for (key, adds) in steps {
                match (map.get(&key).copied(), adds) {
                    (None, true) => {
                        let slot = members.insert(hash(key));
                        prop_assert_eq!(slot.is_some(), map.len() < most);
                        if let Some(slot) = slot {
                            prop_assert!(map.values().all(|other| *other != slot));
                            map.insert(key, slot);
                        }
                    }
                    (Some(slot), false) => {
                        members.remove(slot);
                        // Once more changes nothing.
                        members.remove(slot);
                        map.remove(&key);
                    }
                    _ => {}
                }
                prop_assert_eq!((members.len(), members.is_full()), (map.len(), map.len() == most));
                let there = (0..most as u32).filter(|slot| members.has(*slot)).count();
                prop_assert_eq!(there, map.len());
                for key in 0..30 {
                    let found = members.find(hash(key));
                    prop_assert_eq!(found, map.get(&key).copied());
                    if let Some(slot) = found {
                        prop_assert_eq!(members.hash(slot), hash(key));
                    }
                }
            }
            members.clear();
            prop_assert!((0..30).all(|key| members.find(hash(key)).is_none()) && members.len() == 0);
        }
    }
}
