//! The index: lists of the items whose keys have the same bits of their hash.

use herdwick_mem::{Arena, prefetch_read};
use herdwick_request::KeyHash;

use crate::metas::{Chunk, Metas};

/// The heads of the lists, each a chunk's number plus 1; 0 for an empty list.
pub(crate) struct Index {
    heads: Arena<u32>,
}

/// Returns what an item's meta has of the hash of its key.
#[inline]
pub(crate) fn tag(hash: KeyHash) -> u32 {
    hash.0 as u32
}

impl Index {
    pub(crate) fn new(lists: usize) -> std::io::Result<Self> {
        Ok(Self {
            heads: Arena::zeroed(lists)?,
        })
    }

    pub(crate) fn lists(&self) -> usize {
        self.heads.len()
    }

    #[inline]
    pub(crate) fn list(&self, hash: KeyHash) -> usize {
        // Without the high 16 bits, which select the partition: many of the keys here have the
        // same.
        let bits = u64::from((hash.0 >> 16) as u32);
        // Multiply-shift: any number of lists, without a division.
        ((bits * self.heads.len() as u64) >> 32) as usize
    }

    #[inline]
    pub(crate) fn prefetch(&self, hash: KeyHash) {
        prefetch_read(&self.heads, self.list(hash));
    }

    /// Returns the first item of a list.
    #[inline]
    pub(crate) fn first(&self, list: usize) -> Chunk {
        // 0, an empty list, becomes `Chunk::NONE`: zeroed memory is an empty index.
        Chunk(self.heads[list].wrapping_sub(1))
    }

    fn set_first(&mut self, list: usize, chunk: Chunk) {
        self.heads[list] = chunk.0.wrapping_add(1);
    }

    /// Returns the items of a list, the latest first.
    pub(crate) fn items<'a>(
        &self,
        metas: &'a Metas,
        list: usize,
    ) -> impl Iterator<Item = Chunk> + use<'a> {
        let first = self.first(list).some();
        std::iter::successors(first, |chunk| metas.get(*chunk).chain.some())
    }

    pub(crate) fn insert(&mut self, metas: &mut Metas, hash: KeyHash, chunk: Chunk) {
        let list = self.list(hash);
        let meta = metas.get_mut(chunk);
        (meta.chain, meta.tag) = (self.first(list), tag(hash));
        self.set_first(list, chunk);
    }

    /// Puts `by` where `chunk` is in the list of its hash; [`Chunk::NONE`]: removes it.
    pub(crate) fn replace(&mut self, metas: &mut Metas, hash: KeyHash, chunk: Chunk, by: Chunk) {
        let list = self.list(hash);
        let next = metas.get(chunk).chain;
        let put = match by.some() {
            Some(by) => {
                let meta = metas.get_mut(by);
                (meta.chain, meta.tag) = (next, tag(hash));
                by
            }
            None => next,
        };
        // Lists are linked one way, so the one before is searched for: they are short, a list for
        // each 128 bytes of memory.
        let before = self
            .items(metas, list)
            .find(|before| metas.get(*before).chain == chunk);
        match before {
            Some(before) => metas.get_mut(before).chain = put,
            None => self.set_first(list, put),
        }
    }
}
