//! The table of segments: which are free, what is known of the others, and where the next item goes.
//! It holds no items and reads none.

mod cede;
mod choose;
mod free;
mod kind;
mod note;

use super::{
    book::{Book, RunLeft},
    readers::Readers,
    reuse::Reuse,
};
use herdwick_layout::{
    bucket::Offset,
    item::{gap_before, is_lined},
};
use herdwick_request::{Deadline, Second};
pub(super) use kind::Kind;
pub(super) use note::Contents;
pub(crate) use note::Past;

/// Segments that new items leave to the copies that cleaning makes.
pub(super) const SPARE: usize = 3;

/// Items of more than this part of a segment may lie across the ends of segments ...
const LONG: usize = 16;
/// ... in a run of at most so many times the segments that one of them takes.
const RUN_MAX: usize = 4;
/// Fewer segments than these are not divided by size, nor by how soon items expire.
const DIVIDED_MIN: usize = 64;

/// What a segment is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// Items are added to it.
    Open,
    /// No more items are added.
    Sealed,
    /// The cleaner walks over it.
    Cleaning,
    /// It continues the run of the segment with this number.
    Continues(u32),
    /// Free, but only for the run that is being made room for.
    Held,
    /// Its memory was given back to the system, under a limit.
    Withheld,
    /// Its memory was given back, for the index to grow.
    Ceded,
}

/// What the table knows of a segment, or of the run of segments that begins with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) state: State,
    pub(super) kind: Kind,
    /// Segments of the run; 1 for most.
    pub(super) span: u32,
    /// Bytes from the beginning to the first item; 0 in a run that has its first segments still.
    pub(super) first: usize,
    /// Bytes from the beginning to the end of the last item.
    pub(super) written: usize,
    /// Bytes of live items and reservations.
    pub(super) live: usize,
    /// Bytes of gaps.
    pub(super) gaps: usize,
    /// Reservations.
    pub(super) staged: u32,
    /// How often its cleaning was given up, because an item had to stay and had no room elsewhere.
    left: u32,
    /// The weight of the uses of its live items, recent ones in full.
    pub(in crate::segments) uses: u32,
    /// Live items that were never used, but for those that were copied in spite of that ...
    pub(in crate::segments) unused: u32,
    /// ... and these.
    pub(in crate::segments) unread: u32,
    /// [`Segments::stored`] since which `uses` were counted.
    since: u64,
    /// The mean of [`Segments::stored`] when the uses of its items began to be counted.
    pub(super) born: u64,
    /// No item has a later deadline; the largest number for none.
    until: u32,
    /// Segments opened before this one.
    sequence: u64,
}

/// Bytes of the table for each segment.
pub(crate) const HEAD: usize = size_of::<Head>();

impl Head {
    const FREE: Self = Self {
        state: State::Free,
        kind: Kind::YOUNG,
        span: 1,
        first: 0,
        written: 0,
        live: 0,
        gaps: 0,
        staged: 0,
        left: 0,
        uses: 0,
        unused: 0,
        unread: 0,
        since: 0,
        born: 0,
        until: 0,
        sequence: 0,
    };
}

