//! A fixed-size hash table from queue pair numbers or rkeys to ids.

use alloc::{boxed::Box, vec};

/// A bounded map from random numbers to ids: open addressing with linear probing, at most half
/// full, so that probing ends.
pub(crate) struct Table {
    slots: Box<[Option<(u32, u32)>]>,
    mask: usize,
}

impl Table {
    /// Makes a table for `limit` numbers.
    pub(crate) fn new(limit: usize) -> Self {
        // A power of two, so that the mask replaces a division.
        let len = (2 * limit.max(1)).next_power_of_two();
        Self {
            slots: vec![None; len].into_boxed_slice(),
            mask: len - 1,
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: u32) -> Option<u32> {
        let mut place = self.home(key);
        while let Some((found, id)) = self.slots[place] {
            if found == key {
                return Some(id);
            }
            place = (place + 1) & self.mask;
        }
        None
    }

    /// Adds a number that is not in the table; the caller keeps the limit.
    pub(crate) fn insert(&mut self, key: u32, id: u32) {
        let mut place = self.home(key);
        while self.slots[place].is_some() {
            place = (place + 1) & self.mask;
        }
        self.slots[place] = Some((key, id));
    }

    /// Removes a number, and moves back entries after it that it had displaced (no tombstones).
    pub(crate) fn remove(&mut self, key: u32) {
        let mut hole = self.home(key);
        while let Some((found, _)) = self.slots[hole] {
            if found == key {
                break;
            }
            hole = (hole + 1) & self.mask;
        }
        let mut place = hole;
        self.slots[hole] = None;
        loop {
            place = (place + 1) & self.mask;
            let Some((moved, _)) = self.slots[place] else {
                return;
            };
            // An entry may fill the hole only if its home is not between the hole and its place.
            let from_home = place.wrapping_sub(self.home(moved)) & self.mask;
            let from_hole = place.wrapping_sub(hole) & self.mask;
            if from_home >= from_hole {
                self.slots.swap(hole, place);
                hole = place;
            }
        }
    }

    /// The numbers of one shard are equal in their low bits; a multiplication spreads them.
    #[inline]
    fn home(&self, key: u32) -> usize {
        // 2^32 divided by the golden ratio (Fibonacci hashing). The low eight bits of the product
        // depend on the low bits of the key alone, and are dropped.
        (key.wrapping_mul(0x9e37_79b1) >> 8) as usize & self.mask
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Table;

    #[test]
    fn table_matches_a_map() {
        let (mut table, mut model) = (Table::new(64), BTreeMap::new());
        let mut state = 1u32;
        for round in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Few numbers with few homes, so that clusters form and are split.
            let key = ((state >> 16) % 96) << 20;
            if model.remove(&key).is_some() {
                table.remove(key);
            } else if model.len() < 64 {
                model.insert(key, round);
                table.insert(key, round);
            }
            for key in 0..96 {
                assert_eq!(table.get(key << 20), model.get(&(key << 20)).copied());
            }
        }
    }
}
