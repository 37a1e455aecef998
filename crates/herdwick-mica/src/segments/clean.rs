//! Cleaning: a segment is walked, the items in it that are worth it are copied, and it is free. The
//! work that one request pays for is bounded.

use herdwick_layout::{
    bucket::Offset,
    item::{Header, bit},
};
use herdwick_request::KeyHash;

use super::{
    copies::Walk,
    table::{Kind, SPARE, State},
};
use crate::{index::Place, store::Store, uses};

/// While live items take at most this part of the segments, none is evicted.
const SPARSE: (usize, usize) = (17, 20);
/// While fewer segments than this are free beside the spare ones, requests clean ahead of need ...
const AHEAD: usize = 1;
/// ... by so many times the bytes that they store ...
const RATE: usize = 8;
/// ... and so many bytes more.
const STEP: usize = 1 << 10;
/// Segments that are cleaned in vain while too few are free, before live items give way: what is
/// unused at the ends of segments is no room for items of any size ...
const FUTILE_MAX: u32 = 64;
/// ... of which a segment that is gained makes up for so many.
const GAIN: u32 = 16;
/// Items whose index entries are prefetched together.
const TOGETHER: usize = 8;

/// Which live items of a segment are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survivors {
    None,
    /// Of those that were used, the ones that [`Survivors::Used`] keeps.
    Read,
    /// Those with more uses a byte and time than is usual in segments that are cleaned.
    Used,
    All,
}

/// What became of the next few items of a segment.
enum Cleaned {
    /// So many bytes of them were copied or dropped.
    Walked(usize),
    /// An item of so many bytes must be kept, and has no room.
    Blocked(usize),
}

impl Store {
    /// Returns what cleaning keeps now.
    pub(crate) fn survivors(&self) -> Survivors {
        if self.lossless || (self.is_sparse() && self.futile < FUTILE_MAX) {
            Survivors::All
        } else {
            Survivors::Used
        }
    }

    fn is_sparse(&self) -> bool {
        self.live() + self.segments.gaps <= self.segments.usable() / SPARSE.1 * SPARSE.0
    }

    /// Cleans a part of a segment, in proportion to the `len` bytes that are stored, if few are free.
    pub(super) fn clean_ahead(&mut self, len: usize) {
        // A segment that was begun is finished whatever is free: half cleaned it would be of no
        // use.
        if self.cleaner.is_none() && (self.has_ahead() || !self.segments.may_search()) {
            return;
        }
        let mut budget = (RATE * len + STEP) as isize;
        while budget > 0 {
            if !self.begin_cleaning() {
                return self.segments.found_none();
            }
            // One that is given up costs a step: another is chosen.
            let walked = self.clean_few(self.survivors()).unwrap_or(STEP);
            budget -= walked as isize;
            if self.cleaner.is_none() && self.has_ahead() {
                // The rest of the budget is not spent: cleaning earlier than needed copies items
                // that may yet die.
                return;
            }
        }
    }

    /// Returns whether so many segments are free that none is cleaned ahead of need.
    fn has_ahead(&self) -> bool {
        let largest = self.segments.span(self.largest());
        let spare = match self.survivors() {
            Survivors::All => SPARE + 2 * largest,
            _ => SPARE,
        };
        self.segments.free > spare + AHEAD
    }

    /// Cleans the current segment to its end, or a whole one. Returns whether it did.
    pub(super) fn clean_one(&mut self, keep: Survivors) -> bool {
        self.begin_cleaning() && self.finish_cleaning(keep)
    }

    /// Cleans the current segment to its end, or until it is given up; returns whether it came there.
    pub(super) fn finish_cleaning(&mut self, keep: Survivors) -> bool {
        while self.cleaner.is_some() {
            if self.clean_few(keep).is_none() {
                return false;
            }
        }
        true
    }

    /// As [`Self::clean_some`]; makes room for an item of many segments that has none. Returns the
    /// bytes walked over or moved; `None` if the cleaning was given up, because there is no room.
    pub(crate) fn clean_few(&mut self, keep: Survivors) -> Option<usize> {
        let len = match self.clean_some(keep)? {
            Cleaned::Walked(bytes) => return Some(bytes),
            Cleaned::Blocked(len) => len,
        };
        let (walk, before) = (self.cleaner?, self.copies.gathered);
        if !walk.whole && self.free_run(self.segments.span(len)).is_some() {
            return Some(self.copies.gathered - before);
        }
        self.cleaner = None;
        self.segments.leave(walk.number);
        None
    }

