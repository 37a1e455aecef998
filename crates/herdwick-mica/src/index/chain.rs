//! Chains of entries, each of which moves to its other bucket, so that another entry has a slot.

use herdwick_layout::bucket::{self, BLOCK, Bucket, WAYS};

use super::{place::Place, slots};

/// A bucket of a block that a chain of entries can reach: by moving an entry of another link, the number of
/// that link and the entry's way.
#[derive(Clone, Copy, Default)]
struct Link {
    bucket: usize,
    from: Option<(usize, usize)>,
}

/// Returns a slot in one of the two buckets of a tag, which have neither a free one nor a neighbour that can
/// move, by a chain of entries, if there is one.
#[cold]
pub(super) fn make_way(buckets: &mut [Bucket], first: usize, tag: u16) -> Option<Place> {
    if !find(buckets, first, tag) {
        return None;
    }
    let second = bucket::other(first, tag, buckets.len());
    slots::make_way(buckets, first, second)
}

/// Returns whether an entry can be added without replacing another, if at most one moves.
pub(super) fn has_way(buckets: &[Bucket], first: usize, tag: u16) -> bool {
    let other = |bucket, tag| bucket::other(bucket, tag, buckets.len());
    let is_free = |bucket: usize| buckets[bucket].free().is_some();
    let may_step = |bucket: usize| {
        let mut tags = (0..WAYS).map(|way| buckets[bucket].entry(way).0);
        tags.any(|tag| is_free(other(bucket, tag)))
    };
    [first, other(first, tag)]
        .into_iter()
        .any(|bucket| is_free(bucket) || may_step(bucket))
}

/// Searches for the shortest chain, breadth first, and moves it.
#[cold]
pub(super) fn find(buckets: &mut [Bucket], first: usize, tag: u16) -> bool {
    let start = first - first % bucket::block(buckets.len());
    // A key's two buckets lie in one block, so a chain never leaves it, and a bit for each bucket of
    // the block tells which were reached.
    let mut links = [Link::default(); BLOCK];
    let (mut reached, mut count, mut seen) = (0, 0, 0u128);
    for bucket in [first, bucket::other(first, tag, buckets.len())] {
        // If both buckets are one and the same, the second link is not counted.
        links[count] = Link { bucket, from: None };
        count += usize::from(seen >> (bucket - start) & 1 == 0);
        seen |= 1 << (bucket - start);
    }
    while reached < count {
        let bucket = links[reached].bucket;
        for way in 0..WAYS {
            let other = bucket::other(bucket, buckets[bucket].entry(way).0, buckets.len());
            if buckets[other].free().is_some() {
                move_all(buckets, &links, (reached, way));
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
fn move_all(buckets: &mut [Bucket], links: &[Link], last: (usize, usize)) {
    // From the end of the chain: an entry is copied before its slot is freed, so that it is in both
    // buckets for a moment and never in neither, for readers in other processes, too.
    let mut moving = Some(last);
    while let Some((n, way)) = moving {
        let bucket = links[n].bucket;
        slots::step_aside(buckets, bucket, way);
        buckets[bucket].set_tag(way, 0);
        moving = links[n].from;
    }
}
