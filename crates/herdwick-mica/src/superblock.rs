//! The superblock: the words by which a log in a file is found again after a kill at any instant.

use std::{
    fs::File,
    io,
    sync::atomic::{Ordering, compiler_fence},
};

use herdwick_mem::Arena;

/// Bytes of log for which one beginning of an item is noted. The walk resumes at the next noted
/// beginning after a damaged item.
pub(crate) const STRIDE: usize = 8 << 10;

/// The state of a log besides its items, one word each. The marks precede the noted beginnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The position of the oldest item, in units of 8 bytes.
    Head,
    /// The position of the next item, in units of 8 bytes.
    Tail,
    /// An upper bound of the versions assigned, in units of `VERSIONS`.
    Versions,
    /// The flush generation.
    Generation,
    /// The second of the pending flush; 0 for none.
    FlushAt,
    /// The second of the last batch.
    Second,
    /// The position before which every item is flushed, whatever its generation: in units of 8
    /// bytes, plus 1; 0 for none.
    Horizon,
}

/// Words of marks: one cache line.
const MARKS: usize = 8;
const _: () = assert!((Mark::Horizon as usize) < MARKS);

/// Check bits of a word.
const CHECK_BITS: u32 = 20;

/// The words of a log that outlive the process together with its items.
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
    /// Returns the number of words for a log of `log_bytes`.
    pub(crate) fn words(log_bytes: usize) -> usize {
        MARKS + log_bytes.div_ceil(STRIDE)
    }

    pub(crate) fn new(log_bytes: usize) -> io::Result<Self> {
        Ok(Self::over(Arena::zeroed(Self::words(log_bytes))?))
    }

    pub(crate) fn in_file(file: &File, offset: u64, log_bytes: usize) -> io::Result<Self> {
        let words = Arena::in_file(file, offset, Self::words(log_bytes))?;
        Ok(Self::over(words))
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

    /// Stores a mark after every earlier store to the log, and before every later one.
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

    /// Notes an item of `len` bytes at `at`, which follows the item noted before or begins a lap.
    /// Only the first beginning of a stretch is kept.
    #[inline]
    pub(crate) fn note(&mut self, at: usize, len: usize) {
        let place = MARKS + at / STRIDE;
        if at == 0 || self.words[place] == 0 {
            self.words[place] = checked(place, (at % STRIDE) as u64);
        }
        self.forget(at, len);
    }

    /// Clears the beginnings of the stretches that begin in `at + 1..=at + len`.
    #[inline]
    pub(crate) fn forget(&mut self, at: usize, len: usize) {
        let (from, to) = (at / STRIDE + 1, (at + len) / STRIDE + 1);
        if from < to {
            let end = self.words.len();
            self.words[(MARKS + from).min(end)..(MARKS + to).min(end)].fill(0);
        }
    }

    /// Returns the first noted beginning in a stretch that begins behind `at`, if it is before
    /// `end`.
    pub(crate) fn next_beginning(&self, at: usize, end: usize) -> Option<usize> {
        let stretches = at / STRIDE + 1..end.div_ceil(STRIDE);
        let mut noted = stretches.filter_map(|stretch| {
            let within = self.read(MARKS + stretch)?;
            Some(stretch * STRIDE + usize::try_from(within).ok()?)
        });
        noted.next().filter(|beginning| *beginning < end)
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
        let mut superblock = Superblock::new(STRIDE).unwrap();
        assert_eq!(superblock.get(Mark::Head), None, "nothing was put there");
        for value in [0, 1, 77, (1 << 44) - 1] {
            superblock.put(Mark::Tail, value);
            assert_eq!(superblock.get(Mark::Tail), Some(value));
            for bit in 0..u64::BITS {
                superblock.words[Mark::Tail as usize] ^= 1 << bit;
                assert_eq!(superblock.get(Mark::Tail), None, "{value}, bit {bit}");
                superblock.words[Mark::Tail as usize] ^= 1 << bit;
            }
        }
        superblock.words[Mark::Head as usize] = superblock.words[Mark::Tail as usize];
        assert_eq!(
            superblock.get(Mark::Head),
            None,
            "a word copied from another position"
        );
    }

    #[test]
    fn first_item_start_of_each_stride_is_found() {
        const LEN: usize = 5 * STRIDE;
        let mut superblock = Superblock::new(LEN).unwrap();
        for (at, len) in [
            (0, 8),
            (8, STRIDE),
            (STRIDE + 8, 2 * STRIDE),
            (3 * STRIDE + 8, 16),
        ] {
            superblock.note(at, len);
        }
        assert_eq!(superblock.next_beginning(0, LEN), Some(STRIDE + 8));
        assert_eq!(
            superblock.next_beginning(STRIDE + 8, LEN),
            Some(3 * STRIDE + 8)
        );
        assert_eq!(superblock.next_beginning(STRIDE + 8, 3 * STRIDE + 8), None);
        assert_eq!(superblock.next_beginning(3 * STRIDE + 8, LEN), None);
        superblock.note(0, 2 * STRIDE);
        assert_eq!(
            superblock.next_beginning(0, 2 * STRIDE),
            None,
            "of the last lap"
        );
    }
}
