//! What a client remembers of keys: their slot, and the entry that was the last one of the chain.

use crate::layout::{KeyHash, Place};

/// Cursors that a key may be among: the one that was used longest ago makes way.
const WAYS: usize = 4;

/// Where the chain of a key is, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The slot of the key's shortcut.
    pub(crate) slot: u32,
    /// An entry of the chain.
    pub(crate) place: Place,
}

/// A bounded number of cursors.
#[derive(Debug)]
pub(crate) struct Cursors {
    /// Without a cursor where the target is 0. Those of a set are in the order of their last use.
    sets: Vec<[(KeyHash, Cursor); WAYS]>,
}

impl Cursors {
    /// Makes room for at least `count`.
    pub(crate) fn new(count: usize) -> Self {
        let sets = count.div_ceil(WAYS).max(1);
        Self {
            sets: vec![Default::default(); sets],
        }
    }

    #[inline]
    fn set(&mut self, hash: &KeyHash) -> &mut [(KeyHash, Cursor); WAYS] {
        let sets = self.sets.len();
        // Multiply-shift: any number of sets.
        let index = (u128::from(hash.0[0]) * sets as u128) >> 64;
        &mut self.sets[index as usize]
    }

    /// Returns the cursor of a key.
    #[inline]
    pub(crate) fn get(&mut self, hash: &KeyHash) -> Option<Cursor> {
        let set = self.set(hash);
        let way = set
            .iter()
            .position(|(of, cursor)| of == hash && cursor.place.target > 0)?;
        // Most recently used first.
        set[..=way].rotate_right(1);
        Some(set[0].1)
    }

    /// Remembers a cursor.
    #[inline]
    pub(crate) fn put(&mut self, hash: &KeyHash, cursor: Cursor) {
        let set = self.set(hash);
        let way = set.iter().position(|(of, _)| of == hash);
        // Without the key among them the last one, used longest ago, is overwritten.
        set[..=way.unwrap_or(WAYS - 1)].rotate_right(1);
        set[0] = (*hash, cursor);
    }

    /// Forgets the cursor of a key.
    pub(crate) fn forget(&mut self, hash: &KeyHash) {
        let set = self.set(hash);
        for (of, cursor) in set {
            if of == hash {
                *cursor = Cursor::default();
            }
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.sets.fill(Default::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(n: u32) -> Cursor {
        let place = Place {
            target: n + 1,
            version: 0,
            tombstone: false,
        };
        Cursor { slot: n, place }
    }

    #[test]
    fn the_ones_used_last_stay() {
        let mut cursors = Cursors::new(WAYS);
        let hash = |n: u32| KeyHash([n.into(), 7]);
        for n in 0..4 {
            cursors.put(&hash(n), cursor(n));
        }
        assert_eq!(cursors.get(&hash(0)), Some(cursor(0)));
        cursors.put(&hash(4), cursor(4));
        cursors.put(&hash(4), cursor(5));
        let left = [0, 1, 2, 3, 4].map(|n| cursors.get(&hash(n)).is_some());
        assert_eq!(left, [true, false, true, true, true]);
        assert_eq!(cursors.get(&hash(4)), Some(cursor(5)));
        cursors.forget(&hash(4));
        assert_eq!(cursors.get(&hash(4)), None);
        cursors.clear();
        assert_eq!(cursors.get(&hash(0)), None);
    }
}
