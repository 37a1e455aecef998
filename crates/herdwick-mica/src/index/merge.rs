//! Two blocks of an index merged into one: it shrinks as it has grown.

use std::{array, io, ops::Range};

use herdwick_layout::bucket::{self, BLOCK, BUCKET, Bucket, WAYS};
use zerocopy::FromZeros;

use super::{Index, SPARSE, slots::make_way};

/// Buckets of merged blocks whose memory is returned at once: each system call takes as long as some merges.
const RETURNED: usize = (64 << 10) / BUCKET;

impl Index {
    /// Returns the buckets that are merged next: those of a block, and those of the last one, which move there.
    /// It must have grown.
    pub(crate) fn merging(&self) -> [Range<usize>; 2] {
        let (level, split) = self.before();
        let whole = self.base << level;
        [split, whole + split].map(|block| block * self.block..(block + 1) * self.block)
    }

    /// Returns level and split before the last division.
    fn before(&self) -> (u32, usize) {
        match self.split {
            0 => (self.level - 1, (self.base << (self.level - 1)) - 1),
            split => (self.level, split - 1),
        }
    }

    /// Merges two blocks, the last one into that which it was divided from: each entry comes to the bucket of
    /// the same number, or to its other one, and the memory of the last blocks is returned to the system, several at
    /// a time. If an entry would have no slot, nothing changes, and it is not tried again before there are fewer
    /// entries. Returns whether it was done; the error is that of the system call.
    pub(crate) fn merge(&mut self) -> Option<io::Result<()>> {
        let [to, from] = self.merging();
        let mut merged: [Bucket; BLOCK] = array::from_fn(|n| self.buckets[to.start + n].clone());
        // In a copy, so that nothing has changed where an entry finds no slot.
        for n in 0..BLOCK {
            let bucket = &self.buckets[from.start + n];
            if !take_all(&mut merged, n, bucket) {
                // Tried again when a quarter of the entries have gone: until then it would most
                // probably fail again.
                self.sparse = self.entries / SPARSE * (SPARSE - 1);
                return None;
            }
        }
        self.buckets[to].clone_from_slice(&merged);
        // Empty for the next division, overflow marks included.
        self.buckets[from.clone()].fill(Bucket::new_zeroed());
        let (level, split) = self.before();
        self.resized(level, split);
        Some(self.return_merged())
    }

    /// Returns the memory of merged blocks, if there is enough of it, or no other will be merged.
    fn return_merged(&mut self) -> io::Result<()> {
        let buckets = self.buckets();
        let is_least = self.level == self.level_min && self.split == 0;
        if self.tried - buckets < RETURNED && !is_least {
            return Ok(());
        }
        // Even if the call fails: it is not repeated before as many more are merged.
        self.tried = buckets;
        self.buckets.give_back(buckets..self.held)?;
        self.held = buckets;
        Ok(())
    }
}

/// Adds the entries of a bucket to number `n` of the block that its own is merged into; returns whether all have slots.
fn take_all(block: &mut [Bucket; BLOCK], n: usize, bucket: &Bucket) -> bool {
    if bucket.overflowed() {
        block[n].mark_overflowed();
    }
    (0..WAYS).all(|way| {
        let (tag, offset) = bucket.entry(way);
        if tag == 0 {
            return true;
        }
        let other = bucket::other(n, tag, BLOCK);
        let Some(place) = make_way(block, n, other) else {
            return false;
        };
        if place.bucket() != n {
            // As in `step_aside`.
            block[n].mark_overflowed();
        }
        block[place.bucket()].set(place.way(), tag, bucket.growth(way), offset);
        true
    })
}
