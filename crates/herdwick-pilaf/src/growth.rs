//! A table that moves to a larger memory, a bounded number of buckets at a time. Clients READ the old
//! table until the larger one has every key; then the old one's buckets are set to *moved*.

use herdwick_mem::Span;

use crate::{
    layout::{CuckooHash, Entry, State},
    table::Table,
};

/// Buckets that are initialised, or set to *moved*, in the time in which one is copied, about.
const CLEARED_PER_COPIED: u64 = 8;

/// A larger table that is being made. It follows the changes of the old one: every key in one of the
/// first `copied` buckets of the old one is in it.
#[derive(Debug)]
pub(crate) struct Growth {
    larger: Table,
    cleared: u64,
    copied: u64,
    /// Whether a key found no place.
    full: bool,
}

/// How far a larger table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrowthState {
    UnderWay,
    /// It has every key.
    Complete,
    /// A key found no place in it.
    Full,
}

impl Growth {
    pub(crate) fn new(larger: Span) -> Self {
        Self {
            larger: Table::blank(larger),
            cleared: 0,
            copied: 0,
            full: false,
        }
    }

    /// Copies the keys of at most `buckets` buckets of the old table.
    pub(crate) fn step(&mut self, old: &Table, buckets: u64) -> GrowthState {
        let all = self.larger.buckets();
        if self.cleared < all {
            let end = all.min(self.cleared + CLEARED_PER_COPIED * buckets);
            // Zeros are no empty bucket: that has a checksum, too.
            self.larger.fill(self.cleared..end, State::Empty);
            self.cleared = end;
            return GrowthState::UnderWay;
        }
        let end = old.buckets().min(self.copied + buckets);
        for bucket in self.copied..end {
            let entry = old.entry(bucket);
            if entry.state == State::Used {
                self.add(&entry, old.hash(bucket));
            }
        }
        self.copied = end;
        match (self.full, end == old.buckets()) {
            (true, _) => GrowthState::Full,
            (false, true) => GrowthState::Complete,
            (false, false) => GrowthState::UnderWay,
        }
    }

    /// Adds a key, unless it is there: one that was displaced in the old table may be met again.
    fn add(&mut self, entry: &Entry, hash: CuckooHash) {
        if self.find(&hash, entry).is_some() {
            return;
        }
        match self.larger.make_room(&hash, &mut |_, _, _| {}) {
            Some(at) => self.larger.insert(at, entry, hash),
            None => self.full = true,
        }
    }

    /// Returns the bucket of the key with this entry: no other has its extent.
    fn find(&self, hash: &CuckooHash, entry: &Entry) -> Option<u64> {
        let found = |other: &Entry| other.offset == entry.offset;
        self.larger.find(hash, found)
    }

    /// Follows an entry that was stored in a bucket of the old table that had another key or none.
    pub(crate) fn stored(&mut self, bucket: u64, entry: &Entry, hash: CuckooHash) {
        if bucket < self.copied {
            self.add(entry, hash);
        }
    }

    /// Follows an entry of the old table that was replaced by one with the same key.
    pub(crate) fn replaced(&mut self, hash: &CuckooHash, before: &Entry, entry: &Entry) {
        if let Some(bucket) = self.find(hash, before) {
            self.larger.replace(bucket, entry);
        }
    }

    /// Follows an entry that was removed from the old table.
    pub(crate) fn removed(&mut self, hash: &CuckooHash, before: &Entry) {
        if let Some(bucket) = self.find(hash, before) {
            self.larger.remove(bucket);
        }
    }

    /// Returns the larger table.
    pub(crate) fn into_table(self) -> Table {
        self.larger
    }
}

/// The old table, while its buckets are set to *moved*. A bucket that is not yet *moved* is valid: the
/// places of a key are set before the key changes.
#[derive(Debug)]
pub(crate) struct Retiring {
    table: Table,
    marked: u64,
}

impl Retiring {
    pub(crate) fn new(table: Table) -> Self {
        Self { table, marked: 0 }
    }

