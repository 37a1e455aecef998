//! Where a new item goes: the open segment of its kind, or one that is made free for it.

use herdwick_layout::{bucket::Offset, item::Header};
use herdwick_request::Deadline;

use super::{
    clean::Survivors,
    table::{Kind, Past, SPARE},
};
use crate::store::Store;

/// Segments that are cleaned at once for a new one, before live items give way.
const VICTIMS: usize = 8;
/// As [`VICTIMS`], in a store that evicts nothing, before a put is refused.
const LAST_CHECK: usize = 4;
/// Live items of a store that evicts nothing take at most this part of the segments.
const LOSSLESS: (usize, usize) = (17, 20);

impl Store {
    /// Makes room for a new item of `len` bytes. Returns whether [`Self::take`] succeeds, as it does
    /// in a cache, and where [`Self::make_room`] has made room before.
    pub(crate) fn make_way(&mut self, deadline: Deadline, len: usize, past: Past) -> bool {
        let kind = self.segments.kind(deadline, self.now, len, past.kind);
        self.make_way_for(kind, len);
        self.segments.has_room(kind, len)
    }

    fn make_way_for(&mut self, kind: Kind, len: usize) {
        // A store that evicts nothing has made room before, or the request was refused.
        if !self.lossless {
            self.store_soon(len);
        }
        if self.segments.has_room(kind, len) {
            return;
        }
        if !self.segments.extend(kind, len, SPARE) {
            match self.segments.span(len) {
                span if self.lossless => self.open_free(kind, span),
                1 => self.open_one(kind),
                span => self.open_run(kind, span),
            }
        }
        self.segments.opened();
    }

    /// Counts `len` bytes that are about to be stored, and does their part of the cleaning.
    fn store_soon(&mut self, len: usize) {
        self.segments.tick(len);
        self.copies.earn(len, self.segments.size());
        self.clean_ahead(len);
    }

    /// Reserves room that [`Self::make_way`] has made.
    pub(crate) fn take(&mut self, header: &Header, past: Past) -> Offset {
        let deadline = header.deadline;
        let len = header.footprint();
        let kind = self.segments.kind(deadline, self.now, len, past.kind);
        let at = self.append_item(kind, len);
        let at = at.expect("room was made");
        self.segments.note(at, deadline, header.bits, past.age);
        at
    }

    /// Reserves `len` bytes in the open segment of a kind, if it has so many left.
    #[inline]
    fn append_item(&mut self, kind: Kind, len: usize) -> Option<Offset> {
        let (at, gap) = self.segments.append(kind, len)?;
        if gap > 0 {
            self.items.put_gap(at.0 - gap, gap as u32);
        }
        Some(at)
    }

    /// Reserves `len` bytes for a value that arrives in pieces.
    pub(crate) fn take_staged(&mut self, len: usize) -> Offset {
        self.restore_for(len);
        self.make_way_for(Kind::STAGED, len);
        let at = self.append_item(Kind::STAGED, len);
        let at = at.expect("room was made");
        self.segments.reserved(at, true);
        at
    }

    /// Records that a reservation is an item now.
    pub(crate) fn settle_staged(&mut self, at: Offset) {
        let header = self.items.header(at);
        self.segments.reserved(at, false);
        self.segments.note(at, header.deadline, header.bits, 0);
    }

    /// Opens adjacent segments that [`Self::make_room`] has left free.
    fn open_free(&mut self, kind: Kind, span: usize) {
        if let Some(first) = self.segments.find_free_run(span) {
            self.segments.open(kind, first, span, 0);
        }
    }

    fn open_one(&mut self, kind: Kind) {
        for _ in 0..VICTIMS {
            if self.segments.free > SPARE || !self.begin_cleaning() {
                break;
            }
            self.finish_cleaning(self.survivors());
        }
        let mut number = self.segments.find_free();
        // Last resort: a segment is freed without copies, which needs no free one.
        while number.is_none() && self.clean_one(Survivors::None) {
            number = self.segments.find_free();
        }
        match number {
            Some(number) => self.segments.open(kind, number, 1, 0),
            None => self.open_window(kind, 1, Survivors::None),
        }
    }

    fn open_run(&mut self, kind: Kind, span: usize) {
        // A segment that is half cleaned could not be part of the run.
        self.finish_cleaning(self.survivors());
        if self.segments.free >= span + SPARE
            && let Some(first) = self.segments.find_run(span)
        {
            return self.segments.open(kind, first, span, 0);
        }
        // Copies need free segments outside the window.
        for _ in 0..VICTIMS + span {
            if self.segments.free > span + SPARE || !self.begin_cleaning() {
                break;
            }
            self.finish_cleaning(self.survivors());
        }
        match self.free_run(span) {
            Some(first) => self.segments.open(kind, first, span, 0),
            None => self.open_window(kind, span, self.survivors()),
        }
    }

    /// Clears the cheapest window of `span` segments, and opens it.
    fn open_window(&mut self, kind: Kind, span: usize, keep: Survivors) {
        // A segment that is half cleaned would bar windows.
        self.finish_cleaning(keep);
        let Some((first, _)) = self.segments.choose_window(span, false) else {
            return;
        };
        let cleared = self.clear_window(first, span, keep);
        // Only a store that evicts nothing keeps an item without room for a copy. Live items must
        // not be overwritten.
        assert!(
            cleared && !self.lossless,
            "a window is cleared before it is opened"
        );
        self.segments.open(kind, first, span, 0);
        self.withhold_free();
    }

    /// Reserves room for a copy, without making any.
    pub(super) fn take_copy(&mut self, kind: Kind, len: usize, age: u64) -> Option<Offset> {
        let segments = &mut self.segments;
        if segments.has_room(kind, len) || segments.extend(kind, len, 0) {
            return self.append_item(kind, len);
        }
        let span = segments.span(len);
        if let Some(number) = segments.find_free_run(span) {
            segments.open(kind, number, span, age);
            return self.append_item(kind, len);
        }
        // The kind is a preference: a copy in a segment of another kind is better than an eviction.
        Kind::all().find_map(|kind| self.append_item(kind, len))
    }

    /// Returns whether an item of `len` bytes can replace one of `old` bytes without evicting
    /// another: then so many adjacent segments are free, whatever the item's kind. Cleans a few
    /// segments for it.
    pub(crate) fn make_room(&mut self, old: usize, len: usize) -> bool {
        let part = self.segments.usable() / LOSSLESS.1 * LOSSLESS.0;
        if self.live() - old + len > part {
            return false;
        }
        self.store_soon(len);
        let span = self.segments.span(len);
        // Copies of the largest items stay possible.
        let spare = SPARE + self.segments.span(self.largest());
        for _ in 0..LAST_CHECK + span {
            if self.segments.free > spare + span || !self.begin_cleaning() {
                break;
            }
            self.finish_cleaning(Survivors::All);
        }
        if self.segments.free < spare + span {
            return false;
        }
        if span == 1 {
            return true;
        }
        self.finish_cleaning(Survivors::All);
        self.free_run(span).is_some()
    }
}
