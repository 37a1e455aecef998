//! The index: a lossy partial-key cuckoo hash table of 64-byte buckets, from a key's hash to the
//! offset of its item. Two buckets a key; every operation is bounded.

mod chain;
mod fill;
mod merge;
mod place;
mod slots;

use std::io;

use herdwick_layout::bucket::{
    self, BLOCK, BUCKET, BUCKETS_MAX, Bucket, Offset, WAYS, block_among, growth, tag, within,
};
use herdwick_mem::{Arena, prefetch_read};
use herdwick_request::KeyHash;

pub(crate) use fill::{Division, Part};
pub(crate) use place::Place;
use slots::{enter, find_in, make_way};

/// The lossy index: partial-key cuckoo hashing with two buckets a key and bounded work.
///
/// It may grow, a block at a time (linear hashing): of the `base << level` blocks the first `split` were
/// divided in two, by one more bit of each key's hash, which the entry holds. It shrinks as it has grown: the
/// block that was divided last is merged. So no item is read.
pub(crate) struct Index {
    /// Memory for the largest index.
    buckets: Arena<Bucket>,
    /// Buckets of a block.
    block: usize,
    /// Blocks of the smallest index.
    base: usize,
    /// How often the number of blocks has doubled, `level_min` to `level_max` times.
    level: u32,
    level_min: u32,
    level_max: u32,
    /// Blocks that were divided since.
    split: usize,
    entries: usize,
    /// Buckets whose memory was not returned to the system: those that there are, and a few merged ones.
    held: usize,
    /// As `held`, but without those whose return has failed.
    tried: usize,
    /// It is crowded with more entries than these, and sparse with fewer.
    crowded: usize,
    sparse: usize,
}

/// Bytes of the least index that has huge pages, if it grows.
const HUGE_MIN: usize = 16 << 20;
const _: () = assert!(BLOCK <= u128::BITS as usize, "a bit each");
/// Blocks begin to be divided when so many tenths of the slots of those that are not are used, and all are
/// when [`DIVIDED`] more are.
const DIVIDING: usize = 6;
const DIVIDED: usize = 2;
/// The part of the slots that are used in an index that is nearly full: more than a growing one uses in the
/// blocks that are not yet divided, which has to lose nothing.
const NEARLY_FULL: (usize, usize) = (15, 16);
const _: () = assert!(NEARLY_FULL.0 * 10 > NEARLY_FULL.1 * (DIVIDING + DIVIDED));
/// Blocks are merged while fewer than one slot in so many is used: then merged ones are less full than those
/// that begin to be divided.
const SPARSE: usize = 4;

impl Index {
    /// Creates an empty index of `buckets`, 1 to [`BUCKETS_MAX`].
    pub(crate) fn new(buckets: usize) -> io::Result<Self> {
        Ok(Self::over(Arena::zeroed(buckets)?))
    }

    /// Creates an empty index in zeroed memory.
    pub(crate) fn over(buckets: Arena<Bucket>) -> Self {
        let block = bucket::block(buckets.len());
        debug_assert!(!buckets.is_empty() && buckets.len() <= BUCKETS_MAX);
        debug_assert!(buckets.len().is_multiple_of(block));
        Self {
            block,
            base: buckets.len() / block,
            level: 0,
            level_min: 0,
            level_max: 0,
            split: 0,
            entries: 0,
            held: buckets.len(),
            tried: buckets.len(),
            crowded: usize::MAX,
            sparse: 0,
            buckets,
        }
    }

    /// Creates an empty index that grows from `buckets` by so many doublings.
    pub(crate) fn growing(buckets: usize, doublings: u32) -> io::Result<Self> {
        // Address space for the largest one; the kernel gives a page when it is first written.
        let index = Self::new(buckets << doublings)?;
        // The first huge page of a small one would be most of what it grows to.
        index
            .buckets
            .allow_huge_pages(index.bytes_most() >= HUGE_MIN);
        let mut index = Self {
            base: buckets / bucket::block(buckets),
            level_max: doublings,
            held: 0,
            tried: 0,
            ..index
        };
        index.resized(0, 0);
        Ok(index)
    }

    /// Returns the bytes of the largest that it grows to.
    pub(crate) fn bytes_most(&self) -> usize {
        self.buckets.len() * BUCKET
    }

