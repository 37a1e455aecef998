//! The most requested keys of one worker's partition.
//!
//! Space-Saving (Metwally, Agrawal, El Abbadi, ICDT 2005): a fixed number of counters. A key
//! without a counter takes over that of the rarest key, with its count, which bounds the overcount.
//! A key with more than 1 / counters of all requests always has a counter. Requests are sampled:
//! the first [`CLOSELY`] of each second all count, of the rest one in [`STRIDE`] on average, with
//! that weight.

use arrayvec::ArrayVec;
use herdwick_request::{Clock, KeyHash, Request};

/// Longest key in bytes.
const KEY_BYTES_MAX: usize = 250;
/// Counters for each key to be shown ...
const COUNTERS_PER_KEY: usize = 8;
/// ... and the minimum.
const COUNTERS_MIN: usize = 128;
/// Requests of a second that are all counted.
const CLOSELY: u32 = 256;
/// Of the other requests, one in this many is counted, on average. At 300 instructions each this
/// costs 1 or 2 instructions a request.
const STRIDE: u32 = 256;
/// Seconds of a window. The last complete window and the current one are shown.
const WINDOW: u32 = 10;
/// Largest number of keys shown. Bounds the counters, and so the time to find one.
pub(crate) const KEYS_MAX: usize = 64;

/// One worker's hot keys.
pub(crate) struct HotKeys {
    /// Requests to skip before the next one is counted.
    until: u32,
    shown: usize,
    now: Window,
    last: Window,
    /// The second when the current window began.
    began: u32,
    /// The current second, and how many of its requests are still all counted.
    second: u32,
    closely: u32,
    /// The random state that keeps the sampling independent of the clients' request pattern.
    random: u32,
}

/// A frequently requested key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HotKey {
    pub(crate) key: Box<[u8]>,
    /// Estimated number of requests.
    pub(crate) count: u64,
    /// Upper bound on the overcount in `count`, sampling aside.
    pub(crate) excess: u64,
    /// The period of `count` in seconds.
    pub(crate) seconds: u32,
}

impl HotKey {
    /// Returns the requests per second.
    pub(crate) fn rate(&self) -> u64 {
        self.count / u64::from(self.seconds.max(1))
    }
}

/// The counters of one window.
#[derive(Default)]
struct Window {
    hashes: Vec<u64>,
    counts: Vec<Count>,
}

#[derive(Default)]
struct Count {
    key: ArrayVec<u8, KEY_BYTES_MAX>,
    count: u64,
    excess: u64,
}

impl HotKeys {
    /// Tracks `shown` keys, at most [`KEYS_MAX`]; 0 disables it.
    pub(crate) fn new(shown: usize) -> Self {
        let shown = shown.min(KEYS_MAX);
        let counters = match shown {
            0 => 0,
            shown => COUNTERS_MIN.max(shown * COUNTERS_PER_KEY),
        };
        Self {
            until: 0,
            shown,
            now: Window::with_capacity(counters),
            last: Window::with_capacity(counters),
            began: 0,
            second: 0,
            closely: 0,
            // Any seed but 0, which xorshift maps to itself.
            random: 0x9e37_79b9,
        }
    }

