//! Published memory: each chunk has a stag, the number of a window onto it, so that others READ an item under a
//! stag that is its key's for as long as the key is stored.
//!
//! The memory begins with a word for each stag, the place of its chunk; then comes the head, which stag 0
//! shows, with the clock of its readers, and then the slabs. An item is complete, with its checksum, before its stag is bound to it; and one
//! that is replaced, removed or moved away is buried before its chunk has another use.

use std::io;

use herdwick_layout::chunk::{HEAD_STAG, StoreHead};
use herdwick_mem::{Arena, Published, PublishedFile, Span, WORD, Words};

use crate::shape::{PAGE, PLACE, Shape};

/// What others need to READ a store.
#[derive(Debug)]
pub struct Publication {
    /// The memory, which no one else writes.
    pub memory: Published,
    /// The number of stags. The places of what each shows are the first words of the memory.
    pub stags: u32,
    /// What a stag shows at most: so many bytes, as a power of two. They are in the memory, whatever the
    /// chunk.
    pub shift: u32,
}

/// An item as others may READ it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// Its stag.
    pub stag: u32,
    /// Bytes of header, key and value.
    pub len: usize,
}

/// The stags of a store.
pub(crate) struct Stags {
    /// The places, and the head behind them.
    words: Span,
    /// Where the head and the slabs begin, in bytes.
    head: usize,
    pub(crate) slabs: usize,
    /// Stags of slabs that were emptied.
    free: Vec<u32>,
    next: u32,
}

impl Stags {
    /// Makes the memory: the stags, the slabs, and what is published.
    pub(crate) fn make(shape: &Shape) -> io::Result<(Self, Arena<u8>, Publication)> {
        // Stag 0 is that of the head.
        let stags = (shape.slabs << shape.shift()) + 1;
        let head = (stags * PLACE).next_multiple_of(PAGE);
        let (slabs, bytes) = (head + PAGE, shape.slabs * shape.slab_bytes);
        let shift = shape.slab_bytes.next_power_of_two().ilog2();
        // Behind the last chunk is as much as a stag shows, so that no READ leaves the memory.
        let file = PublishedFile::new(slabs + bytes + (1 << shift))?;
        let words = file.words(slabs)?;
        // There are more slabs than the budget has room for where what is kept of small chunks takes much of it.
        let memory = file.arena_on_demand(slabs, bytes)?;
        words.store_release(HEAD_STAG as usize, head as u64);
        let publication = Publication {
            memory: file.seal()?,
            stags: stags as u32,
            shift,
        };
        let stags = Self {
            words,
            head,
            slabs,
            free: Vec::new(),
            next: HEAD_STAG + 1,
        };
        Ok((stags, memory, publication))
    }

    pub(crate) fn bind(&self, stag: u32, place: usize) {
        self.words.store_release(stag as usize, place as u64);
    }

    /// Shows the flushes.
    pub(crate) fn show(&self, head: StoreHead) {
        self.words.store_release(self.head / WORD, head.word());
    }

    /// Shows the host's clock at second 0.
    pub(crate) fn show_clock(&self, clock: u64) {
        self.words.store_release(self.head / WORD + 1, clock);
    }

    /// Takes a stag for a chunk of a slab that is being cut.
    pub(crate) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// Gives back the stag of a chunk whose slab is no longer cut. It shows the head, which is no item.
    pub(crate) fn give_back(&mut self, stag: u32) {
        // A client may know the stag for long: what it READs there has to be no item.
        self.bind(stag, self.head);
        self.free.push(stag);
    }
}
