//! The walks over the buckets of the index: where each was last, and when.

use std::ops::Range;

use herdwick_request::Second;

/// Walks at a time whose places are known: dumps and crawls of operators.
const WALKS: usize = 8;

/// Places of walks.
#[derive(Debug, Default)]
pub(crate) struct Walks([Option<(usize, Second)>; WALKS]);

impl Walks {
    /// Notes that a bucket of `buckets` is walked over. It is the next one of a walk, or the first; then it takes the
    /// place of the one that has stood still for longest. With the last one the walk has ended.
    #[inline]
    pub(crate) fn note(&mut self, bucket: usize, buckets: usize, now: Second) {
        let at = |last: usize| {
            let mut places = self.0.iter();
            places.position(|walk| walk.is_some_and(|(found, _)| found == last))
        };
        // The one that comes to the bucket, before one that stands there.
        let before = bucket.checked_sub(1).and_then(at);
        let goes_on = bucket + 1 < buckets;
        let place = before.or_else(|| at(bucket));
        let place = place.or_else(|| goes_on.then(|| self.longest_still()));
        if let Some(place) = place {
            self.0[place] = goes_on.then_some((bucket, now));
        }
    }

    /// Forgets the walk whose next bucket this is: it has ended before the last one.
    pub(crate) fn end(&mut self, bucket: usize) {
        let last = bucket.checked_sub(1);
        let is_it = |walk: &Option<(usize, Second)>| walk.map(|(found, _)| found) == last;
        if let Some(last) = last.and_then(|_| self.0.iter_mut().find(|walk| is_it(walk))) {
            *last = None;
        }
    }

    #[cold]
    fn longest_still(&self) -> usize {
        let since = |place: &usize| self.0[*place].map(|(_, second)| second.0);
        (0..WALKS).min_by_key(since).unwrap_or(0)
    }

    /// Returns whether one is in these buckets that has gone on since `since`.
    pub(crate) fn any_in(&self, buckets: &Range<usize>, since: Second) -> bool {
        let mut walks = self.0.iter().flatten();
        walks.any(|(bucket, second)| buckets.contains(bucket) && second.0 > since.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_walk_is_known_until_others_have_gone_on_later() {
        let mut walks = Walks::default();
        for n in 0..WALKS {
            walks.note(100 * n, 10_000, Second(n as u32 + 1));
        }
        for n in 0..WALKS {
            walks.note(100 * n + 1, 10_000, Second(n as u32 + 1));
            assert!(walks.any_in(&(100 * n + 1..100 * n + 2), Second(0)));
            assert!(
                !walks.any_in(&(100 * n..100 * n + 1), Second(0)),
                "it went on"
            );
        }
        assert!(!walks.any_in(&(0..100), Second(1)), "it has stood still");
        // One overtakes another, which stays where it is.
        let mut both = Walks::default();
        (0..=4).for_each(|bucket| both.note(bucket, 10_000, Second(1)));
        (0..=9).for_each(|bucket| both.note(bucket, 10_000, Second(1)));
        assert_eq!(both.0.iter().flatten().count(), 2);
        assert!(both.any_in(&(4..5), Second(0)) && both.any_in(&(9..10), Second(0)));
        walks.note(5_000, 10_000, Second(9));
        assert!(!walks.any_in(&(0..100), Second(0)), "the oldest");
        assert!(
            walks.any_in(&(100..101 + 1), Second(0)) && walks.any_in(&(5_000..5_001), Second(8))
        );
        for bucket in [9_998, 9_999] {
            both.note(bucket, 10_000, Second(2));
        }
        assert!(!both.any_in(&(9_998..10_000), Second(0)), "it has ended");
        let mut ended = Walks::default();
        (0..=9).for_each(|bucket| ended.note(bucket, 10_000, Second(1)));
        (0..=4).for_each(|bucket| ended.note(bucket, 10_000, Second(1)));
        [0, 3, 4, 6].into_iter().for_each(|next| ended.end(next));
        assert_eq!(ended.0.iter().flatten().count(), 2, "they are elsewhere");
        ended.end(10);
        assert!(ended.any_in(&(4..5), Second(0)) && !ended.any_in(&(5..10), Second(0)));
    }
}
