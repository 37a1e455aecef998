//! What a store does for readers of its published memory: checksums, and stags that follow their keys.

use std::sync::atomic::{Ordering, fence};

use herdwick_layout::chunk::{ChunkHeader, Seal, StoreHead, bury};
use herdwick_mem::crc32c;
use herdwick_request::{KeyHash, Request};

use crate::{
    Publication, SlabConfig, SlabError, Tagged,
    index::tag,
    metas::{Chunk, bit},
    shape::Shape,
    stags::Stags,
    store::Store,
};

impl Store {
    /// Creates a store whose memory others may READ.
    ///
    /// # Errors
    /// [`SlabError`].
    pub fn published(config: &SlabConfig) -> Result<(Self, Publication), SlabError> {
        let shape = Shape::of_published(config)?;
        let (stags, memory, publication) = Stags::make(&shape).map_err(shape.refused())?;
        let mut store = Self::over(config, &shape, memory)?;
        stags.show(StoreHead::default());
        store.stags = Some(stags);
        Ok((store, publication))
    }

    /// Returns how others READ the item of a key, if it is stored and the memory is published.
    pub fn tagged(&mut self, request: &Request<'_>) -> Option<Tagged> {
        self.stags.as_ref()?;
        let chunk = self.lookup(request).ok()?;
        Some(Tagged {
            stag: self.metas.get(chunk).stag,
            len: self.header(chunk).end(),
        })
    }

    /// Has readers count seconds by the host's clock, from so many nanoseconds on; 0: not.
    pub fn set_readers_clock(&mut self, clock: u64) {
        if let Some(stags) = &self.stags {
            stags.show_clock(clock);
        }
    }

    /// Notes a read that was made without the store: of an item whose key has this hash.
    pub(crate) fn note_read(&mut self, hash: KeyHash) {
        let list = self.index.list(hash);
        let chunk = {
            let mut items = self.index.items(&self.metas, list);
            // The key is not known: the first item with the tag is taken for it.
            items.find(|chunk| self.metas.get(*chunk).tag == tag(hash))
        };
        if let Some(chunk) = chunk.filter(|chunk| !self.gone(*chunk)) {
            self.count_use(chunk);
            let meta = self.metas.get_mut(chunk);
            (meta.accessed, meta.bits) = (self.now.0, meta.bits | bit::FETCHED);
        }
    }

    /// Has the stag of a chunk show it.
    pub(crate) fn bind(&self, chunk: Chunk) {
        if let Some(stags) = &self.stags {
            // What was stored in the chunk comes first.
            fence(Ordering::Release);
            stags.bind(
                self.metas.get(chunk).stag,
                stags.slabs + self.slabs.place(chunk).start,
            );
        }
    }

    /// Swaps the stags of two chunks; neither is bound.
    pub(crate) fn swap_stags(&mut self, one: Chunk, other: Chunk) {
        let stag = self.metas.get(one).stag;
        let theirs = std::mem::replace(&mut self.metas.get_mut(other).stag, stag);
        self.metas.get_mut(one).stag = theirs;
    }

    /// Computes the checksums of an item.
    pub(crate) fn seal(&mut self, chunk: Chunk) {
        if self.stags.is_none() {
            return;
        }
        let bytes = self.slabs.bytes_mut(chunk);
        let header = ChunkHeader::read(bytes);
        // Apart from the header's, so that a change of the header, as by a touch, does not read the
        // value.
        let value_sum = crc32c(0, &bytes[header.front()..header.end()]);
        self.seal_header(
            chunk,
            ChunkHeader {
                value_sum,
                ..header
            },
        );
    }

    /// Writes the header of an item, with its checksum if the memory is published.
    pub(crate) fn seal_header(&mut self, chunk: Chunk, header: ChunkHeader) {
        let meta = self.metas.get(chunk);
        let header = ChunkHeader {
            stale: meta.bits & bit::STALE != 0,
            ..header
        };
        let seal = Seal {
            stag: meta.stag,
            flushes: meta.flushes,
        };
        let bytes = self.slabs.bytes_mut(chunk);
        if self.stags.is_none() {
            return header.write(bytes);
        }
        header.seal(bytes, seal);
        // Whatever is stored next, as the place of a stag, comes after the item for a reader.
        fence(Ordering::Release);
    }

    /// Has no reader believe a chunk any more.
    pub(crate) fn bury(&mut self, chunk: Chunk) {
        if self.stags.is_some() {
            bury(self.slabs.bytes_mut(chunk));
            // The chunk is written again only after readers can find it dead.
            fence(Ordering::Release);
        }
    }
}
