//! What is kept of each chunk besides the item in it: its state, its neighbours in a list, its use.

use std::{io, ops::Range};

use herdwick_mem::Arena;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a [`Meta`].
pub(crate) const META: usize = size_of::<Meta>();
/// Most uses that are counted of an item.
pub(crate) const USES_MAX: u8 = 3;

/// Names a chunk: the number of its slab, and of the chunk there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes)]
#[repr(transparent)]
pub(crate) struct Chunk(pub(crate) u32);

impl Chunk {
    /// No chunk.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// Returns the chunk, unless it is [`Self::NONE`].
    #[inline]
    pub(crate) fn some(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }
}

/// What is done with a chunk: [`Meta::state`].
pub(crate) mod state {
    /// Its slab is not cut, or is being emptied.
    pub(crate) const NONE: u8 = 0;
    /// In the list of free chunks of its class.
    pub(crate) const FREE: u8 = 1;
    /// It has an item.
    pub(crate) const ITEM: u8 = 2;
    /// A value is arriving in it.
    pub(crate) const STAGED: u8 = 3;
}

/// The bits of [`Meta::bits`].
pub(crate) mod bit {
    /// The item was read.
    pub(crate) const FETCHED: u8 = 1;
    /// It is stale.
    pub(crate) const STALE: u8 = 2;
    /// A reader has won the right to store it anew.
    pub(crate) const WIN_SENT: u8 = 4;
}

/// What is kept of a chunk.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes)]
#[repr(C)]
pub(crate) struct Meta {
    next: Chunk,
    prev: Chunk,
    /// The next item of the same list of the index.
    pub(crate) chain: Chunk,
    /// Bits of the hash of the key.
    pub(crate) tag: u32,
    /// The second of the last access.
    pub(crate) accessed: u32,
    /// The number of flushes before it was stored.
    pub(crate) flushes: u32,
    /// The number of the window onto it, if the memory is published.
    pub(crate) stag: u32,
    pub(crate) state: u8,
    pub(crate) bits: u8,
    /// Uses since it was stored, up to [`USES_MAX`]; less with each turn past the end of the list.
    pub(crate) uses: u8,
    // In place of padding, which `IntoBytes` does not allow.
    zero: u8,
}

/// The metas of all chunks.
pub(crate) struct Metas(pub(crate) Arena<Meta>);

/// A list of chunks: the free ones of a class, or those with items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    pub(crate) head: Chunk,
    pub(crate) tail: Chunk,
    pub(crate) len: usize,
}

impl Default for List {
    fn default() -> Self {
        Self {
            head: Chunk::NONE,
            tail: Chunk::NONE,
            len: 0,
        }
    }
}

impl Metas {
    #[inline]
    pub(crate) fn get(&self, chunk: Chunk) -> &Meta {
        &self.0[chunk.0 as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, chunk: Chunk) -> &mut Meta {
        &mut self.0[chunk.0 as usize]
    }

    /// Gives the whole pages of these chunks back to the system: they are in no list, and their slab is not
    /// cut.
    pub(crate) fn give_back(&mut self, chunks: Range<usize>) -> io::Result<()> {
        self.0.give_back(chunks)
    }

    /// Returns the chunk before this one, towards the head.
    pub(crate) fn before(&self, chunk: Chunk) -> Option<Chunk> {
        self.get(chunk).prev.some()
    }
}

impl List {
    /// Adds a chunk at the head.
    #[inline]
    pub(crate) fn push(&mut self, metas: &mut Metas, chunk: Chunk) {
        let meta = metas.get_mut(chunk);
        (meta.prev, meta.next) = (Chunk::NONE, self.head);
        match self.head.some() {
            Some(head) => metas.get_mut(head).prev = chunk,
            None => self.tail = chunk,
        }
        self.head = chunk;
        self.len += 1;
    }

    /// Adds a chunk behind `before`, or at the head.
    pub(crate) fn insert(&mut self, metas: &mut Metas, before: Option<Chunk>, chunk: Chunk) {
        let Some(before) = before else {
            return self.push(metas, chunk);
        };
        let next = metas.get(before).next;
        let meta = metas.get_mut(chunk);
        (meta.prev, meta.next) = (before, next);
        metas.get_mut(before).next = chunk;
        match next.some() {
            Some(next) => metas.get_mut(next).prev = chunk,
            None => self.tail = chunk,
        }
        self.len += 1;
    }

    /// Removes a chunk that is in the list.
    #[inline]
    pub(crate) fn remove(&mut self, metas: &mut Metas, chunk: Chunk) {
        let Meta { prev, next, .. } = *metas.get(chunk);
        match prev.some() {
            Some(prev) => metas.get_mut(prev).next = next,
            None => self.head = next,
        }
        match next.some() {
            Some(next) => metas.get_mut(next).prev = prev,
            None => self.tail = prev,
        }
        self.len -= 1;
    }

    /// Removes the chunk at the head.
    #[inline]
    pub(crate) fn pop(&mut self, metas: &mut Metas) -> Option<Chunk> {
        let head = self.head.some()?;
        self.remove(metas, head);
        Some(head)
    }

    /// Moves a chunk of the list to the head.
    #[inline]
    pub(crate) fn renew(&mut self, metas: &mut Metas, chunk: Chunk) {
        self.remove(metas, chunk);
        self.push(metas, chunk);
    }
}
