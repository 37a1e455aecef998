//! A store in slabs as a reader has mapped it: chunks are found by their stags. The words may change between any
//! two loads.

use std::sync::atomic::{Ordering, fence};

use herdwick_mem::{WORD, Words};
use herdwick_request::{Deadline, Second};

use crate::{
    chunk::{ChunkHeader, HEAD_STAG, HEADER, Mistrust, SUM, StoreHead, judge},
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
        // The word is the store's, but the memory may be another's.
        let clock = head.checked_add(1)?;
        // 0 in memory that no store has filled.
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
        // The places lie before the head.
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
        // Words outside would panic.
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
        let mut sum = None;
        // Bounded: a chunk that is rewritten all the time must not hold a reader.
        for _ in 0..ATTEMPTS {
            read = self.read_once(stag, key, most, &now, copy);
            // A chunk whose checksum stays is not being written: it is buried, or of another stag.
            let before = std::mem::replace(&mut sum, copy.first_chunk::<SUM>().copied());
            if read != Err(Mistrust::Torn) || before.is_some() && before == sum {
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
        // The place first. If the chunk gets another stag meanwhile, its checksum is of that one.
        let first = self.chunk(stag).ok_or(Mistrust::OtherKey)?;
        let words: [u64; HEADER / WORD] = self.words.copy_out(first);
        let header = ChunkHeader::read(words.map(u64::to_le_bytes).as_flattened());
        if usize::from(header.key_len) != key.len() {
            return Err(Mistrust::OtherKey);
        }
        let len = header.end();
        // The length may be torn: it bounds the copy, before anything of it is checked.
        if len > most {
            return Err(Mistrust::Longer(len));
        }
        if first + len.div_ceil(WORD) > self.words.count() {
            return Err(Mistrust::Torn);
        }
        copy_bytes(&self.words, first, len, copy);
        // The flushes are loaded after the item.
        fence(Ordering::Acquire);
        // After the fence: a flush that was done before the read began is seen here.
        let head = StoreHead::of(self.words.load(self.head));
        let timed = ChunkHeader::read(copy).deadline != Deadline::NEVER || head.flush_at > 0;
        // The header was loaded twice. Between that another item may have come under the same stag: of a shorter one,
        // what is behind it is no part, and of a longer one, some is missing.
        match judge(copy, head, stag, key, if timed { now() } else { None }) {
            Ok(header) if header.end() != len => Err(Mistrust::Torn),
            Err(Mistrust::Longer(_)) => Err(Mistrust::Torn),
            judged => judged,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use herdwick_mem::crc32c;

    use super::*;
    use crate::chunk::Seal;

    const KEY: &[u8] = b"key";
    const STAG: u32 = 1;
    /// The first words of the head, and of the chunk.
    const HEAD: usize = 2;
    const CHUNK: usize = 8;

    /// Memory in which a chunk has another item from a load of one of its words on.
    struct Changing {
        words: RefCell<Vec<u64>>,
        next: Vec<u64>,
        /// Loads of the chunk's words until then.
        left: Cell<usize>,
    }

    impl Words for Changing {
        fn count(&self) -> usize {
            self.words.borrow().len()
        }

        fn load(&self, index: usize) -> u64 {
            if index >= CHUNK {
                let left = self.left.get();
                if left == 0 {
                    self.words.borrow_mut()[CHUNK..].copy_from_slice(&self.next);
                }
                self.left.set(left.wrapping_sub(1));
            }
            self.words.borrow()[index]
        }

        fn load_acquire(&self, index: usize) -> u64 {
            self.load(index)
        }

        fn store(&self, index: usize, value: u64) {
            self.words.borrow_mut()[index] = value;
        }

        fn store_release(&self, index: usize, value: u64) {
            self.store(index, value);
        }
    }

    fn item(value: &[u8]) -> Vec<u64> {
        let mut chunk = vec![0xaa; 256];
        let header = ChunkHeader {
            key_len: KEY.len() as u8,
            value_len: value.len() as u32,
            value_sum: crc32c(0, value),
            ..ChunkHeader::default()
        };
        chunk[HEADER..header.front()].copy_from_slice(KEY);
        chunk[header.front()..header.end()].copy_from_slice(value);
        let seal = Seal {
            stag: STAG,
            flushes: 0,
        };
        header.seal(&mut chunk, seal);
        let words = chunk.as_chunks().0.iter();
        words.map(|word| u64::from_le_bytes(*word)).collect()
    }

    fn view(first: &[u8], next: &[u8], left: usize) -> ChunkView<Changing> {
        let places = [HEAD, CHUNK].map(|word| (word * WORD) as u64);
        let mut words = [&places[..], &[0; CHUNK - HEAD]].concat();
        words.extend(item(first));
        let (words, next, left) = (RefCell::new(words), item(next), Cell::new(left));
        ChunkView::open(Changing { words, next, left }).unwrap()
    }

    /// The item is replaced by one of another length, whole, between any two loads.
    #[test]
    fn what_is_read_is_one_of_the_items_whole() {
        let (long, short) = ([7; 100], [9; 10]);
        for (first, next) in [(&long[..], &short[..]), (&short, &long), (&long, &long)] {
            for left in 0..100 {
                let (view, mut copy) = (view(first, next, left), Vec::new());
                let header = view.read(STAG, KEY, 1000, || None, &mut copy).unwrap();
                let value = &copy[header.front()..];
                assert!(
                    value == first || value == next,
                    "{left}: {} bytes",
                    value.len()
                );
            }
        }
    }

    #[test]
    fn stags_places_and_lengths_that_are_wrong_are_no_item() {
        let mut copy = Vec::new();
        let read = |view: &ChunkView<Changing>, stag, key: &[u8], copy: &mut Vec<u8>| {
            view.read(stag, key, 100, || None, copy).unwrap_err()
        };
        let wrong = view(b"value", b"value", usize::MAX);
        assert_eq!(read(&wrong, STAG, b"yek", &mut copy), Mistrust::OtherKey);
        assert_eq!(read(&wrong, 2, KEY, &mut copy), Mistrust::OtherKey);
        assert_eq!(read(&wrong, u32::MAX, KEY, &mut copy), Mistrust::OtherKey);
        for place in [u64::MAX, 40 * WORD as u64 - 8, 1 << 40] {
            wrong.words.store(STAG as usize, place);
            assert_eq!(read(&wrong, STAG, KEY, &mut copy), Mistrust::OtherKey);
        }
        let large = view(&[1; 101], &[1; 101], usize::MAX);
        assert_eq!(read(&large, STAG, KEY, &mut copy), Mistrust::Longer(136));
        for head in [0, u64::MAX, 40 * WORD as u64] {
            let words = Changing {
                words: RefCell::new(vec![head; 40]),
                next: Vec::new(),
                left: Cell::new(usize::MAX),
            };
            assert!(ChunkView::open(words).is_none(), "{head}");
        }
    }
}
