//! The words by which segments in a file are found again after a kill at any instant: of each run its
//! first item, its end and its place in time, and the beginnings from which a damaged run is read on.

use std::{
    fs::File,
    io,
    ops::Range,
    sync::atomic::{Ordering, compiler_fence},
};

use herdwick_layout::{bucket::Offset, item::ALIGN};
use herdwick_mem::Arena;

use crate::superblock::{checked, unchecked};

/// Words of each segment: its [`Word`]s.
const WORDS: usize = 3;
/// Words of the run that is being moved: where from and to, and the bytes of it that were moved.
const MOVE_WORDS: usize = 2;
/// Bits of a segment's number in the first of these.
const NUMBER_BITS: u32 = 22;
/// Bytes of segments for which one beginning of an item is noted; a segment has one or more.
pub(super) const STRIDE: usize = 4 << 10;

/// What is stored of the run that begins with a segment.
#[derive(Clone, Copy)]
enum Word {
    /// The bytes to the end of the last item, in units of 8, plus 1. The word is 0 where no run begins.
    Written,
    /// The bytes to the first item, in units of 8.
    First,
    /// The number of segments opened before it.
    Sequence,
}

/// A run of segments as it was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunLeft {
    pub(super) number: usize,
    pub(super) first: usize,
    pub(super) written: usize,
    pub(super) sequence: u64,
}

/// A run that is moved: the segment with which it begins, and that with which it will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) from: usize,
    pub(super) to: usize,
}

/// The words of all runs; those of a store that does not lie in a file are not kept.
///
/// Each word carries its check and is stored whole, and the stores of a killed process stay in the
/// page cache in program order. A run is entered before its first item is written, its end is moved
/// after an item is complete, and it is crossed out before its bytes are written again.
#[derive(Default)]
pub(crate) struct Book {
    words: Option<Arena<u64>>,
    segments: usize,
    /// Called before and after each word is put, the instants at which a kill is most critical.
    #[cfg(test)]
    pub(crate) witness: Option<Box<dyn FnMut() + Send + Sync>>,
}

impl Book {
    /// Returns the words for so many segments of so many bytes.
    pub(crate) fn words(segments: usize, segment_bytes: usize) -> usize {
        segments * (WORDS + segment_bytes / STRIDE) + MOVE_WORDS
    }

    pub(crate) fn in_file(
        file: &File,
        offset: u64,
        segments: usize,
        segment_bytes: usize,
    ) -> io::Result<Self> {
        let words = Arena::in_file(file, offset, Self::words(segments, segment_bytes))?;
        Ok(Self {
            words: Some(words),
            segments,
            #[cfg(test)]
            witness: None,
        })
    }

    /// Crosses out all runs.
    pub(crate) fn clear(&mut self) {
        if let Some(words) = &mut self.words {
            words.fill(0);
        }
    }

    /// Enters an empty run; `bytes` are those of its segments.
    pub(super) fn begin(&mut self, number: usize, bytes: Range<usize>, sequence: u64) {
        self.forget(bytes);
        self.put(number, Word::Sequence, sequence);
        self.put(number, Word::First, 0);
        // Last: without it the run does not exist.
        self.put(number, Word::Written, 1);
    }

    /// Clears the noted beginnings among `bytes`.
    pub(super) fn forget(&mut self, bytes: Range<usize>) {
        let notes = self.segments * WORDS;
        if let Some(words) = &mut self.words {
            words[notes + bytes.start / STRIDE..notes + bytes.end / STRIDE].fill(0);
        }
    }

    /// Notes the beginning of an item that is about to be written. Only the first of a stretch is
    /// kept.
    #[inline]
    pub(super) fn note(&mut self, at: Offset) {
        let place = self.segments * WORDS + at.0 / STRIDE;
        if let Some(words) = &mut self.words
            && words[place] == 0
        {
            words[place] = checked(place, (at.0 % STRIDE) as u64);
        }
    }

    /// Stores the end of a run's last item, which is complete.
    #[inline]
    pub(super) fn wrote(&mut self, number: usize, written: usize) {
        if self.words.is_some() {
            self.put(number, Word::Written, (written / ALIGN) as u64 + 1);
        }
    }

    /// Crosses out the run that begins with a segment.
    pub(super) fn cross_out(&mut self, number: usize) {
        if let Some(words) = &mut self.words {
            // As in `put_at`.
            compiler_fence(Ordering::Release);
            words[number * WORDS + Word::Written as usize] = 0;
            compiler_fence(Ordering::Release);
            self.testify();
        }
    }

    /// Enters what is left of a run, whose first segments are free from now on. A kill in between
    /// leaves both; the longer one ends where the other begins.
    pub(super) fn cut(&mut self, from: usize, left: &RunLeft) {
        self.put(left.number, Word::Sequence, left.sequence);
        self.put(left.number, Word::First, (left.first / ALIGN) as u64);
        self.wrote(left.number, left.written);
        self.cross_out(from);
    }

