//! Chains of entries, each of which moves to its other bucket, so that another entry has a slot.

use herdwick_layout::bucket::{BLOCK, WAYS, tag};
use herdwick_request::KeyHash;

use super::{Index, step_aside};

/// A bucket of a block that a chain of entries can reach: by moving an entry of another link, the number of
/// that link and the entry's way.
#[derive(Clone, Copy, Default)]
struct Link {
    bucket: usize,
    from: Option<(usize, usize)>,
}

impl Index {
    /// Returns whether an entry can be added without replacing another.
    pub(super) fn has_way(&self, hash: KeyHash) -> bool {
        let first = self.first(hash);
        let buckets = [first, self.other(first, tag(hash))];
        let is_free = |bucket: usize| self.buckets[bucket].free().is_some();
        let may_step = |bucket: usize| {
            let entries = (0..WAYS).map(|way| self.buckets[bucket].entry(way).0);
            entries
                .into_iter()
                .any(|tag| is_free(self.other(bucket, tag)))
        };
        buckets
            .into_iter()
            .any(|bucket| is_free(bucket) || may_step(bucket))
    }

    /// As [`Self::has_way`]; if not, moves a chain of entries, each to its other bucket, so that there is
    /// one. Reads one block at most: without a way after that, each slot that can be reached is used.
    #[inline]
    pub(crate) fn make_chain(&mut self, hash: KeyHash) -> bool {
        self.has_way(hash) || self.find_chain(hash)
    }

    /// Searches for the shortest chain, breadth first, and moves it.
    #[cold]
    pub(super) fn find_chain(&mut self, hash: KeyHash) -> bool {
        let first = self.first(hash);
        let start = first - first % self.block;
        // A key's two buckets lie in one block, so a chain never leaves it, and a bit for each bucket of
        // the block tells which were reached.
        let mut links = [Link::default(); BLOCK];
        let (mut reached, mut count, mut seen) = (0, 0, 0u128);
        for bucket in [first, self.other(first, tag(hash))] {
            // If both buckets are one and the same, the second link is not counted.
            links[count] = Link { bucket, from: None };
            count += usize::from(seen >> (bucket - start) & 1 == 0);
            seen |= 1 << (bucket - start);
        }
        while reached < count {
            let bucket = links[reached].bucket;
            for way in 0..WAYS {
                let other = self.other(bucket, self.buckets[bucket].entry(way).0);
                if self.buckets[other].free().is_some() {
                    self.move_chain(&links, (reached, way));
                    return true;
                }
                if seen >> (other - start) & 1 == 0 {
                    let from = Some((reached, way));
                    links[count] = Link {
                        bucket: other,
                        from,
                    };
                    (count, seen) = (count + 1, seen | 1 << (other - start));
                }
            }
            reached += 1;
        }
        false
    }

    /// Moves the entry of a link to its other bucket, the entry that leads there to its slot, and so on.
    fn move_chain(&mut self, links: &[Link], last: (usize, usize)) {
        // From the end of the chain: an entry is copied before its slot is freed, so that it is in both
        // buckets for a moment and never in neither, for readers in other processes, too.
        let mut moving = Some(last);
        while let Some((n, way)) = moving {
            let bucket = links[n].bucket;
            step_aside(&mut self.buckets, bucket, way);
            self.buckets[bucket].set_tag(way, 0);
            moving = links[n].from;
        }
    }
}