/// The segments of a store.
pub(crate) struct Segments {
    pub(super) heads: Vec<Head>,
    /// Bytes of a segment, as a power of 2.
    shift: u32,
    /// The segment being filled, of each kind.
    open: [Option<u32>; Kind::ALL],
    pub(super) free: usize,
    pub(crate) withheld: usize,
    /// Segments that a limit is to withhold.
    pub(crate) withhold: usize,
    /// The most that were free or withheld since one was opened for a new item.
    most_free: usize,
    /// The search for a free segment begins here.
    hand: usize,
    /// The search for one to clean begins here.
    clean_hand: usize,
    /// Cleaning ahead of need searches again when so many bytes were stored.
    next_search: u64,
    /// The search for a window to clear begins here.
    window_hand: usize,
    /// The search for a withheld segment begins here.
    withheld_hand: usize,
    /// Bytes stored since the start: the clock by which uses are weighed.
    stored: u64,
    /// Segments opened since the start.
    sequence: u64,
    /// All items of segments opened before this are flushed.
    flushed: u64,
    /// Runs of such segments that are not free yet.
    flushed_runs: usize,
    /// Bytes of gaps in all segments.
    pub(super) gaps: usize,
    pub(super) reuse: Reuse,
    /// What a file keeps of this table.
    pub(crate) book: Book,
    /// What readers in other processes learn of it.
    pub(crate) readers: Readers,
    /// Segments that are kept: those behind are ceded, or will be once they are free.
    kept: usize,
    pub(crate) ceded: usize,
    /// The run to be ceded, whose cleaning was given up, is tried again when so many bytes were stored.
    next_ceding: u64,
    /// Heads that searches for free segments have looked at.
    #[cfg(test)]
    pub(super) looked: std::sync::atomic::AtomicUsize,
}

impl Segments {
    pub(crate) fn new(count: usize, bytes: usize) -> Self {
        Self {
            heads: vec![Head::FREE; count],
            shift: bytes.ilog2(),
            open: [None; Kind::ALL],
            free: count,
            withheld: 0,
            withhold: 0,
            most_free: count,
            hand: 0,
            clean_hand: 0,
            next_search: 0,
            window_hand: 0,
            withheld_hand: 0,
            stored: 0,
            sequence: 0,
            flushed: 0,
            flushed_runs: 0,
            gaps: 0,
            reuse: Reuse::default(),
            book: Book::default(),
            readers: Readers::default(),
            kept: count,
            ceded: 0,
            next_ceding: 0,
            #[cfg(test)]
            looked: 0.into(),
        }
    }

