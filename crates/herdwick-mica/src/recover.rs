//! Recovery: a store with its items in a file finds every intact item again after a restart or a
//! kill, and none that was deleted, replaced, flushed or expired.

use std::fs::File;

use herdwick_mem::Arena;
use herdwick_request::Second;

use crate::{
    Store, StoreConfig, StoreError,
    index::Index,
    items::Items,
    segments::Book,
    shape::Shape,
    superblock::{MARKS, Mark, Superblock},
};

/// Version of the layout that a store has in a file. Another one cannot be read.
pub const LAYOUT: u32 = 0x1_0005;

/// Alignment of the parts of a file.
const PAGE: u64 = 4096;
/// Bytes of file for the superblock.
const SUPERBLOCK: u64 = PAGE;
const _: () = assert!(MARKS * size_of::<u64>() <= SUPERBLOCK as usize);
/// Versions are reserved in the superblock in blocks of this size; a restart may skip as many.
const VERSIONS: u64 = 1 << 20;
/// The outcome of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Items that can be read again.
    pub items: u64,
    /// Bytes that were damaged; their items are lost.
    pub damaged: u64,
    /// Intact items that are lost because the index had no slot for them.
    pub without_slot: u64,
    /// The last second in which the store was used.
    pub second: Second,
}

impl Store {
    /// Returns the bytes of file that [`Self::in_file`] takes, a multiple of 4096.
    ///
    /// # Errors
    /// [`StoreError::TooSmall`].
    pub fn file_bytes(config: &StoreConfig) -> Result<u64, StoreError> {
        let shape = Shape::of(config)?;
        Ok(SUPERBLOCK + book_bytes(&shape) + (shape.item_bytes() as u64).next_multiple_of(PAGE))
    }

    /// Opens a store with its items in `file` from `offset` on, a multiple of 4096. With `keep`, the
    /// items that a store of the same configuration has left there, however that ended, are
    /// recovered: every intact item except those that begin behind damage in the same 4 KiB, or in a
    /// segment whose words are damaged, and none that had been deleted, replaced or flushed, or had
    /// expired. The second result is `None` if nothing was recovered, because `keep` is off or the
    /// superblock is damaged.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn in_file(
        config: &StoreConfig,
        file: &File,
        offset: u64,
        keep: bool,
    ) -> Result<(Self, Option<Recovered>), StoreError> {
        Self::in_file_by(config, file, offset, keep, 1)
    }

    /// As [`Self::in_file`], with items recovered by so many threads, at least one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn in_file_by(
        config: &StoreConfig,
        file: &File,
        offset: u64,
        keep: bool,
        threads: usize,
    ) -> Result<(Self, Option<Recovered>), StoreError> {
        let shape = Shape::of(config)?;
        let refused = shape.refused();
        let superblock = Superblock::in_file(file, offset).map_err(&refused)?;
        let offset = offset + SUPERBLOCK;
        let bytes = Arena::in_file(file, offset + book_bytes(&shape), shape.item_bytes());
        let items = Items::new(bytes.map_err(&refused)?, true);
        let index = Index::new(shape.buckets).map_err(&refused)?;
        let mut store = Self::over(config, &shape, index, items, superblock);
        let book = Book::in_file(file, offset, shape.segments, shape.segment_bytes);
        store.segments.book = book.map_err(&refused)?;
        let recovered = keep.then(|| store.recover(threads.max(1))).flatten();
        if recovered.is_none() {
            store.begin();
        }
        Ok((store, recovered))
    }

    /// Initializes the superblock and the table of an empty store.
    fn begin(&mut self) {
        self.superblock.clear();
        self.segments.book.clear();
        self.superblock.put(Mark::Versions, 0);
        self.note_flushes();
        self.note_second(self.now);
    }

    /// Recovers the items of all segments; `None` if the superblock is damaged.
    fn recover(&mut self, threads: usize) -> Option<Recovered> {
        let superblock = &self.superblock;
        self.now = Second(u32::try_from(superblock.get(Mark::Second)?).ok()?);
        let flush_at = u32::try_from(superblock.get(Mark::FlushAt)?).ok()?;
        self.flush_at = (flush_at > 0).then_some(Second(flush_at));
        self.promised = superblock.get(Mark::Versions)? * VERSIONS;
        // Versions up to the bound may have been assigned, so none of them is assigned again.
        self.sequence = self.promised;
        let flushed = superblock.get(Mark::Flushed)?;
        // First: the walk passes over runs that are flushed.
        self.segments.resume(flushed);
        let damaged = self.rebuild_segments(threads);
        Some(Recovered {
            items: self.counters.items,
            damaged,
            without_slot: self.counters.index_evictions,
            second: self.now,
        })
    }

    #[cold]
    pub(crate) fn promise_versions(&mut self) {
        self.promised += VERSIONS;
        let promised = self.promised / VERSIONS;
        self.superblock.put(Mark::Versions, promised);
    }

    /// Stores what is flushed and the pending flush in an order in which a kill in between leaves a
    /// flush both done and pending, never neither.
    pub(crate) fn note_flushes(&mut self) {
        let at = self.flush_at.map_or(0, |at| u64::from(at.0));
        self.superblock.put(Mark::Flushed, self.segments.flushed());
        self.superblock.put(Mark::FlushAt, at);
        let flushed = self.segments.flushed();
        self.segments.readers.note_flushes(flushed, self.flush_at);
    }

    #[cold]
    pub(crate) fn note_second(&mut self, now: Second) {
        self.superblock.put(Mark::Second, now.0.into());
    }
}

fn book_bytes(shape: &Shape) -> u64 {
    let bytes = Book::words(shape.segments, shape.segment_bytes) * size_of::<u64>();
    (bytes as u64).next_multiple_of(PAGE)
}
