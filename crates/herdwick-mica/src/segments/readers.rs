//! What readers in other processes learn of segments and flushes: words of published memory.

use std::ops::Range;

use herdwick_layout::published::Word;
use herdwick_mem::{Span, Words};
use herdwick_request::Second;

/// The words that change of a store in published memory; a store that no one else reads has none.
#[derive(Default)]
pub(crate) struct Readers {
    words: Option<Span>,
}

impl Readers {
    /// Publishes to `words`, the first of the memory.
    pub(crate) fn new(words: Span) -> Self {
        Self { words: Some(words) }
    }

    /// Returns whether there may be readers.
    pub(super) fn may_be(&self) -> bool {
        self.words.is_some()
    }

    /// Enters `segments` as parts of the run with this sequence number.
    pub(super) fn enter(&self, segments: Range<usize>, sequence: u64) {
        self.put(segments, sequence + 1);
    }

    /// Enters `segments` as free ones, before their bytes are written again.
    pub(super) fn leave(&self, segments: Range<usize>) {
        self.put(segments, 0);
    }

    #[inline]
    fn put(&self, segments: Range<usize>, value: u64) {
        if let Some(words) = &self.words {
            for number in segments {
                // Pairs with the load (acquire) of the word that a reader makes before it copies
                // the item: one that sees a new number sees the items of the run before it marked
                // dead.
                words.store_release(Word::Runs as usize + number, value);
            }
        }
    }

    /// Stores which runs are flushed and when the next flush is due, in an order in which a reader finds
    /// a flush due, done, or both.
    pub(crate) fn note_flushes(&self, flushed: u64, next: Option<Second>) {
        if let Some(words) = &self.words {
            // A reader loads them in the opposite order, `FlushAt` with acquire.
            words.store_release(Word::Flushed as usize, flushed);
            let at = next.map_or(0, |second| second.0);
            words.store_release(Word::FlushAt as usize, at.into());
        }
    }

    /// Stores by what clock readers tell the second.
    pub(crate) fn set_clock(&self, clock: u64) {
        if let Some(words) = &self.words {
            words.store_release(Word::Clock as usize, clock);
        }
    }
}