    /// Returns the number of segments opened before the last flush.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed
    }

    /// Begins recovery: every item of segments opened before `flushed` is flushed, and what is
    /// recovered counts as stored a full store ago.
    pub(crate) fn resume(&mut self, flushed: u64) {
        // A segment that is opened from now on is not flushed: its number is at least `flushed`.
        (self.flushed, self.sequence) = (flushed, flushed);
        self.stored = self.usable() as u64;
    }

    /// Takes the segments of a run that was left; its items are walked over.
    pub(super) fn reopen(&mut self, run: &RunLeft) {
        let (number, size) = (run.number, self.size());
        let span = run.written.div_ceil(size).max(1);
        self.heads[number..number + span].fill(Head {
            state: State::Continues(number as u32),
            ..Head::FREE
        });
        self.heads[number] = Head {
            state: State::Cleaning,
            // Whether items of other kinds are read is learnt from those that are stored.
            kind: Kind::OLD,
            span: span as u32,
            first: run.first,
            written: run.written,
            sequence: run.sequence,
            ..Head::FREE
        };
        self.free -= span;
        self.sequence = self.sequence.max(run.sequence + 1);
    }

    /// Ends a run at `at`, where damage begins that has no known end.
    pub(super) fn shorten(&mut self, number: usize, at: usize) {
        let written = at - self.start(number);
        self.heads[number].written = written;
        self.book.wrote(number, written);
    }

    /// Ends the walk over a run that was reopened.
    pub(super) fn close(&mut self, number: usize) {
        self.heads[number].state = State::Sealed;
        if self.heads[number].live == 0 {
            self.vacate(number, State::Free);
        }
    }

    /// Records that the item at `at`, the last one of its run, is complete.
    #[inline]
    pub(crate) fn commit(&mut self, at: Offset) {
        let number = self.number(at);
        // Only now: until its end covers an item, recovery does not look at it.
        self.book.wrote(number, self.heads[number].written);
    }

    /// Returns the bytes of a segment.
    pub(crate) fn size(&self) -> usize {
        1 << self.shift
    }

    /// Returns the bytes of all segments that a limit leaves.
    pub(crate) fn usable(&self) -> usize {
        (self.kept - self.withhold) << self.shift
    }

    /// Returns the bytes of all segments that are kept, withheld ones included.
    pub(crate) fn bytes_kept(&self) -> usize {
        self.kept << self.shift
    }

    /// Returns the number of segments that are kept, withheld ones included.
    pub(crate) fn count(&self) -> usize {
        self.kept
    }

    /// Returns the segments that an item of `len` bytes needs.
    pub(super) fn span(&self, len: usize) -> usize {
        len.div_ceil(self.size())
    }

    /// Returns the position of the first byte of a segment.
    pub(super) fn start(&self, number: usize) -> usize {
        number << self.shift
    }

    /// Returns the number of the segment that begins the run of the item at `at`.
    #[inline]
    pub(super) fn number(&self, at: Offset) -> usize {
        let number = at.0 >> self.shift;
        match self.heads[number].state {
            State::Continues(first) => first as usize,
            _ => number,
        }
    }

    fn head(&mut self, at: Offset) -> &mut Head {
        let number = self.number(at);
        &mut self.heads[number]
    }

    /// Returns how many segments were opened since that of the item at `at`.
    pub(crate) fn age(&self, at: Offset) -> usize {
        (self.sequence - self.heads[self.number(at)].sequence) as usize
    }

    /// Returns whether a flush came after the item at `at`.
    #[inline]
    pub(crate) fn is_flushed(&self, at: Offset) -> bool {
        self.flushed_runs > 0 && self.heads[self.number(at)].sequence < self.flushed
    }

    /// Flushes all items so far.
    pub(crate) fn flush(&mut self) {
        // An open segment is sealed: it would hold items of before and after under one number.
        for kind in 0..Kind::ALL {
            self.seal(Kind(kind as u8));
        }
        self.flushed = self.sequence;
        let used = |head: &&Head| matches!(head.state, State::Sealed | State::Cleaning);
        self.flushed_runs = self.heads.iter().filter(used).count();
    }

    /// Returns the oldest segment.
    pub(crate) fn oldest(&self) -> Option<Offset> {
        let used =
            self.heads.iter().enumerate().filter(|(_, head)| {
                matches!(head.state, State::Sealed | State::Open) && head.live > 0
            });
        let oldest = used.min_by_key(|(_, head)| head.sequence)?;
        Some(Offset(self.start(oldest.0) + oldest.1.first))
    }

    /// Returns the kind for an item of `len` bytes with this deadline; `durable` if it has none that is
    /// near.
    pub(super) fn kind(&self, deadline: Deadline, now: Second, len: usize, durable: Kind) -> Kind {
        let kind = Kind::of(deadline, now, durable);
        // Of few segments, those that are open and not full would be a large part of the store.
        if self.count() < DIVIDED_MIN {
            return Kind(kind.0.min(Kind::MORTAL));
        }
        match kind {
            Kind::YOUNG if is_lined(len) => Kind::YOUNG_LINED,
            Kind::OLD if is_lined(len) => Kind::OLD_LINED,
            kind => kind,
        }
    }

    /// Reserves `len` bytes in the open segment of a kind, if it has so many left. Returns the bytes
    /// of the gap before them, too.
    #[inline]
    pub(super) fn append(&mut self, kind: Kind, len: usize) -> Option<(Offset, usize)> {
        let number = self.open[kind.0 as usize]? as usize;
        let (start, shift) = (number << self.shift, self.shift);
        let head = &mut self.heads[number];
        let gap = gap_before(head.written, len);
        if head.written + gap + len > (head.span as usize) << shift {
            return None;
        }
        let at = start + head.written + gap;
        head.written += gap + len;
        head.live += len;
        head.gaps += gap;
        self.gaps += gap;
        self.book.note(Offset(at));
        Some((Offset(at), gap))
    }

    /// Makes the open segment of a kind longer by free ones behind it, so that an item of `len` bytes
    /// can be appended. Only for items that would leave much unused at a segment's end.
    pub(super) fn extend(&mut self, kind: Kind, len: usize, spare: usize) -> bool {
        let Some(number) = self.open[kind.0 as usize] else {
            return false;
        };
        let head = self.heads[number as usize];
        let end = head.written + gap_before(head.written, len) + len;
        let span = self.span(end);
        let (from, to) = (number as usize + head.span as usize, number as usize + span);
        let lacks = span - head.span as usize;
        if len <= self.size() / LONG
            || span > RUN_MAX * self.span(len)
            || to > self.heads.len()
            || self.free < lacks + spare
            || self.free_in(from, lacks) < lacks
        {
            return false;
        }
        for next in from..to {
            self.heads[next].state = State::Continues(number);
        }
        self.free -= lacks;
        self.heads[number as usize].span = span as u32;
        self.book.forget(from << self.shift..to << self.shift);
        self.readers.enter(from..to, head.sequence);
        true
    }

    /// Returns whether an item of `len` bytes can be appended at once.
    pub(super) fn has_room(&self, kind: Kind, len: usize) -> bool {
        self.open[kind.0 as usize].is_some_and(|number| {
            let head = &self.heads[number as usize];
            let end = head.written + gap_before(head.written, len) + len;
            end <= (head.span as usize) << self.shift
        })
    }

    /// Counts the bytes of a new item.
    pub(super) fn tick(&mut self, len: usize) {
        self.stored += len as u64;
    }

    /// Records that the item at `at` has a new deadline.
    #[inline]
    pub(crate) fn defer(&mut self, at: Offset, deadline: Deadline) {
        let head = self.head(at);
        head.until = head.until.max(until(deadline));
    }

    /// Opens the free segments from `number` on for items of a kind.
    pub(super) fn open(&mut self, kind: Kind, number: usize, span: usize, age: u64) {
        self.seal(kind);
        for next in number..number + span {
            debug_assert!(matches!(self.heads[next].state, State::Free | State::Held));
            self.free -= usize::from(self.heads[next].state == State::Free);
            self.heads[next] = Head {
                state: State::Continues(number as u32),
                ..Head::FREE
            };
        }
        let born = self.stored.saturating_sub(age);
        self.heads[number] = Head {
            state: State::Open,
            kind,
            span: span as u32,
            since: born,
            born,
            sequence: self.sequence,
            ..Head::FREE
        };
        let bytes = number << self.shift..(number + span) << self.shift;
        self.book.begin(number, bytes, self.sequence);
        self.readers.enter(number..number + span, self.sequence);
        self.sequence += 1;
        self.open[kind.0 as usize] = Some(number as u32);
    }

    /// Adds no more copies to the open segments: so the items in these, most of them old, can be evicted.
    pub(super) fn seal_copies(&mut self) {
        self.seal(Kind::OLD);
        self.seal(Kind::OLD_LINED);
    }

    /// Adds no more items to the open segment of a kind.
    fn seal(&mut self, kind: Kind) {
        if let Some(number) = self.open[kind.0 as usize].take() {
            let number = number as usize;
            self.heads[number].state = State::Sealed;
            if self.heads[number].live == 0 {
                self.vacate(number, State::Free);
            }
        }
    }

    /// Subtracts the bytes of an item or a reservation. A segment without live items is free at once.
    #[inline]
    pub(crate) fn release(&mut self, at: Offset, len: usize) {
        let number = self.number(at);
        let head = &mut self.heads[number];
        head.live -= len;
        if head.live == 0 && head.state == State::Sealed {
            self.vacate(number, State::Free);
        }
    }

    /// Adds or removes a reservation.
    pub(super) fn reserved(&mut self, at: Offset, begins: bool) {
        let head = self.head(at);
        head.staged = if begins {
            head.staged + 1
        } else {
            head.staged - 1
        };
    }

    /// Ends a reservation of `len` bytes.
    pub(crate) fn drop_staged(&mut self, at: Offset, len: usize) {
        self.reserved(at, false);
        self.release(at, len);
    }
}

fn until(deadline: Deadline) -> u32 {
    match deadline {
        Deadline::NEVER => u32::MAX,
        Deadline(second) => second,
    }
}
