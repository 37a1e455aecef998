//! The keys that are asked for most, found by one worker among its own.
//!
//! Space-Saving (Metwally, Agrawal, El Abbadi, ICDT 2005): a fixed number of counters; a key
//! without one takes that of the rarest, with its count, which bounds by how much it is counted
//! too often. A key with more than 1 / counters of all requests is never missed. Requests are
//! sampled: the first of each second one by one, of those that follow one in [`STRIDE`], which
//! counts for so many.

use arrayvec::ArrayVec;
use herdwick_mica::{Clock, KeyHash, Request};

/// Longest key.
const KEY_BYTES_MAX: usize = 250;
/// Counters for each key that is to be shown ...
const COUNTERS_PER_KEY: usize = 8;
/// ... and at least so many.
const COUNTERS_MIN: usize = 128;
/// Requests of a second that are looked at one by one.
const CLOSELY: u32 = 256;
/// Of the others, one in so many on average. At 300 instructions a look this is 1 or 2 a request.
const STRIDE: u32 = 256;
/// Seconds of a window; what is shown is the last whole one and the present one.
const WINDOW: u32 = 10;
/// The most keys that may be shown: it bounds the counters, and so the time of a look.
pub(crate) const KEYS_MAX: usize = 64;

/// One worker's hot keys.
pub(crate) struct HotKeys {
    /// Requests to pass over before the next is looked at.
    until: u32,
    shown: usize,
    now: Window,
    last: Window,
    /// When the present window began.
    began: u32,
    /// The second that is sampled, and how many of its requests may still be looked at closely.
    second: u32,
    closely: u32,
    /// State of the generator that keeps the stride out of step with the clients.
    random: u32,
}

/// A key that is asked for often.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HotKey {
    pub(crate) key: Box<[u8]>,
    /// Requests, estimated.
    pub(crate) count: u64,
    /// By how much `count` may be too high, sampling aside.
    pub(crate) excess: u64,
    /// Over so many seconds.
    pub(crate) seconds: u32,
}

impl HotKey {
    /// Requests a second.
    pub(crate) fn rate(&self) -> u64 {
        self.count / u64::from(self.seconds.max(1))
    }
}

/// Space-Saving's counters.
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
    /// Looks for `shown` keys, at most [`KEYS_MAX`]; 0: for none.
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
            random: 0x9e37_79b9,
        }
    }

    /// Sees a batch on its way to the store.
    #[inline]
    pub(crate) fn see(&mut self, clock: Clock, batch: &[Request<'_>]) {
        // A batch is far below 2^32.
        let len = batch.len() as u32;
        if self.until >= len {
            self.until -= len;
        } else {
            self.check(clock.second.0, batch);
        }
    }

    #[cold]
    fn check(&mut self, second: u32, batch: &[Request<'_>]) {
        if self.shown == 0 {
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

    /// How far it is to the next request to look at.
    fn step(&mut self) -> u32 {
        if self.closely > 0 {
            return 1;
        }
        // Marsaglia's xorshift; uniform in 1..2 * STRIDE, STRIDE on average.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        1 + self.random % (2 * STRIDE - 1)
    }

    /// Begins a new window if the present one has ended.
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
        // Aligned, so that all workers' windows are the same.
        self.began = second - second % WINDOW;
    }

    /// The hottest keys of the last window and the present one, hottest first.
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

/// Leaves the `shown` hottest, hottest first. What may be counted too often comes after what is
/// sure.
pub(crate) fn shorten(keys: &mut Vec<HotKey>, shown: usize) {
    keys.sort_by(|a, b| {
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
            // The store refuses it too.
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

    use herdwick_mica::{Get, HashKey, Op, Second};
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
        /// What Space-Saving promises, against a plain map: a key with more than its share is
        /// there, and counted right but for its excess.
        #[test]
        fn no_hot_key_is_missed(keys in prop::collection::vec(0u32..400, 1..2000), skew in 1u32..5) {
            let mut hot = HotKeys::new(KEYS_MAX);
            let counters = hot.now.counts.capacity() as u64;
            let mut truth: HashMap<String, u64> = HashMap::new();
            for (at, key) in keys.iter().enumerate() {
                let key = (key / skew.pow(key % 5)).to_string();
                // Slow enough to be looked at one by one.
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
    fn a_torrent_is_sampled_and_still_counted() {
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
    fn what_was_hot_is_forgotten() {
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
    fn none_are_kept_if_none_are_shown() {
        let mut hot = HotKeys::new(0);
        see(&mut hot, 10, "a");
        assert!(hot.top(clock(10)).is_empty());
        assert_eq!(hot.now.counts.capacity(), 0);
    }
}