    /// Records that a run is about to be moved. Until [`Self::end_move`] its words stay where they are.
    pub(super) fn begin_move(&mut self, run: Move) {
        if self.words.is_some() {
            let place = self.move_place();
            // In this order: the count of bytes belongs to the move before, until the move is
            // entered.
            self.put_at(place + 1, 0);
            self.put_at(place, (run.from << NUMBER_BITS | run.to) as u64);
        }
    }

    /// Records that a piece of a run was moved, `bytes` of it, and moves the beginnings noted in it.
    pub(super) fn moved(&mut self, run: Move, bytes: Range<usize>) {
        let Some(words) = &mut self.words else {
            return;
        };
        let notes = self.segments * WORDS;
        let each = (words.len() - MOVE_WORDS - notes) / self.segments;
        for n in bytes.start / STRIDE..bytes.end.div_ceil(STRIDE) {
            let [from, to] = [run.from, run.to].map(|number| notes + number * each + n);
            words[to] = unchecked(from, words[from]).map_or(0, |within| checked(to, within));
        }
        self.put_at(self.move_place() + 1, bytes.end as u64);
    }

    /// Enters a run that was moved where it is now, and crosses it out where it was.
    pub(super) fn end_move(&mut self, run: Move) {
        if let Ok(Some(left)) = self.run(run.from) {
            self.put(run.to, Word::Sequence, left.sequence);
            self.put(run.to, Word::First, (left.first / ALIGN) as u64);
            self.wrote(run.to, left.written);
            self.cross_out(run.from);
        }
        self.forget_move();
    }

    /// Records that no run is being moved.
    pub(super) fn forget_move(&mut self) {
        let place = self.move_place();
        if let Some(words) = &mut self.words {
            // As in `put_at`.
            compiler_fence(Ordering::Release);
            words[place] = 0;
            compiler_fence(Ordering::Release);
            self.testify();
        }
    }

    /// Returns the run whose move was interrupted, and the bytes of it that had been moved.
    pub(super) fn interrupted(&self) -> Option<(Move, usize)> {
        let (words, place) = (self.words.as_ref()?, self.move_place());
        let numbers = usize::try_from(unchecked(place, words[place])?).ok()?;
        let moved = usize::try_from(unchecked(place + 1, words[place + 1])?).ok()?;
        let (from, to) = (numbers >> NUMBER_BITS, numbers & ((1 << NUMBER_BITS) - 1));
        (from < self.segments).then_some((Move { from, to }, moved))
    }

    /// Returns the place of the words of the run that is being moved.
    fn move_place(&self) -> usize {
        let words = self.words.as_ref().map_or(0, |words| words.len());
        words.saturating_sub(MOVE_WORDS)
    }

    /// Returns the run that begins with a segment, as the file has it; the error is a damaged word.
    pub(super) fn run(&self, number: usize) -> Result<Option<RunLeft>, ()> {
        let Some(words) = &self.words else {
            return Ok(None);
        };
        let get = |word| {
            let place = number * WORDS + word as usize;
            unchecked(place, words[place]).ok_or(())
        };
        if words[number * WORDS + Word::Written as usize] == 0 {
            return Ok(None);
        }
        let bytes = |units: u64| usize::try_from(units).map(|units| units * ALIGN);
        let written = get(Word::Written)?.checked_sub(1).ok_or(())?;
        Ok(Some(RunLeft {
            number,
            first: bytes(get(Word::First)?).map_err(|_| ())?,
            written: bytes(written).map_err(|_| ())?,
            sequence: get(Word::Sequence)?,
        }))
    }

    /// Returns the first noted beginning in a stretch behind that of `at`, if it is before `end`.
    pub(super) fn next_beginning(&self, at: usize, end: usize) -> Option<usize> {
        let words = self.words.as_ref()?;
        let mut noted = (at / STRIDE + 1..end.div_ceil(STRIDE)).filter_map(|stretch| {
            let place = self.segments * WORDS + stretch;
            let within = unchecked(place, words[place])?;
            Some(stretch * STRIDE + usize::try_from(within).ok()?)
        });
        noted.next().filter(|&beginning| beginning < end)
    }

    #[inline]
    fn put(&mut self, number: usize, word: Word, value: u64) {
        self.put_at(number * WORDS + word as usize, value);
    }

    #[inline]
    fn put_at(&mut self, place: usize, value: u64) {
        if let Some(words) = &mut self.words {
            // Between the stores around it: a process may be killed after any of them.
            compiler_fence(Ordering::Release);
            words[place] = checked(place, value);
            compiler_fence(Ordering::Release);
            self.testify();
        }
    }

    #[inline]
    fn testify(&mut self) {
        #[cfg(test)]
        if let Some(witness) = &mut self.witness {
            witness();
        }
    }
}
