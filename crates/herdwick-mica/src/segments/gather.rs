//! Free segments are gathered: the runs between them are moved as they are, so that an item of many
//! segments has room without a live item being dropped.

use herdwick_layout::{bucket::Offset, item::bit};
use herdwick_request::KeyHash;

use super::book::{Move, STRIDE};
use crate::store::Store;

/// Items whose index entries are prefetched together.
const TOGETHER: usize = 8;

impl Store {
    /// Makes `span` adjacent segments free, if so many are free at all. What is moved lies between
    /// them: the fewest segments possible. Returns whether they are free. Of memory of which one part
    /// in `n` is free, it moves `n` times the bytes of `span` segments at most.
    pub(super) fn gather(&mut self, span: usize) -> bool {
        if self.segments.find_run(span).is_some() {
            return true;
        }
        let Some((mut free, end)) = self.segments.scattered(span) else {
            return false;
        };
        let mut number = free;
        while number < end {
            if self.segments.is_free(number) {
                number += 1;
                continue;
            }
            let span = self.segments.heads[number].span as usize;
            self.move_run(number, free);
            free += span;
            number += span;
        }
        true
    }

    /// Moves the run that begins with segment `from` to the segments before it, which are free.
    fn move_run(&mut self, from: usize, to: usize) {
        let run = Move { from, to };
        self.repoint_run(run);
        let (written, span) = (
            self.segments.heads[from].written,
            self.segments.heads[from].span,
        );
        self.segments.book.begin_move(run);
        self.copy_run(run, written, 0);
        self.segments.book.end_move(run);
        let end = self.segments.start(to + span as usize);
        let rest = (self.segments.start(to) + written).next_multiple_of(STRIDE);
        self.segments.book.forget(rest.min(end)..end);
        self.segments.move_head(run);
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

    /// Points the index entries and reservations of a run's items to where it is going.
    fn repoint_run(&mut self, run: Move) {
        let start = self.segments.start(run.from);
        let back = start - self.segments.start(run.to);
        let head = &self.segments.heads[run.from];
        let (mut at, end) = (start + head.first, start + head.written);
        let mut items = [(Offset::default(), KeyHash::default()); TOGETHER];
        while at < end {
            let mut count = 0;
            while count < TOGETHER && at < end {
                let item = Offset(at);
                let hash = self.hash_key.hash(self.items.key(item));
                self.index.prefetch_first(hash);
                items[count] = (item, hash);
                at += self.items.header(item).footprint();
                count += 1;
            }
            for &(item, hash) in &items[..count] {
                self.repoint(item, hash, Offset(item.0 - back));
            }
        }
    }

    fn repoint(&mut self, at: Offset, hash: KeyHash, to: Offset) {
        if self.items.header(at).has(bit::STAGED) {
            return self.move_staged(at, Some(to));
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
            && run.to < run.from
            && left.written <= self.segments.start(count - run.from)
        {
            self.copy_run(run, left.written, moved);
            self.segments.book.end_move(run);
        }
        self.segments.book.forget_move();
    }
}
