//! A store in slabs as a reader has mapped it: chunks are found by their stags. The words may change between any
//! two loads.

use std::sync::atomic::{Ordering, fence};

use herdwick_mem::{WORD, Words};
use herdwick_request::{Deadline, Second};

use crate::{
    chunk::{ChunkHeader, HEAD_STAG, HEADER, Mistrust, StoreHead, judge},
    published::copy_bytes,
};

/// Copies of a chunk that is being written, before the store is asked.
const ATTEMPTS: usize = 8;

/// A reader's view of a store in slabs.
///
/// What is returned as a hit is never torn, another key's, deleted, replaced, expired or flushed before the read
/// began ([`judge`]): the place of the stag is loaded first, then the chunk is copied, and the head is loaded at
/// last.
#[derive(Clone, Debug)]
pub struct ChunkView<W> {
    words: W,
    /// The first word of the head, behind the places of all stags.
    head: usize,
}

impl<W: Words> ChunkView<W> {
    /// Returns the view of a store; `None` if the words cannot be those of one.
    pub fn open(words: W) -> Option<Self> {
        let head = words.load_acquire(HEAD_STAG as usize);
        let head = usize::try_from(head).ok()? / WORD;
        let clock = head.checked_add(1)?;
        (head > 0 && clock < words.count()).then_some(Self { words, head })
    }

    /// Returns the monotonic clock in nanoseconds at which second 0 of the store began, if it is known to
    /// readers.
    pub fn clock(&self) -> Option<u64> {
        let clock = self.words.load(self.head + 1);
        (clock > 0).then_some(clock)
    }

    /// Returns the word of a stag's place, if there is such a stag.
    #[inline]
    fn place(&self, stag: u32) -> Option<usize> {
        let stag = stag as usize;
        (stag < self.head).then_some(stag)
    }

    /// Prefetches the place of a stag.
    #[inline]
    pub fn prefetch_place(&self, stag: u32) {
        if let Some(place) = self.place(stag) {
            self.words.prefetch(place);
        }
    }

    /// Prefetches what a stag shows.
    #[inline]
    pub fn prefetch(&self, stag: u32) {
        if let Some(first) = self.chunk(stag) {
            self.words.prefetch(first);
        }
    }

    /// Returns the first word of the chunk that a stag shows.
    #[inline]
    fn chunk(&self, stag: u32) -> Option<usize> {
        let at = self.words.load_acquire(self.place(stag)?);
        let first = usize::try_from(at).ok()? / WORD;
        let end = first.checked_add(HEADER / WORD)?;
        (end <= self.words.count()).then_some(first)
    }

    /// Copies the item of `key` under `stag` to `copy`, if it has at most `most` bytes in all, and judges it. `now` is
    /// asked once the copy is made, and only where there is a deadline or a flush is due.
    ///
    /// # Errors
    /// [`Mistrust`].
    #[inline]
    pub fn read(
        &self,
        stag: u32,
        key: &[u8],
        most: usize,
        now: impl Fn() -> Option<Second>,
        copy: &mut Vec<u8>,
    ) -> Result<ChunkHeader, Mistrust> {
        let mut read = Err(Mistrust::Torn);
        for _ in 0..ATTEMPTS {
            read = self.read_once(stag, key, most, &now, copy);
            if read != Err(Mistrust::Torn) {
                break;
            }
        }
        read
    }

    #[inline]
    fn read_once(
        &self,
        stag: u32,
        key: &[u8],
        most: usize,
        now: &impl Fn() -> Option<Second>,
        copy: &mut Vec<u8>,
    ) -> Result<ChunkHeader, Mistrust> {
        let first = self.chunk(stag).ok_or(Mistrust::OtherKey)?;
        let words: [u64; HEADER / WORD] = self.words.copy_out(first);
        let header = ChunkHeader::read(words.map(u64::to_le_bytes).as_flattened());
        if usize::from(header.key_len) != key.len() {
            return Err(Mistrust::OtherKey);
        }
        let len = header.end();
        if len > most {
            return Err(Mistrust::Longer(len));
        }
        if first + len.div_ceil(WORD) > self.words.count() {
            return Err(Mistrust::Torn);
        }
        copy_bytes(&self.words, first, len, copy);
        // The flushes are loaded after the item.
        fence(Ordering::Acquire);
        let head = StoreHead::of(self.words.load(self.head));
        let timed = ChunkHeader::read(copy).deadline != Deadline::NEVER || head.flush_at > 0;
        judge(copy, head, stag, key, if timed { now() } else { None })
    }
}