    /// Grows to the largest at once, for good, if it is empty.
    pub(crate) fn grow_at_once(&mut self) {
        if self.entries == 0 {
            self.level_min = self.level_max;
            self.resized(self.level_max, 0);
        }
    }

    /// Enters its size, and with how many entries it is too small or too large.
    fn resized(&mut self, level: u32, split: usize) {
        (self.level, self.split) = (level, split);
        // Merged blocks keep their memory until it is returned: the next division uses it again.
        self.held = self.held.max(self.buckets());
        self.tried = self.tried.max(self.buckets());
        let tenths = DIVIDING * (self.base << level) + DIVIDED * split;
        self.crowded = match level < self.level_max {
            true => tenths * self.block * WAYS / 10,
            false => usize::MAX,
        };
        self.sparse = match level > self.level_min || split > 0 {
            true => self.slots() / SPARSE,
            false => 0,
        };
    }

    fn blocks(&self) -> usize {
        (self.base << self.level) + self.split
    }

    /// Returns its bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.buckets() * BUCKET
    }

    /// Returns its bytes of memory, and those that it has not returned yet.
    pub(crate) fn bytes_held(&self) -> usize {
        self.held * BUCKET
    }

    /// Returns the bytes that it takes once another block is divided.
    pub(crate) fn bytes_grown(&self) -> usize {
        self.bytes() + self.block * BUCKET
    }

    /// Returns whether it should grow: whether too many of its slots are used.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.entries > self.crowded
    }

    /// Returns whether it should shrink: whether too few of its slots are used.
    #[inline]
    pub(crate) fn is_sparse(&self) -> bool {
        self.entries < self.sparse
    }

    fn is_nearly_full(&self) -> bool {
        self.entries >= self.slots() / NEARLY_FULL.1 * NEARLY_FULL.0
    }

    /// Divides the next block: the entries with one more bit of their hashes move to a new block, each to
    /// the bucket of the same number.
    pub(crate) fn grow(&mut self) {
        let whole = self.base << self.level;
        let (from, to) = (self.split * self.block, (whole + self.split) * self.block);
        // New blocks lie behind all others, so the two do not overlap.
        let (olds, news) = self.buckets.split_at_mut(to);
        for n in 0..self.block {
            let (old, new) = (&mut olds[from + n], &mut news[n]);
            // Its entries may be those of either bucket: both halves inherit the mark.
            if old.overflowed() {
                new.mark_overflowed();
            }
            // The new block is empty, so each entry keeps its way.
            for way in 0..WAYS {
                let ((tag, offset), bits) = (old.entry(way), old.growth(way));
                if tag != 0 && bits >> self.level & 1 == 1 {
                    old.set_tag(way, 0);
                    new.set(way, tag, bits, offset);
                }
            }
        }
        match self.split + 1 {
            split if split == whole => self.resized(self.level + 1, 0),
            split => self.resized(self.level, split),
        }
    }

    /// Returns the number of slots, free ones included.
    pub(crate) fn slots(&self) -> usize {
        self.buckets() * WAYS
    }

    /// Returns the number of buckets.
    pub(crate) fn buckets(&self) -> usize {
        self.blocks() * self.block
    }

    /// Returns the offsets of the items in one bucket.
    pub(crate) fn entries(&self, bucket: usize) -> impl Iterator<Item = Offset> {
        let slots = self.buckets.get(bucket);
        let entries = slots
            .into_iter()
            .flat_map(|slots| (0..WAYS).map(|way| slots.entry(way)));
        entries.filter(|&(tag, _)| tag != 0).map(|(_, at)| at)
    }

    /// Returns the places of one bucket.
    pub(crate) fn places(bucket: usize) -> impl Iterator<Item = Place> {
        (0..WAYS).map(move |way| Place::new(bucket, way))
    }

    /// Returns the offset of the item at `place`, if there is one.
    pub(crate) fn entry(&self, place: Place) -> Option<Offset> {
        let slots = self.buckets.get(place.bucket())?;
        let (tag, at) = slots.entry(place.way());
        (tag != 0).then_some(at)
    }

    /// Returns whether the entry at `place` is that of the item at `at`.
    #[inline]
    pub(crate) fn points(&self, place: Place, at: Offset) -> bool {
        self.entry(place) == Some(at)
    }

    /// Finds the entry of `hash` for which `is_it` returns true: the tag is only 16 bits, so the
    /// caller compares the key.
    #[inline(always)]
    pub(crate) fn find(
        &self,
        hash: KeyHash,
        is_it: impl FnMut(Offset) -> bool,
    ) -> Option<(Place, Offset)> {
        slots::find(&self.buckets, self.first(hash), tag(hash), is_it)
    }

    /// Changes the offset of an entry, or makes one at a place that was just freed.
    #[inline]
    pub(crate) fn point(&mut self, place: Place, hash: KeyHash, offset: Offset) {
        let bucket = &mut self.buckets[place.bucket()];
        self.entries += usize::from(bucket.entry(place.way()).0 == 0);
        bucket.set(place.way(), tag(hash), growth(hash), offset);
    }

    /// Frees the entry.
    #[inline]
    pub(crate) fn remove(&mut self, place: Place) {
        self.entries -= 1;
        self.buckets[place.bucket()].set_tag(place.way(), 0);
    }

    /// Adds an entry for a key that has none. If both buckets are full and no neighbour can move to
    /// its other bucket, a chain of entries moves, as [`Self::make_chain`] does it; in an index that is
    /// nearly full, or if there is no chain, the entry with the greatest `age` is replaced, and its offset
    /// returned.
    pub(crate) fn insert(
        &mut self,
        hash: KeyHash,
        offset: Offset,
        age: impl Fn(Offset) -> usize,
    ) -> Option<Offset> {
        let first = self.first(hash);
        let second = self.other(first, tag(hash));
        let mut way = make_way(&mut self.buckets, first, second);
        // A chain costs the search of a block in the worst case: too much for each entry that is added to an
        // index that has to replace others anyway.
        if way.is_none() && !self.is_nearly_full() {
            way = chain::make_way(&mut self.buckets, first, tag(hash));
        }
        let evicted = enter(&mut self.buckets, (hash, first), offset, way, age);
        self.entries += usize::from(evicted.is_none());
        evicted
    }

    /// Returns whether an entry can be added without replacing another. If not, moves a chain of entries, each to
    /// its other bucket, so that one can. Reads one block at most: without a way after that, each slot that can be
    /// reached is used.
    #[inline]
    pub(crate) fn make_chain(&mut self, hash: KeyHash) -> bool {
        let (first, tag) = (self.first(hash), tag(hash));
        chain::has_way(&self.buckets, first, tag) || chain::find(&mut self.buckets, first, tag)
    }

    /// Divides an index that has its largest size into about so many parts, at least one.
    pub(crate) fn division(&self, parts: usize) -> Division {
        debug_assert_eq!((self.level, self.level_max), (0, 0));
        Division::new(self.base, parts)
    }

    /// Returns the parts of a division.
    pub(crate) fn parts(&mut self, division: Division) -> impl Iterator<Item = Part<'_>> {
        division.parts_of(&mut self.buckets, self.block)
    }

    /// Counts entries that were added to parts.
    pub(crate) fn count_added(&mut self, entries: usize) {
        self.entries += entries;
    }

    /// Prefetches the first bucket of `hash`, and returns its number.
    #[inline]
    pub(crate) fn prefetch_first(&self, hash: KeyHash) -> usize {
        let first = self.first(hash);
        prefetch_read(&self.buckets, first);
        first
    }

    /// Prefetches the other bucket of `hash` if the first, which is given, has overflowed; returns whether it has.
    #[inline]
    pub(crate) fn prefetch_other(&self, hash: KeyHash, first: usize) -> bool {
        let overflowed = self.buckets[first].overflowed();
        if overflowed {
            prefetch_read(&self.buckets, self.other(first, tag(hash)));
        }
        overflowed
    }

    /// Returns the probable place of the item of `hash`, by the tags of its first bucket alone, which is given.
    #[inline]
    pub(crate) fn guess_first(&self, hash: KeyHash, first: usize) -> Option<(Place, Offset)> {
        find_in(&self.buckets, first, tag(hash), &mut |_| true)
    }

    /// As [`Self::guess_first`], in the other bucket.
    #[inline]
    pub(crate) fn guess_other(&self, hash: KeyHash, first: usize) -> Option<(Place, Offset)> {
        let tag = tag(hash);
        let other = self.other(first, tag);
        find_in(&self.buckets, other, tag, &mut |_| true)
    }

    /// Returns the number of the first bucket of `hash`.
    #[inline]
    pub(crate) fn first(&self, hash: KeyHash) -> usize {
        let whole = self.base << self.level;
        let bits = usize::from(growth(hash));
        // Linear hashing: the number of a block among those of this level; if it was divided already, one
        // more bit decides between its halves.
        let mut block = block_among(hash, self.base) + self.base * (bits & ((1 << self.level) - 1));
        if block < self.split {
            block += whole * (bits >> self.level & 1);
        }
        block * self.block + within(hash, self.block)
    }

    #[inline]
    fn other(&self, bucket: usize, tag: u16) -> usize {
        bucket::other(bucket, tag, self.buckets.len())
    }
}

