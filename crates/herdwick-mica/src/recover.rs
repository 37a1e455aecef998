//! Recovery: a store in a file finds every intact item again after a restart or a
//! kill, and none that was deleted, replaced, flushed or expired.

use std::fs::File;

use herdwick_layout::{bucket::Offset, item::Found};
use herdwick_mem::Arena;
use herdwick_request::{KeyHash, Second};

use crate::{
    Store, StoreConfig, StoreError, StoreKind,
    items::Items,
    log::{Cursor, Log},
    segments::Book,
    shape::Shape,
    superblock::{Mark, Superblock},
};

/// Version of the log's layout; incremented when an older log can no longer be read.
const LOG_LAYOUT: u32 = 3;
/// As [`LOG_LAYOUT`], of segments.
const SEGMENTS_LAYOUT: u32 = 0x1_0002;

/// Returns the version of the layout that a kind of store has in a file. Another one cannot be read.
#[must_use]
pub fn layout(kind: StoreKind) -> u32 {
    match kind {
        StoreKind::Log => LOG_LAYOUT,
        StoreKind::Segments => SEGMENTS_LAYOUT,
    }
}

/// Alignment of the parts of a file.
const PAGE: u64 = 4096;
/// Versions are reserved in the superblock in blocks of this size; a restart may skip as many.
const VERSIONS: u64 = 1 << 20;
/// Number of items with buckets that are prefetched together.
const AHEAD: usize = 16;