    /// Records that a cleaning that was needed was given up.
    pub(crate) fn count_futile(&mut self) {
        self.futile = FUTILE_MAX.min(self.futile + 1);
    }

    /// Chooses a segment to clean, unless one is being cleaned. Returns whether there is one.
    pub(crate) fn begin_cleaning(&mut self) -> bool {
        if self.cleaner.is_some() {
            return true;
        }
        if let Some(number) = self.segments.ceding_run() {
            self.walk(number, false);
            return true;
        }
        let kept = self.survivors() == Survivors::All;
        let mut chosen = self.segments.choose(self.now, kept, self.copies.usual());
        if chosen.is_none() && kept && !self.lossless && !self.segments.has_spare() {
            // No segment has dead bytes to speak of: live items give way.
            self.futile = FUTILE_MAX;
            chosen = self.segments.choose(self.now, false, self.copies.usual());
        }
        if let Some(number) = chosen {
            self.walk(number, false);
        }
        chosen.is_some()
    }

    fn walk(&mut self, number: usize, whole: bool) {
        let (start, head) = (self.segments.start(number), &self.segments.heads[number]);
        let (at, end) = (start + head.first, start + head.written);
        self.segments.begin_cleaning(number);
        self.cleaner = Some(Walk {
            number,
            at,
            end,
            whole,
            age: self.segments.age_of(number),
        });
    }

    /// Cleans the next few items; frees the segment at its end. `None` if no segment is being cleaned.
    fn clean_some(&mut self, keep: Survivors) -> Option<Cleaned> {
        let mut walk = self.cleaner?;
        let from = walk.at;
        // Nothing is left to be copied: the rest is not walked over.
        if self.segments.heads[walk.number].live > 0 {
            let mut items = [(Offset::default(), Header::default(), KeyHash::default()); TOGETHER];
            let (mut count, mut next) = (0, walk.at);
            while count < TOGETHER && next < walk.end {
                let at = Offset(next);
                if self.items.is_gap(at) {
                    next += self.items.step(at);
                    continue;
                }
                let header = self.items.header(at);
                next += header.footprint();
                // Items hold no hash, so it is computed anew.
                let hash = self.hash_key.hash(self.items.key_of(at, &header));
                self.index.prefetch_first(hash);
                items[count] = (at, header, hash);
                count += 1;
            }
            for &(at, ref header, hash) in &items[..count] {
                if !walk.whole {
                    // The segments behind the walk are free at once: copies may go there.
                    walk.number = self.segments.free_before(walk.number, at);
                }
                let len = header.footprint();
                if !self.clean_item((at, header), hash, keep, walk.age) {
                    // The walk stays at this item.
                    self.cleaner = Some(walk);
                    return Some(Cleaned::Blocked(len));
                }
                walk.at = at.0 + len;
            }
            walk.at = next;
        } else {
            walk.at = walk.end;
        }
        self.cleaner = (walk.at < walk.end).then_some(walk);
        if self.cleaner.is_none() {
            self.segments.vacate(walk.number, State::Free);
            self.judge_gain();
        }
        Some(Cleaned::Walked(walk.at - from))
    }

    /// Records that a segment was cleaned: whether there is more room than before. Once cleaning is in
    /// vain, it is so until enough segments are free.
    fn judge_gain(&mut self) {
        let gains = self.segments.gains();
        self.futile = match self.futile {
            _ if self.segments.has_spare() => 0,
            FUTILE_MAX.. => FUTILE_MAX,
            futile if gains => futile.saturating_sub(GAIN),
            futile => futile + 1,
        };
    }