#[cfg(test)]
mod tests {
    use herdwick_check::Rng;
    use herdwick_layout::{bucket::GROWTH_BITS, item::ALIGN};
    use zerocopy::IntoBytes;

    use super::*;
    use crate::test_file::nameless_file;

    fn hashes() -> impl Iterator<Item = KeyHash> {
        let mut rng = Rng::new(0);
        std::iter::repeat_with(move || KeyHash(rng.bits()))
    }

    fn offset(n: usize) -> Offset {
        Offset(n * ALIGN)
    }

    #[test]
    fn other_bucket_of_the_other_bucket_is_the_first() {
        for buckets in [1, 2, 3, 7, 64, 1024] {
            let index = Index::new(buckets).unwrap();
            for (bucket, tag) in (0..buckets).zip((1..=u16::MAX).rev().step_by(7)) {
                let other = index.other(bucket, tag);
                assert!(other < buckets);
                assert_eq!(index.other(other, tag), bucket);
            }
        }
    }

    /// From one block to 32 of them: each entry is found after each step, those of overflowed buckets, too.
    #[test]
    fn growing_index_keeps_every_entry() {
        let mut index = Index::growing(BLOCK, GROWTH_BITS).unwrap();
        let mut count = 0;
        for (n, hash) in hashes().enumerate() {
            if index.blocks() == 32 {
                break;
            }
            assert_eq!(index.insert(hash, offset(n), |_| 0), None, "at {n}");
            count = n + 1;
            if index.is_crowded() {
                index.grow();
                let all = hashes().take(count).enumerate();
                for (n, hash) in all.filter(|(n, _)| n % 7 == count % 7) {
                    let found = index.find(hash, |at| at == offset(n));
                    assert!(found.is_some(), "{n} of {count}");
                }
            }
        }
        assert_eq!(index.entries, count);
        assert_eq!((index.level, index.split), (GROWTH_BITS, 0));
        let held: usize = (0..index.buckets()).map(|n| index.entries(n).count()).sum();
        assert_eq!(held, count);
        assert!(!index.is_crowded(), "it is as large as it gets");
        for (n, hash) in hashes().take(count).enumerate() {
            assert!(index.find(hash, |at| at == offset(n)).is_some(), "{n}");
        }
    }

