//! Enumeration of a store's items, one bucket of the index at a time.

use crate::{Item, Second, store::Store};

impl Store {
    /// Returns the number of buckets, the range of [`scan`](Self::scan).
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.index.buckets()
    }

    /// Calls `visit` with key, item, and bytes in the log of each valid item in one bucket. Records
    /// no access. Insertions between two calls may move an item to a bucket that has been visited,
    /// or from one to another that has not; that takes a nearly full index.
    pub fn scan(
        &mut self,
        now: Second,
        bucket: usize,
        mut visit: impl FnMut(&[u8], &Item<'_>, usize),
    ) {
        self.tick(now);
        for at in self.index.entries(bucket) {
            if !self.gone(at) {
                let bytes = self.log.header(at).footprint();
                visit(self.log.key(at), &self.item(at), bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::{Clock, Execute, HashKey, Op, Put, Reply, Request, Second, Store, StoreConfig};

    #[test]
    fn scan_returns_every_live_item_once() {
        const HASH_KEY: HashKey = HashKey([1, 2]);
        let mut store = Store::new(&StoreConfig {
            memory_bytes: 1 << 20,
            item_bytes_max: 1 << 16,
            hash_key: HASH_KEY,
        })
        .unwrap();
        let mut expected = BTreeSet::new();
        for n in 0..3000 {
            let key = format!("key {n}");
            let exptime = if n % 3 == 0 { 1 } else { 0 };
            let put = Put {
                exptime,
                ..Put::default()
            };
            let request = Request {
                hash: HASH_KEY.hash(key.as_bytes()),
                key: key.as_bytes(),
                op: Op::Put(put),
            };
            let clock = Clock {
                epoch_unix: 0,
                second: Second(1),
            };
            store.execute(clock, &[request], &mut |_, _: &Reply<'_>| {});
            if exptime == 0 {
                expected.insert(key.into_bytes());
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
}
