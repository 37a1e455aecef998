//! Enumeration of a store's items, and removal of those that have expired, one bucket of the index at
//! a time.

use herdwick_layout::item::bit;
use herdwick_request::{Item, Second};

use crate::{
    index::Index,
    store::{Hit, Store},
};

impl Store {
    /// Returns the number of buckets, the range of [`scan`](Self::scan).
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.index.buckets()
    }

    /// Calls `visit` with key, item, and bytes in memory of each valid item in one bucket. Records
    /// no access. Insertions between two calls may move an item to a bucket that has been visited,
    /// or from one to another that has not; that takes a nearly full index, or one that grows, which moves
    /// items to buckets behind all others: then an item may be visited twice,
    /// but none is left out by a walk from bucket 0 to the last there is at its end.
    pub fn scan(
        &mut self,
        now: Second,
        bucket: usize,
        mut visit: impl FnMut(&[u8], &Item<'_>, usize),
    ) {
        self.tick(now);
        for at in self.index.entries(bucket) {
            if !self.gone(at) {
                let bytes = self.items.header(at).footprint();
                visit(self.items.key(at), &self.item(at), bytes);
            }
        }
    }

    /// Removes the expired and flushed items of one bucket (memcached's crawler); returns how many
    /// items it has checked.
    pub fn remove_expired(&mut self, now: Second, bucket: usize) -> u64 {
        self.tick(now);
        let mut checked = 0;
        for place in Index::places(bucket) {
            let Some(at) = self.index.entry(place) else {
                continue;
            };
            checked += 1;
            if self.gone(at) {
                self.counters.crawler_reclaimed += 1;
                let unfetched = !self.items.header(at).has(bit::FETCHED);
                self.counters.expired_unfetched += u64::from(unfetched);
                self.unlink(Hit { place, at });
            }
        }
        self.counters.crawler_items_checked += checked;
        checked
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::{Store, StoreConfig};
    use herdwick_request::{Clock, Execute, HashKey, Op, Put, Reply, Request, Second};

    const HASH_KEY: HashKey = HashKey([1, 2]);

    fn key(n: u32) -> Vec<u8> {
        format!("key {n}").into_bytes()
    }

    /// Stores item `n` in second 1.
    fn put(store: &mut Store, n: u32, exptime: u32) {
        let key = &key(n);
        let put = Put {
            exptime,
            ..Put::default()
        };
        let request = Request {
            hash: HASH_KEY.hash(key),
            key,
            op: Op::Put(put),
        };
        let clock = Clock {
            epoch_unix: 0,
            second: Second(1),
        };
        store.execute(clock, &[request], &mut |_, _: &Reply<'_>| {});
    }

    #[test]
    fn scan_returns_every_live_item_once() {
        let mut store = Store::new(&StoreConfig {
            memory_bytes: 1 << 20,
            item_bytes_max: 1 << 16,
            hash_key: HASH_KEY,
        })
        .unwrap();
        let mut expected = BTreeSet::new();
        for n in 0..3000 {
            let exptime = if n % 3 == 0 { 1 } else { 0 };
            put(&mut store, n, exptime);
            if exptime == 0 {
                expected.insert(key(n));
            }
        }
        let mut seen = Vec::new();
        for bucket in 0..store.buckets() {
            store.scan(Second(10), bucket, |key, _, bytes| {
                assert!(bytes >= key.len());
                seen.push(key.to_vec());
            });
        }
        assert_eq!(seen.len(), expected.len());
        assert_eq!(BTreeSet::from_iter(seen), expected);
    }

    /// A thousand of three thousand items have expired: these are removed, once, and no others.
    #[test]
    fn expired_and_flushed_items_are_removed() {
        let mut store = Store::new(&StoreConfig {
            memory_bytes: 1 << 20,
            item_bytes_max: 1 << 16,
            hash_key: HASH_KEY,
        })
        .unwrap();
        for n in 0..3000 {
            put(&mut store, n, u32::from(n % 3 == 0));
        }
        let walk = |store: &mut Store| {
            let buckets = 0..store.buckets();
            let checked = buckets.map(|bucket| store.remove_expired(Second(10), bucket));
            let checked: u64 = checked.sum();
            let counters = store.counters();
            (checked, counters.crawler_reclaimed, counters.items)
        };
        assert_eq!(walk(&mut store), (3000, 1000, 2000));
        assert_eq!(walk(&mut store), (2000, 1000, 2000));
        let mut left = BTreeSet::new();
        for bucket in 0..store.buckets() {
            store.scan(Second(10), bucket, |key, _, _| {
                left.insert(key.to_vec());
            });
        }
        let expected = (0..3000).filter(|n| n % 3 != 0);
        assert_eq!(left, expected.map(key).collect());
        let counters = store.counters();
        assert_eq!(counters.expired_unfetched, 1000);
        assert_eq!(counters.crawler_items_checked, 5000);
        store.flush(Second(10), Second(10));
        assert_eq!(walk(&mut store), (2000, 3000, 0));
        assert_eq!(store.counters().bytes, 0);
    }
}