    /// It grows to 32 blocks and shrinks to one again, twice: each entry that is left is found after each step. Seen
    /// to fail with a mark of an overflowed bucket that is not merged, and with an entry that takes the other bucket's
    /// slot without one.
    #[test]
    fn shrinking_index_keeps_every_entry() {
        let mut index = Index::growing(BLOCK, GROWTH_BITS).unwrap();
        for round in 0..2 {
            let mut kept: Vec<(usize, KeyHash)> = Vec::new();
            for (n, hash) in hashes().skip(round * 100_000).enumerate() {
                if index.blocks() == 32 {
                    break;
                }
                assert_eq!(index.insert(hash, offset(n), |_| 0), None, "at {n}");
                kept.push((n, hash));
                if index.is_crowded() {
                    index.grow();
                }
            }
            assert!(!index.is_sparse());
            let mut rng = Rng::new(round as u64);
            let mut held = index.bytes_held();
            assert_eq!(held, index.bytes());
            while !kept.is_empty() {
                let (n, hash) = kept.swap_remove(rng.index(kept.len()));
                let (place, _) = index.find(hash, |at| at == offset(n)).unwrap();
                index.remove(place);
                if index.is_sparse() && index.merge().is_some() {
                    assert!(!index.is_crowded());
                    let returned = held - index.bytes_held();
                    held -= returned;
                    assert!(held >= index.bytes() && held < index.bytes() + (64 << 10));
                    let is_last = index.blocks() == 1;
                    assert!(
                        returned == 0 || returned >= 64 << 10 || is_last,
                        "{returned}"
                    );
                    for &(n, hash) in &kept {
                        let found = index.find(hash, |at| at == offset(n));
                        assert!(found.is_some(), "{n} of {}", kept.len());
                    }
                }
            }
            assert_eq!((index.blocks(), index.entries), (1, 0));
            assert_eq!(held, index.bytes(), "nothing is kept in the end");
            let beyond = &index.buckets[index.buckets()..];
            assert!(
                beyond
                    .iter()
                    .all(|bucket| bucket.as_bytes().iter().all(|byte| *byte == 0))
            );
        }
    }

