//! The server's side of the table: 3-1 cuckoo hashing with one entry a bucket. A way for a new key is
//! searched before anything moves, and entries move from its far end, each copied before its old place
//! is overwritten: so a stored key is in one of its buckets at each instant.

use std::ops::Range;

use herdwick_mem::{Span, Words};

use crate::layout::{CuckooHash, ENTRY_WORDS, Entry, PLACES, State};

/// Most buckets that the search for a free one looks at; beyond, the table counts as full.
const SEARCHED_MAX: usize = 1024;
/// Most entries that one new key displaces. Fewer fit [`SEARCHED_MAX`] unless chains overlap.
const MOVES_MAX: usize = 32;
/// The parent of the three buckets where a search begins.
const ROOT: u32 = u32::MAX;

/// A table in memory that clients READ, and the hashes of its keys, which only the server sees.
#[derive(Debug)]
pub(crate) struct Table<W = Span> {
    memory: W,
    hashes: Vec<CuckooHash>,
    used: usize,
    search: Vec<Node>,
}

/// A bucket that a search looks at.
#[derive(Clone, Copy, Debug)]
struct Node {
    bucket: u64,
    /// The node whose entry would move to this bucket, and the hash function that leads here.
    parent: u32,
    place: u8,
}

/// A free bucket among the places of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreePlace {
    pub(crate) bucket: u64,
    place: u8,
}

impl<W: Words> Table<W> {
    /// Makes every bucket of `memory` empty.
    pub(crate) fn new(memory: W) -> Self {
        let table = Self::blank(memory);
        table.fill(0..table.buckets(), State::Empty);
        table
    }

    /// Takes over `memory`, which is all zeros: [`Table::fill`] is still to be called before clients READ
    /// it.
    pub(crate) fn blank(memory: W) -> Self {
        let buckets = memory.count() / ENTRY_WORDS;
        Self {
            memory,
            hashes: vec![CuckooHash::default(); buckets],
            used: 0,
            search: Vec::with_capacity(SEARCHED_MAX + PLACES),
        }
    }

    pub(crate) fn buckets(&self) -> u64 {
        self.hashes.len() as u64
    }

    /// Returns the number of keys.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Sets buckets to a state without a key.
    pub(crate) fn fill(&self, buckets: Range<u64>, state: State) {
        let words = Entry::vacant(state, 0).words();
        for bucket in buckets {
            self.write(bucket, &words);
        }
    }

    /// Stores the words of an entry, the last one after the others.
    fn write(&self, bucket: u64, words: &[u64; ENTRY_WORDS]) {
        let first = bucket as usize * ENTRY_WORDS;
        let [rest @ .., last] = words;
        self.memory.copy_in(first, rest);
        self.memory.store_release(first + rest.len(), *last);
    }

    /// Returns the hash of the key in a bucket.
    pub(crate) fn hash(&self, bucket: u64) -> CuckooHash {
        self.hashes[bucket as usize]
    }

    /// Returns the entry of a bucket.
    pub(crate) fn entry(&self, bucket: u64) -> Entry {
        let words = self.memory.copy_out(bucket as usize * ENTRY_WORDS);
        // Only this table writes its memory, so it finds what it wrote.
        Entry::parsed(words).unwrap_or(Entry::vacant(State::Empty, 0))
    }

    /// Stores an entry; its version is the bucket's next.
    fn store(&mut self, bucket: u64, entry: &Entry, hash: CuckooHash) {
        // By the version a second look notices a bucket that changed and changed back.
        let version = self.entry(bucket).version.wrapping_add(1);
        let words = Entry { version, ..*entry }.words();
        self.write(bucket, &words);
        self.hashes[bucket as usize] = hash;
    }

    /// Returns the bucket of the key with this hash for which `is_key` holds.
    pub(crate) fn find(
        &self,
        hash: &CuckooHash,
        mut is_key: impl FnMut(&Entry) -> bool,
    ) -> Option<u64> {
        let places = hash.places(self.buckets());
        places.into_iter().find(|bucket| {
            let entry = self.entry(*bucket);
            self.hashes[*bucket as usize] == *hash && entry.state == State::Used && is_key(&entry)
        })
    }

    /// Replaces the entry of a stored key.
    pub(crate) fn replace(&mut self, bucket: u64, entry: &Entry) {
        let (place, hash) = (self.entry(bucket).place, self.hashes[bucket as usize]);
        self.store(bucket, &Entry { place, ..*entry }, hash);
    }

    /// Removes the entry of a stored key.
    pub(crate) fn remove(&mut self, bucket: u64) {
        let vacant = Entry::vacant(State::Empty, 0);
        self.store(bucket, &vacant, CuckooHash::default());
        self.used -= 1;
    }

    /// Stores the entry of a new key where [`Table::make_room`] has made room for it.
    pub(crate) fn insert(&mut self, at: FreePlace, entry: &Entry, hash: CuckooHash) {
        let FreePlace { bucket, place } = at;
        self.store(bucket, &Entry { place, ..*entry }, hash);
        self.used += 1;
    }

