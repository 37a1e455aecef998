//! The two memory accesses of a request as a caller's pipeline prefetches them; a batch prefetches its own.

use herdwick_request::{KeyHash, Prefetch};

use crate::Store;

impl Prefetch for Store {
    #[inline]
    fn prefetch_bucket(&self, hash: KeyHash) {
        self.index.prefetch_first(hash);
    }

    #[inline]
    fn prefetch_item(&self, hash: KeyHash) {
        let first = self.index.first(hash);
        let guess = self.index.guess_first(hash, first);
        // Few items are in their other bucket, which is not waited for beforehand.
        let guess = guess.or_else(|| {
            let overflowed = self.index.prefetch_other(hash, first);
            overflowed.then(|| self.index.guess_other(hash, first))?
        });
        if let Some((_, at)) = guess {
            self.items.prefetch(at);
        }
    }
}