    /// Sets the places of a key that is about to change to *moved*.
    pub(crate) fn mark(&self, hash: &CuckooHash) {
        for bucket in hash.places(self.table.buckets()) {
            self.table.fill(bucket..bucket + 1, State::Moved);
        }
    }

    /// Sets some buckets to *moved*, in the time in which `buckets` are copied; returns whether all are.
    pub(crate) fn step(&mut self, buckets: u64) -> bool {
        let all = self.table.buckets();
        let end = all.min(self.marked + CLEARED_PER_COPIED * buckets);
        self.table.fill(self.marked..end, State::Moved);
        self.marked = end;
        end == all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use herdwick_check::Rng;
    use herdwick_mem::Span;
    use herdwick_request::HashKey;

    use super::*;
    use crate::{layout::ENTRY_BYTES, store::Store};

    const HASH_KEY: HashKey = HashKey([3, 4]);
    const BUCKETS: usize = 64;
    const EXTENT_BYTES: usize = 64 << 10;

    /// What the entries in a span say of a key, as a client reads them: its value; `Err`: that the table has
    /// moved.
    fn read(span: &Span, extents: &Span, key: &[u8]) -> Result<Option<Vec<u8>>, ()> {
        let buckets = (span.len() / ENTRY_BYTES) as u64;
        let hash = CuckooHash::of(&HASH_KEY, key);
        for bucket in hash.places(buckets) {
            let words = span.read_words(bucket as usize * ENTRY_BYTES / 8);
            let entry = Entry::verified(words).unwrap();
            if entry.state == State::Moved {
                return Err(());
            }
            let mut extent = vec![0; entry.extent_len()];
            extents.read_bytes(entry.offset as usize, &mut extent);
            if entry.state == State::Used && extent.starts_with(key) {
                return Ok(Some(extent.split_off(key.len())));
            }
        }
        Ok(None)
    }

    /// A random change of the store and of a map.
    fn change(store: &mut Store, map: &mut BTreeMap<[u8; 2], Vec<u8>>, draw: &mut Rng) {
        let key = (draw.below(80) as u16).to_le_bytes();
        if draw.below(3) == 0 {
            assert_eq!(store.delete(&key), map.remove(&key).is_some());
        } else {
            let value = vec![draw.below(256) as u8; draw.below(100) as usize];
            if store.put(&key, &value).is_ok() {
                map.insert(key, value);
            }
        }
    }

    #[test]
    fn both_tables_match_a_map_while_one_becomes_the_other() {
        let (mut moved, mut in_time) = (0, 0);
        for seed in 0..60 {
            let (mut draw, mut map) = (Rng::new(seed), BTreeMap::new());
            let [old, larger] =
                [BUCKETS, 2 * BUCKETS].map(|n| Span::anonymous(n * ENTRY_BYTES).unwrap());
            let extents = Span::anonymous(EXTENT_BYTES).unwrap();
            let mut store = Store::new(old.clone(), extents.clone(), HASH_KEY);
            for _ in 0..200 {
                change(&mut store, &mut map, &mut draw);
            }
            store.begin_growth(larger.clone());
            while store.grow(1) == Some(GrowthState::UnderWay) {
                change(&mut store, &mut map, &mut draw);
            }
            assert_eq!(store.grow(1), Some(GrowthState::Complete));
            store.move_to_larger();
            assert_eq!((store.buckets(), store.keys()), (128, map.len()));
            let mut retiring = true;
            while retiring {
                change(&mut store, &mut map, &mut draw);
                for n in 0..80_u16 {
                    let (key, expected) = (n.to_le_bytes(), map.get(&n.to_le_bytes()));
                    assert_eq!(read(&larger, &extents, &key).unwrap().as_ref(), expected);
                    match read(&old, &extents, &key) {
                        Ok(found) => assert_eq!(found.as_ref(), expected, "of the old table"),
                        Err(()) => moved += 1,
                    }
                    in_time += u64::from(read(&old, &extents, &key).is_ok());
                }
                retiring = store.retire(1);
            }
            assert!((0..80_u16).all(|n| read(&old, &extents, &n.to_le_bytes()).is_err()));
        }
        assert!(moved > 1000 && in_time > 1000, "{moved} {in_time}");
    }
}
