//! Searches and insertions in the buckets of an index, or of whole blocks of it: the numbers of buckets are those
//! in the slice.

use herdwick_layout::bucket::{self, Bucket, Offset, WAYS, growth, tag};
use herdwick_request::KeyHash;

use super::place::Place;

/// Finds the entry with this tag whose first bucket is `first`, and for which `is_it` returns true.
#[inline(always)]
pub(super) fn find(
    buckets: &[Bucket],
    first: usize,
    tag: u16,
    mut is_it: impl FnMut(Offset) -> bool,
) -> Option<(Place, Offset)> {
    if let Some(found) = find_in(buckets, first, tag, &mut is_it) {
        return Some(found);
    }
    // The mark spares most misses the second cache line. It is never taken back: no bucket records
    // which keys of others it holds.
    if !buckets[first].overflowed() {
        return None;
    }
    let other = bucket::other(first, tag, buckets.len());
    find_in(buckets, other, tag, &mut is_it)
}

/// As [`find`], in one bucket.
#[inline(always)]
pub(super) fn find_in(
    buckets: &[Bucket],
    bucket: usize,
    tag: u16,
    is_it: &mut impl FnMut(Offset) -> bool,
) -> Option<(Place, Offset)> {
    let slots = &buckets[bucket];
    for way in slots.ways(tag) {
        let offset = slots.offset(way);
        if is_it(offset) {
            return Some((Place::new(bucket, way), offset));
        }
    }
    None
}

/// Makes an entry of a hash, the first bucket of which is given, at a free slot of its buckets, or in place of the
/// one with the greatest `age`, the offset of which it returns.
#[inline]
pub(super) fn enter(
    buckets: &mut [Bucket],
    (hash, first): (KeyHash, usize),
    offset: Offset,
    free: Option<Place>,
    age: impl Fn(Offset) -> usize,
) -> Option<Offset> {
    let (place, evicted) = match free {
        Some(place) => (place, None),
        None => {
            let second = bucket::other(first, tag(hash), buckets.len());
            let (place, oldest) = oldest(buckets, [first, second], age);
            (place, Some(oldest))
        }
    };
    // A search ends in the first bucket unless that is marked.
    if place.bucket() != first {
        buckets[first].mark_overflowed();
    }
    buckets[place.bucket()].set(place.way(), tag(hash), growth(hash), offset);
    evicted
}

fn oldest(buckets: &[Bucket], both: [usize; 2], age: impl Fn(Offset) -> usize) -> (Place, Offset) {
    both.into_iter()
        .flat_map(|bucket| (0..WAYS).map(move |way| Place::new(bucket, way)))
        .map(|place| (place, buckets[place.bucket()].offset(place.way())))
        .max_by_key(|&(_, offset)| age(offset))
        .expect("two buckets have slots")
}

/// Returns a free slot in one of the buckets. If both are full, moves a neighbour to its other
/// bucket. `buckets` are whole blocks.
pub(super) fn make_way(buckets: &mut [Bucket], first: usize, second: usize) -> Option<Place> {
    // The first bucket before the other: a key that is found there costs one cache line.
    for bucket in [first, second] {
        if let Some(way) = buckets[bucket].free() {
            return Some(Place::new(bucket, way));
        }
    }
    for bucket in [first, second] {
        for way in 0..WAYS {
            if step_aside(buckets, bucket, way) {
                return Some(Place::new(bucket, way));
            }
        }
    }
    None
}

/// Copies an entry to its other bucket, if that has a free slot; returns whether it has.
pub(super) fn step_aside(buckets: &mut [Bucket], bucket: usize, way: usize) -> bool {
    let (tag, offset) = buckets[bucket].entry(way);
    let growth = buckets[bucket].growth(way);
    let other = bucket::other(bucket, tag, buckets.len());
    let Some(free) = buckets[other].free() else {
        return false;
    };
    buckets[other].set(free, tag, growth, offset);
    // The tag does not show which of the two is the neighbour's first bucket. If it is this
    // one, a search for it has to continue in the other; if not, the mark costs each search one
    // more cache line.
    buckets[bucket].mark_overflowed();
    true
}
