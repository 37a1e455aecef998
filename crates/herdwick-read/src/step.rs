//! The vocabulary between a system and the reader: steps of READs, their bytes, and verdicts on them.

use std::ops::Range;

use arrayvec::ArrayVec;
use herdwick_fabric::{Remote, Status};
use herdwick_mem::WORD;

/// Most READs in one step.
pub const READS_PER_STEP: usize = 4;

/// One READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The first byte.
    pub from: Remote,
    /// Length in bytes.
    pub len: usize,
}

impl Fetch {
    /// Returns the bytes that it occupies in a buffer: each READ starts at a whole word.
    pub(crate) fn room(&self) -> usize {
        // Saturates: lengths may come from a peer's memory.
        self.len.saturating_add(WORD - 1) / WORD * WORD
    }
}

/// One to [`READS_PER_STEP`] READs that are posted together and judged together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    fetches: [Fetch; READS_PER_STEP],
    count: u8,
}

impl Step {
    /// Makes a step of one READ.
    #[inline]
    #[must_use]
    pub fn one(fetch: Fetch) -> Self {
        Self {
            fetches: [fetch; READS_PER_STEP],
            count: 1,
        }
    }

    /// Adds a READ, as far as there is room for it: a step keeps its first [`READS_PER_STEP`].
    #[inline]
    #[must_use]
    pub fn and(mut self, fetch: Fetch) -> Self {
        if let Some(free) = self.fetches.get_mut(usize::from(self.count)) {
            *free = fetch;
            self.count += 1;
        }
        self
    }

    /// Returns the READs.
    #[inline]
    #[must_use]
    pub fn fetches(&self) -> &[Fetch] {
        &self.fetches[..usize::from(self.count)]
    }

    /// Returns the bytes that a buffer needs for all of them.
    pub(crate) fn room(&self) -> usize {
        let rooms = self.fetches().iter().map(Fetch::room);
        rooms.fold(0, usize::saturating_add)
    }
}

/// What the READs of a step returned: a private copy that no peer can change.
#[derive(Clone, Debug)]
pub struct Fetched<'a> {
    bytes: &'a [u8],
    ranges: ArrayVec<Range<usize>, READS_PER_STEP>,
}

impl<'a> Fetched<'a> {
    pub(crate) fn new(step: &Step, bytes: &'a [u8]) -> Self {
        let mut at = 0;
        let ranges = step.fetches().iter().map(|fetch| {
            let start = at;
            at += fetch.room();
            start..start + fetch.len
        });
        Self {
            ranges: ranges.collect(),
            bytes,
        }
    }

    /// Returns the number of READs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the bytes of a READ.
    ///
    /// # Panics
    /// When the step has no READ of this number.
    #[inline]
    #[must_use]
    pub fn part(&self, index: usize) -> &'a [u8] {
        &self.bytes[self.ranges[index].clone()]
    }

    /// Returns the range of all bytes of a READ, for [`Verdict::Found`].
    ///
    /// # Panics
    /// As [`Fetched::part`].
    #[inline]
    #[must_use]
    pub fn whole(&self, index: usize) -> Range<usize> {
        self.ranges[index].clone()
    }

    /// Returns the range of some bytes of a READ, for [`Verdict::Found`].
    ///
    /// # Panics
    /// As [`Fetched::part`].
    #[inline]
    #[must_use]
    pub fn within(&self, index: usize, bytes: Range<usize>) -> Range<usize> {
        let start = self.ranges[index].start;
        start + bytes.start..start + bytes.end
    }
}

/// What a judge finds in the bytes of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The answer, within the bytes of the step ([`Fetched::whole`], [`Fetched::within`]).
    Found(Range<usize>),
    /// The key is not stored.
    Missing,
    /// The next step: a pointer to follow, or the next place to look.
    Follow(Step),
    /// A writer was changing these bytes: the same READs again.
    Torn,
    /// What led here is out of date: begin again, with these READs.
    Stale(Step),
    /// These bytes do not tell: ask the peer's CPU.
    Unsure,
}

/// Why a lookup was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The judge could not tell ([`Verdict::Unsure`]).
    Judge,
    /// Bytes were torn or stale as often as [`crate::ReaderOptions::retries`] allows.
    Retries,
    /// The lookup had as many steps as [`crate::ReaderOptions::steps`] allows.
    Steps,
    /// A step did not fit [`crate::ReaderOptions::step_bytes`], or the fabric's longest READ.
    Length,
}

/// How a lookup ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The answer's bytes.
    Found(&'a [u8]),
    /// The key is not stored.
    Missing,
    /// READs alone cannot tell; the peer's CPU can.
    Unsure(Doubt),
    /// The queue pair failed with this status, before or during the lookup.
    Failed(Status),
}

/// The part of a lookup that is the system's own: a layout, and how it is checked.
pub trait Judge {
    /// What the judge knows of one lookup: its key, its position, what it has read before.
    type Lookup;

    /// Judges what the READs of the lookup's last step returned. Bytes come from the peer's memory,
    /// and may be anything.
    fn judge(&mut self, lookup: &mut Self::Lookup, read: &Fetched<'_>) -> Verdict;
}