    /// Makes one of the places of `hash` free: one that is, or one whose entry has been copied to
    /// another of its places, to be overwritten. `None`: there is no way within the search's bounds.
    /// `moved` is called with the new bucket of each entry that was copied.
    pub(crate) fn make_room(
        &mut self,
        hash: &CuckooHash,
        moved: &mut impl FnMut(u64, &Entry, CuckooHash),
    ) -> Option<FreePlace> {
        self.search.clear();
        for (place, bucket) in (0..).zip(hash.places(self.buckets())) {
            let parent = ROOT;
            self.search.push(Node {
                bucket,
                parent,
                place,
            });
        }
        let mut next = 0;
        while let Some(node) = self.search.get(next).copied() {
            if self.entry(node.bucket).state != State::Used {
                return self.displace(next, moved);
            }
            // Beyond the bound the nodes that were found are still looked at: one of them may be free.
            if self.search.len() < SEARCHED_MAX {
                self.extend(next);
            }
            next += 1;
        }
        None
    }

    /// Adds the other places of the key in a node's bucket.
    fn extend(&mut self, node: usize) {
        let bucket = self.search[node].bucket;
        let places = self.hashes[bucket as usize].places(self.buckets());
        for (place, other) in (0..).zip(places) {
            if !self.leads_through(node, other) {
                let (bucket, parent) = (other, node as u32);
                self.search.push(Node {
                    bucket,
                    parent,
                    place,
                });
            }
        }
    }

    /// Whether the way to a node passes `bucket`; one that passed it twice would move another entry
    /// than the one that it was found by.
    fn leads_through(&self, node: usize, bucket: u64) -> bool {
        let mut at = Some(&self.search[node]);
        for _ in 0..MOVES_MAX {
            match at {
                Some(node) if node.bucket == bucket => return true,
                Some(node) => at = self.search.get(node.parent as usize),
                None => return false,
            }
        }
        // A way of that length is not made longer.
        true
    }

    /// Moves the entries on the way to a free bucket, the last one first.
    fn displace(
        &mut self,
        free: usize,
        moved: &mut impl FnMut(u64, &Entry, CuckooHash),
    ) -> Option<FreePlace> {
        let mut to = self.search[free];
        while let Some(from) = self.search.get(to.parent as usize).copied() {
            let (entry, hash) = (self.entry(from.bucket), self.hashes[from.bucket as usize]);
            let place = to.place;
            self.store(to.bucket, &Entry { place, ..entry }, hash);
            moved(to.bucket, &entry, hash);
            to = from;
        }
        let Node { bucket, place, .. } = to;
        Some(FreePlace { bucket, place })
    }
}

#[cfg(test)]
mod tests {
    use herdwick_conformance::StoreLog;
    use herdwick_request::HashKey;

    use super::*;

    const BUCKETS: usize = 64;

    fn hash(key: u64) -> CuckooHash {
        CuckooHash::of(&HashKey([3, 4]), &key.to_le_bytes())
    }

    /// The entry of a key: its offset tells it from all others.
    fn entry(key: u64) -> Entry {
        Entry {
            state: State::Used,
            tag: hash(key).tag(),
            offset: key * 8,
            key_len: 8,
            ..Entry::vacant(State::Used, 0)
        }
    }

    /// Stores keys until there is no place for one; returns after how many stores of the memory each was there.
    fn fill(table: &mut Table<StoreLog>, log: &StoreLog) -> Vec<usize> {
        let mut stored = Vec::new();
        loop {
            let key = stored.len() as u64;
            let Some(at) = table.make_room(&hash(key), &mut |_, _, _| ()) else {
                return stored;
            };
            table.insert(at, &entry(key), hash(key));
            stored.push(log.logged());
        }
    }

    /// Whether a READ of a bucket finds the entry of a key.
    fn holds(words: &[u64], bucket: u64, key: u64) -> bool {
        let words = &words[bucket as usize * ENTRY_WORDS..][..ENTRY_WORDS];
        let found = Entry::verified(words.try_into().unwrap());
        found.is_ok_and(|found| found.state == State::Used && found.offset == key * 8)
    }

    #[test]
    fn each_key_is_in_one_of_its_buckets_between_any_two_stores() {
        let log = StoreLog::new(BUCKETS * ENTRY_WORDS);
        let mut table = Table::new(log.clone());
        let stored = fill(&mut table, &log);
        assert!(stored.len() > BUCKETS * 3 / 4, "{}", stored.len());
        let mut words = vec![0; log.count()];
        for (instant, (word, value)) in (1..).zip(log.stores()) {
            words[word] = value;
            for (key, _) in (0..).zip(&stored).filter(|(_, since)| **since <= instant) {
                let places = hash(key).places(BUCKETS as u64);
                let found = places.iter().any(|bucket| holds(&words, *bucket, key));
                assert!(found, "key {key} after store {instant}");
            }
        }
    }

    #[test]
    fn a_bucket_that_changes_and_changes_back_has_other_words() {
        let log = StoreLog::new(BUCKETS * ENTRY_WORDS);
        let mut table = Table::new(log.clone());
        let at = table.make_room(&hash(1), &mut |_, _, _| ()).unwrap();
        let words = || log.copy_out::<ENTRY_WORDS>(at.bucket as usize * ENTRY_WORDS);
        let mut seen = vec![words()];
        for _ in 0..3 {
            table.insert(at, &entry(1), hash(1));
            seen.push(words());
            table.remove(at.bucket);
            seen.push(words());
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 7);
    }
}