/// The outcome of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Items that can be read again.
    pub items: u64,
    /// Bytes of log that were damaged; their items are lost.
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
        Ok(superblock_bytes(&shape)
            + book_bytes(&shape)
            + (shape.item_bytes() as u64).next_multiple_of(PAGE))
    }

    /// Opens a store with its items in `file` from `offset` on, a multiple of 4096. With `keep`, the
    /// items that a store of the same configuration has left there, however that ended, are
    /// recovered: every intact item except those that begin behind damage in the same 8 KiB (in
    /// segments, also where the words of a segment are damaged), and none that had been deleted, replaced or flushed, or had expired. The second result is `None`
    /// if nothing was recovered, because `keep` is off or the superblock is damaged.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn in_file(
        config: &StoreConfig,
        file: &File,
        offset: u64,
        keep: bool,
    ) -> Result<(Self, Option<Recovered>), StoreError> {
        let shape = Shape::of(config)?;
        let refused = shape.refused();
        let superblock = Superblock::in_file(file, offset, shape.log_bytes).map_err(&refused)?;
        let offset = offset + superblock_bytes(&shape);
        let bytes = Arena::in_file(file, offset + book_bytes(&shape), shape.item_bytes());
        let items = Items::new(bytes.map_err(&refused)?, true);
        let log = Log::over(shape.log_bytes, superblock);
        let mut store = Self::over(config, &shape, items, log)?;
        if shape.segments > 0 {
            let book = Book::in_file(file, offset, shape.segments, shape.segment_bytes);
            store.segments.book = book.map_err(&refused)?;
        }
        let recovered = if keep { store.recover() } else { None };
        if recovered.is_none() {
            store.begin();
        }
        Ok((store, recovered))
    }

    /// Initializes the superblock of an empty log.
    fn begin(&mut self) {
        self.log.superblock.clear();
        self.segments.book.clear();
        self.log.clear();
        self.log.commit();
        self.log.superblock.put(Mark::Versions, 0);
        self.log.superblock.put(Mark::Horizon, 0);
        self.note_flushes();
        self.note_second(self.now);
    }

    /// Recovers the items of the log; `None` if the superblock is damaged.
    fn recover(&mut self) -> Option<Recovered> {
        let superblock = &self.log.superblock;
        self.now = Second(u32::try_from(superblock.get(Mark::Second)?).ok()?);
        self.generation = u16::try_from(superblock.get(Mark::Generation)?).ok()?;
        let flush_at = u32::try_from(superblock.get(Mark::FlushAt)?).ok()?;
        self.flush_at = (flush_at > 0).then_some(Second(flush_at));
        self.promised = superblock.get(Mark::Versions)? * VERSIONS;
        self.sequence = self.promised;
        let damaged = if self.segmented() {
            let horizon = self.log.superblock.get(Mark::Horizon)?;
            self.segments.resume(horizon);
            self.rebuild_segments()
        } else {
            self.log.reopen()?;
            self.rebuild()
        };
        Some(Recovered {
            items: self.counters.items,
            damaged,
            without_slot: self.counters.index_evictions,
            second: self.now,
        })
    }

    /// Walks the log and adds an index entry for each live item. Returns the damaged bytes.
    fn rebuild(&mut self) -> u64 {
        let (mut damaged, mut cursor) = (0, Some(self.log.head()));
        let mut ahead = [(Offset::default(), KeyHash::default()); AHEAD];
        while let Some(from) = cursor {
            let (len, next) = self.look_ahead(from, &mut ahead, &mut damaged);
            for &(at, hash) in &ahead[..len] {
                self.enter(at, hash);
            }
            cursor = next;
        }
        damaged
    }

    /// Finds the next live items. Returns how many, and the cursor to continue from.
    fn look_ahead(
        &mut self,
        mut cursor: Cursor,
        ahead: &mut [(Offset, KeyHash); AHEAD],
        damaged: &mut u64,
    ) -> (usize, Option<Cursor>) {
        let mut len = 0;
        while len < AHEAD {
            let Some((at, past, found)) = self.log.mend(&mut self.items, cursor, damaged) else {
                return (len, None);
            };
            cursor = past;
            if matches!(found, Found::Item(_)) && !self.gone(at) {
                let hash = self.hash_key.hash(self.items.key(at));
                self.index.prefetch_first(hash);
                ahead[len] = (at, hash);
                len += 1;
            }
        }
        (len, Some(cursor))
    }

    fn enter(&mut self, at: Offset, hash: KeyHash) {
        let items = &self.items;
        let older = self
            .index
            .find(hash, |older| items.is(older, items.key(at)));
        self.counters.items += 1;
        self.counters.bytes += self.items.header(at).footprint() as u64;
        match older {
            // A kill between the copy to the young end and the release of the old place leaves
            // two of an item; damage may, too. The younger one counts.
            Some((place, older)) => {
                self.counters.items -= 1;
                self.counters.bytes -= self.items.header(older).footprint() as u64;
                self.items.bury(older);
                self.index.point(place, hash, at);
            }
            None => self.insert_recovered(hash, at),
        }
    }

    /// As [`Self::insert`]; no request waits for it, so that it evicts only where nothing else helps.
    pub(crate) fn insert_recovered(&mut self, hash: KeyHash, at: Offset) {
        self.index.spread(hash);
        self.insert(hash, at);
    }

    #[cold]
    pub(crate) fn promise_versions(&mut self) {
        self.promised += VERSIONS;
        let promised = self.promised / VERSIONS;
        self.log.superblock.put(Mark::Versions, promised);
    }

    /// Stores generation and pending flush in an order in which a kill in between leaves a flush
    /// both done and pending, never neither.
    pub(crate) fn note_flushes(&mut self) {
        let at = self.flush_at.map_or(0, |at| u64::from(at.0));
        self.log
            .superblock
            .put(Mark::Generation, self.generation.into());
        self.log.superblock.put(Mark::FlushAt, at);
    }

    #[cold]
    pub(crate) fn note_second(&mut self, now: Second) {
        self.log.superblock.put(Mark::Second, now.0.into());
    }
}

fn superblock_bytes(shape: &Shape) -> u64 {
    let bytes = Superblock::words(shape.log_bytes) * size_of::<u64>();
    (bytes as u64).next_multiple_of(PAGE)
}

fn book_bytes(shape: &Shape) -> u64 {
    let bytes = Book::words(shape.segments, shape.segment_bytes) * size_of::<u64>();
    (bytes as u64).next_multiple_of(PAGE)
}