    /// Copies or drops an item. Returns false if it must be kept, and has no room.
    fn clean_item(
        &mut self,
        (at, header): (Offset, &Header),
        hash: KeyHash,
        keep: Survivors,
        age: u64,
    ) -> bool {
        if header.has(bit::STAGED) {
            return self.carry_staged(at, keep);
        }
        // No entry points at it: it is dead.
        let Some((place, _)) = self.index.find(hash, |it| it == at) else {
            return true;
        };
        let gone = self.is_gone(at, header);
        if !gone {
            let usable = self.segments.usable();
            let uses = self.segments.uses(at, header.bits);
            let worth = self.copies.weigh(uses, header.footprint(), age, usable);
            let kept = match keep {
                _ if self.protected == Some(at) => true,
                Survivors::None => false,
                Survivors::Read => worth && uses::was_used(header.bits),
                Survivors::Used => worth,
                Survivors::All => true,
            };
            if kept && self.move_item(hash, place, (at, header), age) {
                return true;
            }
            if kept && (self.lossless || self.waits(header.footprint(), keep)) {
                return false;
            }
        }
        self.index.remove(place);
        self.count_dropped((at, header), gone);
        self.bury(at, header);
        true
    }

    /// Returns whether an item of `len` bytes without room is kept nevertheless: one of many segments,
    /// if those can be gathered, or all are kept. In a window that is cleared, none is.
    fn waits(&self, len: usize, keep: Survivors) -> bool {
        let span = self.segments.span(len);
        span > 1
            && self.cleaner.is_some_and(|walk| !walk.whole)
            && (keep == Survivors::All || self.scattered(span).is_some())
    }

    fn move_item(
        &mut self,
        hash: KeyHash,
        place: Place,
        (at, header): (Offset, &Header),
        age: u64,
    ) -> bool {
        let (len, deadline) = (header.footprint(), header.deadline);
        let kind = self.segments.kind(deadline, self.now, len, Kind::OLD);
        // Half of the uses, of half the time; an unread copy has none, and stays as old as it is.
        let age = if uses::is_unread_copy(header.bits) {
            age
        } else {
            age / 2
        };
        let Some(to) = self.take_copy(kind, len, age) else {
            return false;
        };
        self.items.copy(at, len, to);
        self.segments.commit(to);
        self.index.point(place, hash, to);
        let sparse = self.survivors() == Survivors::All;
        let bits = match sparse {
            true => uses::after_copy(header.bits),
            false => self.segments.after_copy(at, header.bits),
        };
        self.items.set_bits(to, bits);
        self.segments.note(to, deadline, bits, age);
        self.segments.copied(at, to, header.bits, bits);
        // After the copy, so that a kill leaves two of the item rather than none.
        self.bury(at, header);
        self.copies.allowed -= len as isize;
        self.counters.kept += u64::from(sparse);
        self.counters.refreshed += u64::from(!sparse);
        if self.protected == Some(at) {
            self.protected = Some(to);
        }
        true
    }

    /// Copies a reservation, with the part of the value that has arrived, or refuses it.
    fn carry_staged(&mut self, at: Offset, keep: Survivors) -> bool {
        // It has ended: nothing of it is live.
        let Some((len, came)) = self.staged_at(at) else {
            return true;
        };
        match self.take_copy(Kind::STAGED, len, 0) {
            Some(to) => {
                // Only what has arrived is copied.
                self.items.copy(at, came, to);
                self.segments.commit(to);
                self.segments.reserved(to, true);
                let header = self.items.header(to);
                self.move_staged(&header, at, Some(to));
            }
            None if keep == Survivors::All && self.lossless => return false,
            None => {
                let header = self.items.header(at);
                self.move_staged(&header, at, None);
            }
        }
        self.segments.reserved(at, false);
        self.segments.release(at, len);
        true
    }

    /// Clears `span` segments from `first` on, for a run; they are held. Returns whether nothing was
    /// left that had to be kept. No segment is half cleaned when it begins.
    pub(super) fn clear_window(&mut self, first: usize, span: usize, keep: Survivors) -> bool {
        let mut cleared = self.cleaner.is_none();
        self.segments.hold(first, span);
        for number in first..first + span {
            let owner = self.segments.number(Offset(self.segments.start(number)));
            if matches!(self.segments.heads[owner].state, State::Held) {
                continue;
            }
            if cleared {
                self.walk(owner, true);
                cleared = self.finish_cleaning(keep);
                // The walk has freed segments of the window: they are held, too, or a copy would go
                // there.
                self.segments.hold(first, span);
            }
        }
        cleared
    }
}
