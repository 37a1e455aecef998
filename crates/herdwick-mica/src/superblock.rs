//! The superblock: the words of a store in a file that are found again after a kill at any instant,
//! besides those of its segments.

use std::{
    fs::File,
    io,
    sync::atomic::{Ordering, compiler_fence},
};

use herdwick_mem::Arena;

/// The state of a store besides its items and segments, one word each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// An upper bound of the versions assigned, in units of `VERSIONS`.
    Versions,
    /// The second of the pending flush; 0 for none.
    FlushAt,
    /// The second of the last batch.
    Second,
    /// The number of segments opened before the last flush: their items are flushed.
    Flushed,
}

/// Words of marks: one cache line.
pub(crate) const MARKS: usize = 8;
const _: () = assert!((Mark::Flushed as usize) < MARKS);

/// Check bits of a word.
const CHECK_BITS: u32 = 20;

/// The words of a store that outlive the process together with its items.
///
/// Each word carries its own check and is stored whole: a reader finds the value that was put, or
/// that the word is damaged. The stores of a killed process stay in the page cache, in program
/// order, so a compiler fence is enough to order them.
pub(crate) struct Superblock {
    words: Arena<u64>,
    /// Called before and after each mark is put, the instants at which a kill is most critical.
    #[cfg(test)]
    pub(crate) witness: Option<Box<dyn FnMut() + Send>>,
}

impl Superblock {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self::over(Arena::zeroed(MARKS)?))
    }

    pub(crate) fn in_file(file: &File, offset: u64) -> io::Result<Self> {
        Ok(Self::over(Arena::in_file(file, offset, MARKS)?))
    }

    fn over(words: Arena<u64>) -> Self {
        Self {
            words,
            #[cfg(test)]
            witness: None,
        }
    }

    /// Clears every word.
    pub(crate) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Stores a mark after every earlier store to the items, and before every later one.
    #[inline]
    pub(crate) fn put(&mut self, mark: Mark, value: u64) {
        compiler_fence(Ordering::Release);
        #[cfg(test)]
        self.testify();
        self.words[mark as usize] = checked(mark as usize, value);
        compiler_fence(Ordering::Release);
        #[cfg(test)]
        self.testify();
    }

    #[cfg(test)]
    fn testify(&mut self) {
        if let Some(witness) = &mut self.witness {
            witness();
        }
    }

    /// Returns the value of a mark; `None` if it is damaged or was never put.
    pub(crate) fn get(&self, mark: Mark) -> Option<u64> {
        self.read(mark as usize)
    }

    fn read(&self, place: usize) -> Option<u64> {
        unchecked(place, *self.words.get(place)?)
    }
}

/// Decodes a word of [`checked`]; `None` if it is damaged.
pub(crate) fn unchecked(place: usize, word: u64) -> Option<u64> {
    let value = word >> CHECK_BITS;
    (word == checked(place, value)).then_some(value)
}

/// Encodes a value below 2^44 with its check. The check depends on the word's place, so that a word
/// copied elsewhere is damaged; its last bit is 1, so that no valid word is 0.
#[inline]
pub(crate) fn checked(place: usize, value: u64) -> u64 {
    debug_assert!(value >> (u64::BITS - CHECK_BITS) == 0);
    let mixed = (value ^ (place as u64) << 44).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    value << CHECK_BITS | mixed >> (u64::BITS - CHECK_BITS) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_superblock_word_reads_as_none() {
        let mut superblock = Superblock::new().unwrap();
        assert_eq!(superblock.get(Mark::Second), None, "nothing was put there");
        for value in [0, 1, 77, (1 << 44) - 1] {
            superblock.put(Mark::FlushAt, value);
            assert_eq!(superblock.get(Mark::FlushAt), Some(value));
            for bit in 0..u64::BITS {
                superblock.words[Mark::FlushAt as usize] ^= 1 << bit;
                assert_eq!(superblock.get(Mark::FlushAt), None, "{value}, bit {bit}");
                superblock.words[Mark::FlushAt as usize] ^= 1 << bit;
            }
        }
        superblock.words[Mark::Second as usize] = superblock.words[Mark::FlushAt as usize];
        assert_eq!(
            superblock.get(Mark::Second),
            None,
            "a word copied from another position"
        );
    }
}
