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
    /// or from one to another that has not; that takes full buckets, or an index that grows, which moves
    /// items to buckets behind all others: then an item may be visited twice,
    /// but growth leaves none out of a walk from bucket 0 to the last there is at its end. One that stops for a minute, or
    /// while eight others go on, may leave items out, if the index shrinks meanwhile. Call [`Self::end_walk`] if it
    /// ends before.
    pub fn scan(
        &mut self,
        now: Second,
        bucket: usize,
        mut visit: impl FnMut(&[u8], &Item<'_>, usize),
    ) {
        self.tick(now);
        self.walks.note(bucket, self.index.buckets(), now);
        for at in self.index.entries(bucket) {
            if !self.gone(at) {
                let bytes = self.items.header(at).footprint();
                visit(self.items.key(at), &self.item(at), bytes);
            }
        }
    }

    /// Ends a walk whose next bucket would have been `next`: the index does not wait for it any more.
    pub fn end_walk(&mut self, next: usize) {
        self.walks.end(next);
    }

    /// Removes the expired and flushed items of one bucket (memcached's crawler); returns how many
    /// items it has checked.
    pub fn remove_expired(&mut self, now: Second, bucket: usize) -> u64 {
        self.tick(now);
        self.walks.note(bucket, self.index.buckets(), now);
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
    use herdwick_request::{Clock, Delete, Execute, HashKey, Op, Put, Reply, Request, Second};

    const HASH_KEY: HashKey = HashKey([1, 2]);

    fn key(n: u32) -> Vec<u8> {
        format!("key {n}").into_bytes()
    }

    /// Stores item `n` in second 1.
    fn put(store: &mut Store, n: u32, exptime: u32) {
        let put = Put {
            exptime,
            ..Put::default()
        };
        run(store, Second(1), n, Op::Put(put));
    }

    fn run(store: &mut Store, second: Second, n: u32, op: Op<'_>) {
        let key = &key(n);
        let request = Request {
            hash: HASH_KEY.hash(key),
            key,
            op,
        };
        let clock = Clock {
            epoch_unix: 0,
            second,
        };
        store.execute(clock, &[request], &mut |_, _: &Reply<'_>| {});
    }

    /// How a walk ends.
    enum End {
        Last,
        Before,
        Stop,
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

    /// Items are deleted during a walk until the index could shrink: it does when the walk has ended, at the last
    /// bucket or before, or stopped for a minute. Seen to fail without a look at the walk, and without
    /// [`Store::end_walk`].
    #[test]
    fn walk_leaves_out_no_item_though_the_index_could_shrink() {
        for end in [End::Last, End::Before, End::Stop] {
            let mut store = Store::new(&StoreConfig {
                memory_bytes: 4 << 20,
                item_bytes_max: 1 << 16,
                hash_key: HASH_KEY,
            })
            .unwrap();
            let least = store.buckets();
            let kept = 1_000;
            (0..30_000).for_each(|n| put(&mut store, n, 0));
            let most = store.buckets();
            assert!(most > 2 * least);
            let mut seen = BTreeSet::new();
            let mut see = |store: &mut Store, bucket| {
                store.scan(Second(10), bucket, |key, _, _| {
                    seen.insert(key.to_vec());
                });
            };
            (0..most / 4).for_each(|bucket| see(&mut store, bucket));
            for n in kept..30_000 {
                run(&mut store, Second(10), n, Op::Delete(Delete::default()));
            }
            let mutate = |store: &mut Store, second| {
                for _ in 0..1_000 {
                    run(store, Second(second), 0, Op::Put(Put::default()));
                }
            };
            // What lies between the walk and the blocks that are merged is less and less.
            let during = store.buckets();
            assert!(during > most / 4);
            match end {
                End::Last => {
                    (most / 4..during).for_each(|bucket| see(&mut store, bucket));
                    mutate(&mut store, 10);
                    assert!((0..kept).all(|n| seen.contains(&key(n))));
                }
                End::Before => {
                    mutate(&mut store, 10);
                    assert_eq!(store.buckets(), during);
                    store.end_walk(most / 4);
                    mutate(&mut store, 10);
                }
                End::Stop => {
                    mutate(&mut store, 69);
                    assert_eq!(store.buckets(), during);
                    mutate(&mut store, 70);
                }
            }
            assert_eq!(store.buckets(), least);
        }
    }

    /// One walk is in the middle when another has passed the end.
    #[test]
    fn walk_leaves_out_no_item_though_another_has_ended() {
        let mut store = Store::new(&StoreConfig {
            memory_bytes: 4 << 20,
            item_bytes_max: 1 << 16,
            hash_key: HASH_KEY,
        })
        .unwrap();
        let (least, kept) = (store.buckets(), 1_000);
        (0..30_000).for_each(|n| put(&mut store, n, 0));
        let most = store.buckets();
        let mut seen = BTreeSet::new();
        let mut see = |store: &mut Store, bucket| {
            store.scan(Second(10), bucket, |key, _, _| {
                seen.insert(key.to_vec());
            });
        };
        (0..most / 4).for_each(|bucket| see(&mut store, bucket));
        for bucket in 0..most {
            store.remove_expired(Second(10), bucket);
        }
        for n in kept..30_000 {
            run(&mut store, Second(10), n, Op::Delete(Delete::default()));
        }
        assert!(store.buckets() > most / 4);
        (most / 4..store.buckets()).for_each(|bucket| see(&mut store, bucket));
        assert!((0..kept).all(|n| seen.contains(&key(n))));
        for _ in 0..1_000 {
            run(&mut store, Second(10), 0, Op::Put(Put::default()));
        }
        assert_eq!(store.buckets(), least);
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
