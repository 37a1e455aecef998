//! A store whose memory other processes map and read (`herdwick_layout::published`).

use std::io;

use herdwick_layout::{
    bucket::{Bucket, Offset},
    item::bit,
    published::Geometry,
};
use herdwick_mem::{Arena, Published, PublishedFile};
use herdwick_request::ReadReport;

use crate::{
    Store, StoreConfig, StoreError, index::Index, items::Items, segments::Readers, shape::Shape,
    superblock::Superblock,
};

/// Bytes of the words before the index, and of what is left of pages, at most ...
const HEAD: usize = 4 * 4096;
/// ... and in so many bytes of memory one more, for the word of each segment.
const SEGMENT_WORDS: usize = 512;

impl Store {
    /// Creates a store in published memory, and the file that readers map. The memory is allocated at
    /// once. Items have checksums; [`Self::unused_max`] is 0, because pages of a sealed file do not
    /// return to the system.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn published(config: &StoreConfig) -> Result<(Self, Published), StoreError> {
        let head = Self::readers_bytes(config.memory_bytes);
        let rest = StoreConfig {
            memory_bytes: config.memory_bytes.saturating_sub(head),
            ..*config
        };
        let shape = Shape::of(&rest)?;
        let geometry = Geometry {
            buckets: shape.buckets,
            segments: shape.segments,
            segment_bytes: shape.segment_bytes,
        };
        let refused = shape.refused();
        let (buckets, items, readers, published) = make(&geometry).map_err(&refused)?;
        let superblock = Superblock::new().map_err(&refused)?;
        let items = Items::new(items, true);
        let mut store = Self::over(config, &shape, Index::over(buckets), items, superblock);
        store.segments.readers = readers;
        Ok((store, published))
    }

    /// Returns how many of `memory_bytes` of published memory are for readers alone, at most.
    #[must_use]
    pub fn readers_bytes(memory_bytes: usize) -> usize {
        HEAD + memory_bytes / SEGMENT_WORDS
    }

    /// Has readers tell the store's seconds by this host's monotonic clock, of which second 0 began at so
    /// many nanoseconds; with 0 they tell none, and read no item that has a deadline.
    pub fn set_readers_clock(&mut self, clock: u64) {
        self.segments.readers.set_clock(clock);
    }
}

impl Store {
    /// Counts a use of each item that was read in this memory. Hashes alone name them: that of another item
    /// with the same tag in the same bucket counts a use of that.
    pub(crate) fn note_uses(&mut self, report: &ReadReport<'_>) {
        for hash in report.hashes() {
            self.index.prefetch_first(hash);
        }
        for hash in report.hashes() {
            if let Some((_, at)) = self.index.guess_first(hash, self.index.first(hash)) {
                self.items.prefetch(at);
            }
        }
        for hash in report.hashes() {
            // The key is not known, so the first entry with the tag is taken for it.
            let place = self.index.find(hash, |_| true);
            if let Some((_, at)) = place.filter(|(_, at)| !self.gone(*at)) {
                self.use_item(at);
            }
        }
    }

    /// Marks an item as read now.
    fn use_item(&mut self, at: Offset) {
        let before = self.items.header(at);
        let bits = self.count_use(at, before.bits | bit::FETCHED);
        // Stores only what changes, so that a hot item's cache line stays clean.
        if before.last_access(self.now) != self.now {
            self.items.set_last_access(at, self.now);
        }
        if bits != before.bits {
            self.items.set_bits(at, bits);
        }
    }
}

type Memory = (Arena<Bucket>, Arena<u8>, Readers, Published);

fn make(geometry: &Geometry) -> io::Result<Memory> {
    let file = PublishedFile::new(geometry.bytes())?;
    let words = file.words(geometry.head_bytes())?;
    let buckets = file.arena(geometry.index(), geometry.buckets)?;
    let items = file.arena(geometry.items(), geometry.segments * geometry.segment_bytes)?;
    geometry.describe(&words);
    Ok((buckets, items, Readers::new(words), file.seal()?))
}