    /// Memory that the system does not take back counts as the index's. It is offered again when as much was merged
    /// again, and with the last block. Seen to fail with memory that counts as returned when the call has failed.
    #[test]
    fn memory_whose_return_fails_is_still_held() {
        let mut index = Index::growing(BLOCK, GROWTH_BITS).unwrap();
        let bytes = (index.buckets.len() * BUCKET) as u64;
        // Pages of a file do not return.
        let file = Arena::in_file(&nameless_file(bytes), 0, index.buckets.len());
        index.buckets = file.unwrap();
        let mut kept = Vec::new();
        for (n, hash) in hashes().enumerate() {
            if index.blocks() == 32 {
                break;
            }
            index.insert(hash, offset(n), |_| 0);
            kept.push((n, hash));
            if index.is_crowded() {
                index.grow();
            }
        }
        let (most, mut failed) = (index.bytes(), 0);
        for (n, hash) in kept {
            let (place, _) = index.find(hash, |at| at == offset(n)).unwrap();
            index.remove(place);
            if index.is_sparse() {
                failed += usize::from(index.merge().is_some_and(|returned| returned.is_err()));
                assert_eq!(index.bytes_held(), most);
            }
        }
        assert_eq!(index.blocks(), 1);
        // 31 blocks of 8 KiB, 64 KiB at a time.
        assert_eq!(failed, 4);
    }

    /// Entries with one tag have two buckets in all: so many of them are not merged into one block.
    #[test]
    fn blocks_whose_entries_have_no_room_in_one_stay_divided() {
        let mut index = Index::growing(BLOCK, 1).unwrap();
        index.grow();
        // In one bucket of either block.
        let hash = |bit: u64| {
            let mut hashes = (0..).map(|n: u64| KeyHash((2 * n + bit) << 16 | 5));
            hashes.find(|&hash| within(hash, BLOCK) == 77).unwrap()
        };
        for n in 0..2 * WAYS {
            for bit in 0..2 {
                index.insert(hash(bit), offset(2 * n + bit as usize), |_| 0);
            }
        }
        assert!(index.is_sparse() && index.merge().is_none());
        assert!(!index.is_sparse(), "it is not tried at each request");
        for n in 0..4 * WAYS {
            let found = index.find(hash(n as u64 % 2), |at| at == offset(n));
            assert!(found.is_some(), "{n}");
            if n >= WAYS {
                index.remove(found.unwrap().0);
            }
        }
        assert!(index.is_sparse() && index.merge().is_some());
        for n in 0..WAYS {
            let found = index.find(hash(n as u64 % 2), |at| at == offset(n));
            assert!(found.is_some(), "{n}");
        }
    }

    #[test]
    fn index_five_sixths_full_loses_no_entry() {
        let index = Index::new(1024).unwrap();
        let count = index.slots() * 5 / 6;
        keeps_all(index, count);
    }

    /// Adds so many entries, none of which replaces another, and finds them.
    fn keeps_all(mut index: Index, count: usize) {
        for (n, hash) in hashes().take(count).enumerate() {
            assert_eq!(
                index.insert(hash, offset(n), |_| 0),
                None,
                "at {n} of {count}"
            );
        }
        for (n, hash) in hashes().take(count).enumerate() {
            let found = index.find(hash, |at| at == offset(n));
            assert!(found.is_some(), "{n} of {count}");
        }
    }

