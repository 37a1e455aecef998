//! Access counters over a moving window: how often a key was read among the last N requests.
//!
//! A ring has a fingerprint of 32 bits for each request, and buckets of one cache line count them. Keys with
//! the same fingerprint are counted as one, which among 800,000 keys befalls one key in five thousand. A read
//! that finds its bucket full is not counted: with all requests of a window for different keys, one bucket in
//! three thousand has more than 21. Otherwise the counts are exact.

use herdwick_mem::prefetch_write;
use herdwick_request::KeyHash;

/// Fingerprints of one bucket: as many as a cache line holds with their counts.
const PLACES: usize = 21;
/// Requests of the window for each bucket.
const LOAD: usize = 10;
/// The entry of a request that is not counted.
const NONE: u32 = 0;

/// The counters.
#[derive(Debug)]
pub(crate) struct Window {
    /// The fingerprints of the last requests, as a ring.
    ring: Box<[u32]>,
    /// The oldest.
    at: usize,
    buckets: Box<[Bucket]>,
}

#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Bucket {
    tags: [u16; PLACES],
    /// 0: the place is free.
    counts: [u8; PLACES],
}

const _: () = assert!(size_of::<Bucket>() == 64);

impl Window {
    /// Makes counters of the last `requests` requests, at least one.
    pub(crate) fn new(requests: usize) -> Self {
        let requests = requests.max(1);
        Self {
            ring: vec![NONE; requests].into(),
            at: 0,
            buckets: vec![Bucket::default(); requests.div_ceil(LOAD)].into(),
        }
    }

    /// Returns the bytes of counters of `requests` requests.
    pub(crate) fn bytes(requests: usize) -> usize {
        requests.max(1) * size_of::<u32>() + requests.max(1).div_ceil(LOAD) * size_of::<Bucket>()
    }

    /// Counts a read; returns how often the key was read in the window, this one included, up to 255.
    #[inline]
    pub(crate) fn count(&mut self, hash: KeyHash) -> u8 {
        let print = fingerprint(hash);
        // First, so that a window of N holds this read and N - 1 before it.
        let mark = self.move_on();
        let (bucket, tag) = self.place(print);
        let Bucket { tags, counts } = &mut self.buckets[bucket];
        let mut free = None;
        for place in 0..PLACES {
            if counts[place] == 0 {
                free = free.or(Some(place));
            } else if tags[place] == tag {
                // A count that is full stays: what is not in the ring is not taken off again.
                if counts[place] < u8::MAX {
                    counts[place] += 1;
                    self.ring[mark] = print;
                }
                return counts[place];
            }
        }
        let Some(place) = free else {
            // Not counted: what `forget` took off later would be another key's.
            return 1;
        };
        (tags[place], counts[place]) = (tag, 1);
        self.ring[mark] = print;
        1
    }

    /// Moves the window on by a request that is not counted.
    #[inline]
    pub(crate) fn pass(&mut self) {
        self.move_on();
    }

    /// Returns how often the key was read in the window, up to 255.
    #[cfg(test)]
    pub(crate) fn get(&self, hash: KeyHash) -> u8 {
        let (bucket, tag) = self.place(fingerprint(hash));
        let Bucket { tags, counts } = &self.buckets[bucket];
        let mut pairs = tags.iter().zip(counts);
        let found = pairs.find(|(there, count)| **there == tag && **count > 0);
        found.map_or(0, |(_, count)| *count)
    }

    /// Prefetches what [`Window::count`] accesses.
    #[inline]
    pub(crate) fn prefetch(&self, hash: KeyHash) {
        let (bucket, _) = self.place(fingerprint(hash));
        prefetch_write(&self.buckets, bucket);
    }

    /// Forgets the oldest request. Returns its place in the ring, which is the new one's.
    #[inline]
    fn move_on(&mut self) -> usize {
        let at = self.at;
        let oldest = std::mem::replace(&mut self.ring[at], NONE);
        self.at = if at + 1 == self.ring.len() { 0 } else { at + 1 };
        // The line of the next one to go is on its way meanwhile.
        let next = self.ring[self.at];
        if next != NONE {
            let (bucket, _) = self.place(next);
            prefetch_write(&self.buckets, bucket);
        }
        if oldest != NONE {
            self.forget(oldest);
        }
        at
    }

    #[inline]
    fn forget(&mut self, print: u32) {
        let (bucket, tag) = self.place(print);
        let Bucket { tags, counts } = &mut self.buckets[bucket];
        let mut pairs = tags.iter().zip(counts);
        if let Some((_, count)) = pairs.find(|(there, count)| **there == tag && **count > 0) {
            *count -= 1;
        }
    }

    /// Returns the bucket of a fingerprint, and what distinguishes it there.
    #[inline]
    fn place(&self, print: u32) -> (usize, u16) {
        // Multiply-shift over the high bits; the low 16 are the tag, so bucket and tag together are
        // nearly all of the fingerprint.
        let bucket = (u64::from(print) * self.buckets.len() as u64) >> 32;
        (bucket as usize, print as u16)
    }
}

/// Returns 32 bits of a hash, of which those that select the partition are none.
#[inline]
fn fingerprint(hash: KeyHash) -> u32 {
    // 0 is the entry of a request that is not counted.
    ((hash.0 >> 16) as u32).max(NONE + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use herdwick_check::Rng;
    use proptest::prelude::*;

    use super::*;

    /// The last requests, counted anew each time.
    struct Naive {
        requests: VecDeque<Option<u64>>,
        most: usize,
    }

    impl Naive {
        fn push(&mut self, key: Option<u64>) {
            if self.requests.len() == self.most {
                self.requests.pop_front();
            }
            self.requests.push_back(key);
        }

        fn get(&self, key: u64) -> usize {
            self.requests
                .iter()
                .flatten()
                .filter(|other| **other == key)
                .count()
        }
    }

    /// Hashes of different fingerprints.
    fn hash(key: u64) -> KeyHash {
        KeyHash(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 << 16)
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_last_requests(
            most in 1_usize..200,
            keys in prop::collection::vec(prop::option::weighted(0.9, 0_u64..20), 0..600),
        ) {
            let mut window = Window::new(most);
            let mut naive = Naive { requests: VecDeque::new(), most };
            for key in keys {
                naive.push(key);
                match key {
                    Some(key) => {
                        let counted = usize::from(window.count(hash(key)));
                        prop_assert_eq!(counted, naive.get(key).min(255));
                    }
                    None => window.pass(),
                }
                for key in 0..20 {
                    prop_assert_eq!(usize::from(window.get(hash(key))), naive.get(key));
                }
            }
        }
    }

    #[test]
    fn a_key_that_is_read_all_the_time_is_forgotten_when_the_window_has_passed() {
        let mut window = Window::new(1000);
        for _ in 0..5000 {
            window.count(hash(7));
        }
        assert_eq!(window.get(hash(7)), u8::MAX);
        (0..1000).for_each(|_| window.pass());
        assert_eq!(window.get(hash(7)), 0);
    }

    /// The case for which LOAD is chosen: no two requests of a window are for the same key.
    #[test]
    fn of_a_window_of_different_keys_nearly_all_are_counted() {
        let mut rng = Rng::new(1);
        let mut window = Window::new(100_000);
        let hashes: Vec<_> = (0..100_000).map(|_| KeyHash(rng.bits())).collect();
        hashes.iter().for_each(|hash| {
            window.count(*hash);
        });
        let lost = hashes.iter().filter(|hash| window.get(**hash) == 0).count();
        assert!(lost < 100, "{lost}");
    }
}