    /// Samples a batch before the store executes it.
    #[inline]
    pub(crate) fn see(&mut self, clock: Clock, batch: &[Request<'_>]) {
        // A batch is far smaller than 2^32.
        let len = batch.len() as u32;
        // Nearly all batches end here, with one comparison.
        if self.until >= len {
            self.until -= len;
        } else {
            self.check(clock.second.0, batch);
        }
    }

    #[cold]
    fn check(&mut self, second: u32, batch: &[Request<'_>]) {
        if self.shown == 0 {
            // Nothing is tracked: this is reached once in 2^32 requests.
            self.until = u32::MAX;
            return;
        }
        if second != self.second {
            self.second = second;
            self.closely = CLOSELY;
            self.turn(second);
        }
        let mut at = self.until;
        while let Some(request) = batch.get(at as usize) {
            let weight = if self.closely > 0 {
                self.closely -= 1;
                1
            } else {
                STRIDE
            };
            self.now.count(request.hash, request.key, u64::from(weight));
            at += self.step();
        }
        self.until = at - batch.len() as u32;
    }

    /// Returns the distance to the next request to count.
    fn step(&mut self) -> u32 {
        if self.closely > 0 {
            return 1;
        }
        // Marsaglia's xorshift; uniform in 1..2 * STRIDE, so STRIDE on average.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        1 + self.random % (2 * STRIDE - 1)
    }

    /// Begins a new window if the current one has ended.
    fn turn(&mut self, second: u32) {
        let age = second.saturating_sub(self.began);
        if age < WINDOW {
            return;
        }
        std::mem::swap(&mut self.now, &mut self.last);
        self.now.clear();
        if age >= 2 * WINDOW {
            self.last.clear();
        }
        // Aligned, so that all workers' windows coincide.
        self.began = second - second % WINDOW;
    }

    /// Returns the hottest keys of the last window and the current one, hottest first.
    pub(crate) fn top(&mut self, clock: Clock) -> Vec<HotKey> {
        let second = clock.second.0;
        self.turn(second);
        let before = if self.last.counts.is_empty() {
            0
        } else {
            WINDOW
        };
        let seconds = 1 + second.saturating_sub(self.began) + before;
        let none = Count::default();
        let both = |count: &Count, other: Option<&Count>| {
            let other = other.unwrap_or(&none);
            HotKey {
                key: count.key[..].into(),
                count: count.count + other.count,
                excess: count.excess + other.excess,
                seconds,
            }
        };
        let now = self.now.each();
        let now = now.map(|(hash, count)| both(count, self.last.of(hash, &count.key)));
        let last = self.last.each();
        let last = last.filter(|(hash, count)| self.now.of(*hash, &count.key).is_none());
        let mut top: Vec<HotKey> = now
            .chain(last.map(|(_, count)| both(count, None)))
            .collect();
        shorten(&mut top, self.shown);
        top
    }
}

/// Keeps the `shown` hottest keys, hottest first, ordered by their guaranteed count (`count` less
/// `excess`).
pub(crate) fn shorten(keys: &mut Vec<HotKey>, shown: usize) {
    keys.sort_by(|a, b| {
        // A counter begins above its excess and only grows.
        let sure = |key: &HotKey| key.count - key.excess;
        sure(b).cmp(&sure(a)).then_with(|| a.key.cmp(&b.key))
    });
    keys.truncate(shown);
}

impl Window {
    fn with_capacity(counters: usize) -> Self {
        Self {
            hashes: Vec::with_capacity(counters),
            counts: Vec::with_capacity(counters),
        }
    }

    fn clear(&mut self) {
        self.hashes.clear();
        self.counts.clear();
    }

    fn each(&self) -> impl Iterator<Item = (KeyHash, &Count)> {
        let hashes = self.hashes.iter().map(|&hash| KeyHash(hash));
        hashes.zip(&self.counts)
    }

    fn of(&self, hash: KeyHash, key: &[u8]) -> Option<&Count> {
        self.find(hash, key).map(|at| &self.counts[at])
    }

    fn find(&self, hash: KeyHash, key: &[u8]) -> Option<usize> {
        let at = self.hashes.iter().position(|&known| known == hash.0)?;
        (self.counts[at].key[..] == *key).then_some(at)
    }

    fn count(&mut self, hash: KeyHash, key: &[u8], weight: u64) {
        if let Some(at) = self.find(hash, key) {
            self.counts[at].count += weight;
            return;
        }
        let Ok(key) = ArrayVec::try_from(key) else {
            // Longer than any key: the store refuses it too.
            return;
        };
        if self.counts.len() < self.counts.capacity() {
            self.hashes.push(hash.0);
            self.counts.push(Count {
                key,
                count: weight,
                excess: 0,
            });
            return;
        }
        // A linear search: counters are few (`KEYS_MAX`), and only sampled requests come here.
        let rarest = (0..self.counts.len()).min_by_key(|&at| self.counts[at].count);
        if let Some(at) = rarest {
            self.hashes[at] = hash.0;
            let excess = self.counts[at].count;
            self.counts[at] = Count {
                key,
                count: excess + weight,
                excess,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use herdwick_request::{Get, HashKey, Op, Second};
    use proptest::prelude::*;

    use super::*;

    fn clock(second: u32) -> Clock {
        Clock {
            epoch_unix: 0,
            second: Second(second),
        }
    }

    fn request(key: &[u8]) -> Request<'_> {
        Request {
            hash: HashKey([1, 2]).hash(key),
            key,
            op: Op::Get(Get::default()),
        }
    }

    fn see(hot: &mut HotKeys, second: u32, key: &str) {
        hot.see(clock(second), &[request(key.as_bytes())]);
    }

    proptest! {
        /// The guarantee of Space-Saving, checked against a map: a key with more than its share has
        /// a counter, and its count is exact within its excess.
        #[test]
        fn every_key_above_the_threshold_is_counted(keys in prop::collection::vec(0u32..400, 1..2000), skew in 1u32..5) {
            let mut hot = HotKeys::new(KEYS_MAX);
            let counters = hot.now.counts.capacity() as u64;
            let mut truth: HashMap<String, u64> = HashMap::new();
            for (at, key) in keys.iter().enumerate() {
                let key = (key / skew.pow(key % 5)).to_string();
                // Slow enough that every request is counted.
                let second = 10 + at as u32 / (CLOSELY - 1);
                see(&mut hot, second, &key);
                *truth.entry(key).or_default() += 1;
            }
            let top = hot.top(clock(10 + keys.len() as u32 / (CLOSELY - 1)));
            let found: HashMap<String, &HotKey> = top
                .iter()
                .map(|hot| (String::from_utf8(hot.key.to_vec()).unwrap(), hot))
                .collect();
            for (key, count) in &truth {
                let share = keys.len() as u64 / counters;
                if let Some(hot) = found.get(key) {
                    prop_assert!(hot.count >= *count && hot.count - hot.excess <= *count);
                } else {
                    prop_assert!(*count <= share || top.len() == KEYS_MAX, "{key}: {count}");
                }
            }
        }
    }

    #[test]
    fn high_rates_are_sampled_and_still_counted() {
        let mut hot = HotKeys::new(4);
        let batch: Vec<Request<'_>> = [&b"a"[..], b"b", b"a", b"c", b"a", b"b", b"a", b"d"]
            .map(request)
            .into();
        for _ in 0..100_000 {
            hot.see(clock(10), &batch);
        }
        let top = hot.top(clock(10));
        assert_eq!(&*top[0].key, b"a");
        assert_eq!(&*top[1].key, b"b");
        let near = |count: u64, truth: u64| count.abs_diff(truth) < truth / 10;
        assert!(near(top[0].count, 400_000), "{top:?}");
        assert!(near(top[1].count, 200_000), "{top:?}");
    }

    #[test]
    fn old_hot_keys_decay() {
        let mut hot = HotKeys::new(4);
        for _ in 0..100 {
            see(&mut hot, 20, "old");
        }
        see(&mut hot, 30, "new");
        let keys = |hot: &mut HotKeys, second| -> Vec<Box<[u8]>> {
            let top = hot.top(clock(second));
            top.into_iter().map(|hot| hot.key).collect()
        };
        assert_eq!(keys(&mut hot, 39), [b"old"[..].into(), b"new"[..].into()]);
        assert_eq!(keys(&mut hot, 40), [b"new"[..].into()]);
        assert!(keys(&mut hot, 60).is_empty());
    }

    #[test]
    fn no_keys_are_kept_if_hot_keys_are_off() {
        let mut hot = HotKeys::new(0);
        see(&mut hot, 10, "a");
        assert!(hot.top(clock(10)).is_empty());
        assert_eq!(hot.now.counts.capacity(), 0);
    }
}
