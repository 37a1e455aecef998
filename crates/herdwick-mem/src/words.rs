//! The words of memory that others change, as a trait: of a span, and of the models of the ring and of parking.

/// Bytes in a word, the only unit of access to shared memory.
pub const WORD: usize = 8;
/// Bytes in a cache line.
pub const LINE: usize = 64;

/// Words that another thread or process may change at any instant.
///
/// The ring and parking protocols are generic over this trait, so that loom explores the same code
/// that runs on a [`Span`](crate::Span).
pub trait Words {
    /// Returns the number of words.
    fn count(&self) -> usize;
    /// Loads word `index` (relaxed).
    fn load(&self, index: usize) -> u64;
    /// Loads word `index` (acquire): what preceded the releasing store is visible afterwards.
    fn load_acquire(&self, index: usize) -> u64;
    /// Stores word `index` (relaxed).
    fn store(&self, index: usize, value: u64);
    /// Stores word `index` (release): after all earlier stores.
    fn store_release(&self, index: usize, value: u64);

    /// Prefetches the cache line of word `index`, where that is possible.
    #[inline]
    fn prefetch(&self, index: usize) {
        let _ = index;
    }
    /// Copies `N` words out, starting at word `first` (relaxed).
    #[inline]
    fn copy_out<const N: usize>(&self, first: usize) -> [u64; N] {
        std::array::from_fn(|i| self.load(first + i))
    }
    /// Loads the eighth word of the line at word `first` (acquire), and if `counts` accepts it, returns it behind
    /// copies of the seven before it.
    #[inline]
    fn line_if(
        &self,
        first: usize,
        counts: impl FnOnce(u64) -> bool,
    ) -> Option<([u64; LINE / WORD - 1], u64)> {
        let last = self.load_acquire(first + LINE / WORD - 1);
        // After the acquire, so that the copies are at least as new as the last word.
        counts(last).then(|| (self.copy_out(first), last))
    }
    /// Stores `words` from word `first` on (relaxed).
    #[inline]
    fn copy_in(&self, first: usize, words: &[u64]) {
        for (i, word) in words.iter().enumerate() {
            self.store(first + i, *word);
        }
    }
    /// Stores `words`, less than a line, from word `first` on, and after them (release) `last` as
    /// the eighth word of the line.
    #[inline]
    fn publish_line(&self, first: usize, words: &[u64], last: u64) {
        debug_assert!(words.len() < LINE / WORD);
        self.copy_in(first, words);
        self.store_release(first + LINE / WORD - 1, last);
    }
}
