//! An empty index of fixed size that several threads fill: each has a part of its blocks.

use herdwick_layout::bucket::{self, Bucket, Offset, block_among, tag};
use herdwick_mem::prefetch_read;
use herdwick_request::KeyHash;

use super::{
    chain,
    place::Place,
    slots::{self, enter, make_way},
};

/// Which blocks are those of which part.
#[derive(Clone, Copy)]
pub(crate) struct Division {
    blocks: usize,
    /// Blocks of a part; the last one may have fewer.
    each: usize,
}

impl Division {
    /// Divides so many blocks into about so many parts, at least one.
    pub(super) fn new(blocks: usize, parts: usize) -> Self {
        Self {
            blocks,
            each: blocks.div_ceil(parts),
        }
    }

    /// Returns the parts of an index with blocks of so many buckets.
    pub(super) fn parts_of(
        self,
        buckets: &mut [Bucket],
        block: usize,
    ) -> impl Iterator<Item = Part<'_>> {
        // Whole blocks: both buckets of a key are in the same part.
        let (all, each) = (buckets.len(), self.each * block);
        let parts = buckets.chunks_mut(each).enumerate();
        parts.map(move |(n, buckets)| Part {
            buckets,
            all,
            before: n * each,
            added: 0,
        })
    }

    /// Returns the number of parts.
    pub(crate) fn parts(self) -> usize {
        self.blocks.div_ceil(self.each)
    }

    /// Returns the part with both buckets of a hash.
    #[inline]
    pub(crate) fn part(self, hash: KeyHash) -> usize {
        block_among(hash, self.blocks) / self.each
    }
}

/// A part of an index.
pub(crate) struct Part<'a> {
    buckets: &'a mut [Bucket],
    /// Buckets of the whole index, and of the parts before this one.
    all: usize,
    before: usize,
    /// Entries that were added to it.
    pub(crate) added: usize,
}

impl Part<'_> {
    /// Returns the first bucket of a hash, whose part this is, and prefetches it.
    #[inline]
    pub(crate) fn prefetch_first(&self, hash: KeyHash) -> usize {
        let first = bucket::first(hash, self.all) - self.before;
        prefetch_read(self.buckets, first);
        first
    }

    /// Prefetches the other bucket if a search, or an insertion, does not end in the first.
    #[inline]
    pub(crate) fn prefetch_other(&self, hash: KeyHash, first: usize) {
        let bucket = &self.buckets[first];
        if bucket.overflowed() || bucket.free().is_none() {
            prefetch_read(self.buckets, self.other(hash, first));
        }
    }

    /// As [`super::Index::find`], of a hash whose first bucket is known.
    #[inline]
    pub(crate) fn find(
        &self,
        hash: KeyHash,
        first: usize,
        is_it: impl FnMut(Offset) -> bool,
    ) -> Option<(Place, Offset)> {
        slots::find(self.buckets, first, tag(hash), is_it)
    }

    /// Changes the offset of an entry.
    pub(crate) fn point(&mut self, place: Place, hash: KeyHash, offset: Offset) {
        let growth = bucket::growth(hash);
        self.buckets[place.bucket()].set(place.way(), tag(hash), growth, offset);
    }

    /// As [`super::Index::insert`], but searches for a chain in an index that is nearly full, too: no request waits.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        hash: KeyHash,
        first: usize,
        offset: Offset,
        age: impl Fn(Offset) -> usize,
    ) -> Option<Offset> {
        let second = self.other(hash, first);
        let way = make_way(self.buckets, first, second)
            .or_else(|| chain::make_way(self.buckets, first, tag(hash)));
        let evicted = enter(self.buckets, (hash, first), offset, way, age);
        self.added += usize::from(evicted.is_none());
        evicted
    }

    #[inline]
    fn other(&self, hash: KeyHash, first: usize) -> usize {
        bucket::other(first, tag(hash), self.buckets.len())
    }
}
