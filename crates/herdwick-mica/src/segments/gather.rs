//! Adjacent segments are made free for an item of many segments, without a live item being dropped:
//! free ones are gathered, by moving the runs between them as they are, or a window is emptied.

use herdwick_layout::{bucket::Offset, item::bit};
use herdwick_request::KeyHash;

use super::{
    book::{Move, STRIDE},
    clean::Survivors,
};
use crate::store::Store;

/// Free segments are gathered within a stretch of so many times the segments that are needed.
const STRETCH: usize = 8;
/// Items whose index entries are prefetched together.
const TOGETHER: usize = 8;

impl Store {
    /// Makes `span` adjacent segments free, and returns the first of them; `None` if that takes more
    /// than moving the bytes of [`STRETCH`] times as many.
    pub(super) fn free_run(&mut self, span: usize) -> Option<usize> {
        let found = self.segments.find_run(span);
        let gathered = found.or_else(|| self.gather(span));
        gathered.or_else(|| self.empty_window(span))
    }

    /// Moves the runs between `span` free segments that are close to each other.
    fn gather(&mut self, span: usize) -> Option<usize> {
        let (mut free, end) = self.scattered(span)?;
        let mut number = free;
        while number < end {
            if self.segments.is_free(number) {
                number += 1;
                continue;
            }
            let span = self.segments.heads[number].span as usize;
            self.copies.gathered += self.segments.heads[number].written;
            self.move_run(number, free);
            free += span;
            number += span;
        }
        Some(free)
    }

    /// Returns the shortest stretch of segments with `span` free ones, if it is short enough to
    /// gather them.
    pub(super) fn scattered(&self, span: usize) -> Option<(usize, usize)> {
        let found = self.segments.scattered(span);
        found.filter(|(first, end)| end - first <= STRETCH * span)
    }

    /// Copies the items out of the `span` adjacent segments that hold the fewest bytes of them: in a
    /// store that evicts nothing, where free segments are too far apart to be gathered. Items of
    /// many segments stay where they are.
    fn empty_window(&mut self, span: usize) -> Option<usize> {
        if !self.lossless || self.cleaner.is_some() {
            return None;
        }
        let (first, live) = self.segments.choose_window(span, true)?;
        self.copies.gathered += live;
        let emptied = self.clear_window(first, span, Survivors::All);
        self.segments.let_go(first, span);
        emptied.then_some(first)
    }

    /// Moves the run that begins with segment `from` to the segments before it, which are free.
    fn move_run(&mut self, from: usize, to: usize) {
        let run = Move { from, to };
        let (written, span) = (
            self.segments.heads[from].written,
            self.segments.heads[from].span,
        );
        self.segments.book.begin_move(run);
        self.copy_run(run, written, 0);
        self.segments.book.end_move(run);
        self.repoint_run(run);
        let end = self.segments.start(to + span as usize);
        let rest = (self.segments.start(to) + written).next_multiple_of(STRIDE);
        self.segments.book.forget(rest.min(end)..end);
        self.segments.move_head(run);
        // A reader that still has the old offset would find a whole item there, as it was: it must
        // not, once the item has changed.
        if self.segments.readers.may_be() {
            let vacated = self.segments.vacated(run, span as usize);
            let bytes = self.segments.start(vacated.start)..self.segments.start(vacated.end);
            self.items.wipe(bytes);
        }
        let back = self.segments.start(from - to);
        if let Some(walk) = &mut self.cleaner
            && walk.number == from
        {
            walk.number = to;
            walk.at -= back;
            walk.end -= back;
        }
    }

    /// Copies the `len` bytes of a run from byte `moved` on. Each piece ends before the next begins,
    /// however the two places overlap: a kill in between leaves what is to be copied.
    fn copy_run(&mut self, run: Move, len: usize, moved: usize) {
        let (from, to) = (self.segments.start(run.from), self.segments.start(run.to));
        let piece = from - to;
        for at in (moved..len).step_by(piece) {
            let end = (at + piece).min(len);
            self.items
                .copy(Offset(from + at), end - at, Offset(to + at));
            self.segments.book.moved(run, at..end);
        }
    }

    /// Points the index entries and reservations of a run's items to where it is now.
    fn repoint_run(&mut self, run: Move) {
        let start = self.segments.start(run.to);
        let back = self.segments.start(run.from) - start;
        let head = &self.segments.heads[run.from];
        let (mut at, end) = (start + head.first, start + head.written);
        let mut items = [(Offset::default(), KeyHash::default()); TOGETHER];
        while at < end {
            let mut count = 0;
            while count < TOGETHER && at < end {
                let item = Offset(at);
                at += self.items.step(item);
                if self.items.is_gap(item) {
                    continue;
                }
                let hash = self.hash_key.hash(self.items.key(item));
                self.index.prefetch_first(hash);
                items[count] = (item, hash);
                count += 1;
            }
            for &(item, hash) in &items[..count] {
                self.repoint(Offset(item.0 + back), hash, item);
            }
        }
    }

    fn repoint(&mut self, at: Offset, hash: KeyHash, to: Offset) {
        let header = self.items.header(to);
        if header.has(bit::STAGED) {
            return self.move_staged(&header, at, Some(to));
        }
        if let Some((place, _)) = self.index.find(hash, |it| it == at) {
            self.index.point(place, hash, to);
            if self.protected == Some(at) {
                self.protected = Some(to);
            }
        }
    }

    /// Completes the move that a kill has interrupted.
    pub(super) fn resume_move(&mut self) {
        let count = self.segments.count();
        let interrupted = self.segments.book.interrupted();
        if let Some((run, moved)) = interrupted
            && let Ok(Some(left)) = self.segments.book.run(run.from)
            // From here on each test is of bytes of a file, which may be damaged.
            && run.to < run.from
            && left.written <= self.segments.start(count - run.from)
        {
            self.copy_run(run, left.written, moved);
            self.segments.book.end_move(run);
        }
        self.segments.book.forget_move();
    }
}