    /// Returns all of an index as one part.
    fn whole(index: &mut Index) -> Part<'_> {
        let division = index.division(1);
        index.parts(division).next().unwrap()
    }

    /// An index that took every entry in one order takes them in another, though hardly any slot is
    /// free.
    #[test]
    fn index_is_filled_again_in_another_order() {
        let fill = |order: &[(usize, KeyHash)], spread: bool| {
            let mut index = Index::new(1024).unwrap();
            let mut refused = Vec::new();
            for &(n, hash) in order {
                if spread {
                    let mut part = whole(&mut index);
                    let first = part.prefetch_first(hash);
                    let evicted = part.insert(hash, first, offset(n), |_| 0);
                    refused.extend(evicted.map(|at| at.0 / ALIGN));
                } else if chain::has_way(&index.buckets, index.first(hash), tag(hash)) {
                    assert_eq!(index.insert(hash, offset(n), |_| 0), None);
                } else {
                    refused.push(n);
                }
            }
            (index, refused)
        };
        let slots = 1024 * WAYS;
        let all: Vec<_> = hashes().take(slots).enumerate().collect();
        let (_, refused) = fill(&all, false);
        let mut kept = all;
        kept.retain(|(n, _)| !refused.contains(n));
        assert!(kept.len() > slots * 9 / 10, "{}", kept.len());
        kept.sort_by_key(|(_, hash)| hash.0.rotate_left(20));
        assert!(!fill(&kept, false).1.is_empty(), "the order matters");
        let (index, refused) = fill(&kept, true);
        assert_eq!(refused, [], "{} of {slots}", kept.len());
        for (n, hash) in kept {
            assert!(index.find(hash, |at| at == offset(n)).is_some(), "{n}");
        }
    }

    /// Blocks are not equally full: in one of 4,096 more than nine tenths of the slots are used. With chains
    /// none refuses an entry.
    #[test]
    fn index_of_many_blocks_five_sixths_full_refuses_no_entry() {
        let blocks = 4096;
        let mut index = Index::new(blocks * BLOCK).unwrap();
        let count = index.slots() * 5 / 6;
        for (n, hash) in hashes().take(count).enumerate() {
            assert!(index.make_chain(hash), "at {n} of {count}");
            assert_eq!(index.insert(hash, offset(n), |_| 0), None);
        }
        let used = |block: usize| {
            let buckets = block * BLOCK..(block + 1) * BLOCK;
            buckets.map(|n| index.entries(n).count()).sum::<usize>()
        };
        let most = (0..blocks).map(used).max();
        assert!(most > Some(BLOCK * WAYS * 9 / 10), "{most:?}");
        for (n, hash) in hashes().take(count).enumerate().step_by(7) {
            assert!(index.find(hash, |at| at == offset(n)).is_some(), "{n}");
        }
    }

    /// An index that is about to be divided is that full on average, and some of its blocks more: none of the
    /// entries that are added meanwhile replaces another.
    #[test]
    fn index_nine_tenths_full_replaces_no_entry() {
        let index = Index::new(64 * BLOCK).unwrap();
        let count = index.slots() * 9 / 10;
        keeps_all(index, count);
    }

    #[test]
    fn colliding_keys_evict_the_oldest() {
        let mut index = Index::new(100).unwrap();
        let hash = KeyHash(0x1234_5678_9abc_def0);
        for n in 0..1000 {
            let evicted = index.insert(hash, offset(n), |at| 1000 - at.0 / ALIGN);
            assert_eq!(evicted, n.checked_sub(2 * WAYS).map(offset));
        }
    }

    #[test]
    fn entries_of_an_overflowed_bucket_can_be_moved_and_removed() {
        let mut index = Index::new(100).unwrap();
        let hash = KeyHash(77 << 20 | 5);
        for n in 0..=WAYS {
            index.insert(hash, offset(n), |_| 0);
        }
        let far = offset((1 << 42) - 1);
        let (place, _) = index.find(hash, |at| at == offset(0)).unwrap();
        index.point(place, hash, far);
        assert_eq!(
            index.find(hash, |at| at == far).map(|(place, _)| place),
            Some(place)
        );
        index.remove(place);
        assert!(index.find(hash, |at| at == far).is_none());
        assert!(
            index.find(hash, |at| at == offset(WAYS)).is_some(),
            "in the other bucket"
        );
    }
}
