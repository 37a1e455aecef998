//! Which segment is cleaned, and which window of segments is cleared for a run.

use std::ops::{AddAssign, Range, SubAssign};

use herdwick_layout::bucket::Offset;
use herdwick_request::Second;

use super::{Head, Segments, State};
use crate::uses::USE;

/// Segments that one search examines, if it finds what it looks for among them.
const SEARCH: usize = 2048;
/// Where none was found, one is searched for again after so much of a segment was stored.
const PAUSE: usize = 8;
/// A segment of which a larger part is live is not worth cleaning if all items are to be kept.
const FULL: f64 = 31.0 / 32.0;
/// Uses count half after one part in so many of the store's bytes were stored.
const FADE: usize = 4;
/// The part of a segment by which it counts as fuller for each time that its cleaning was given up.
const GIVEN_UP: f64 = 1.0 / 8.0;

/// What it costs to clear a window of segments, the dearest first.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// Segments that the cleaner walks over, and could not finish, or that are left out.
    barred: usize,
    /// Segments that a limit has withheld: their memory is taken again.
    withheld: usize,
    /// Segments with reservations: a value that is arriving is moved.
    staged: usize,
    /// Bytes of live items.
    live: usize,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.barred += other.barred;
        self.withheld += other.withheld;
        self.staged += other.staged;
        self.live += other.live;
    }
}

impl SubAssign for Cost {
    fn sub_assign(&mut self, other: Self) {
        self.barred -= other.barred;
        self.withheld -= other.withheld;
        self.staged -= other.staged;
        self.live -= other.live;
    }
}

impl Segments {
    /// Returns whether all items of a run are flushed or have expired.
    fn is_over(&self, head: &Head, now: Second) -> bool {
        head.sequence < self.flushed || head.until <= now.0
    }

    /// Returns the part of a run that cleaning is expected to keep, if it keeps the items with more than
    /// `usual` uses a byte and byte stored: of live items the less, the fewer uses they have.
    fn part_kept(&self, head: &Head, usual: f64) -> f64 {
        // A segment that was just filled would have an age of nothing, and so a rate without bound.
        let age = |since: u64| (self.stored - since).max(self.age_min()) as f64;
        let unused = f64::from(head.unused) * self.reuse.expected(head.kind)
            + f64::from(head.unread) * self.reuse.expected_unread(head.kind);
        let uses =
            f64::from(head.uses) / age(head.since) + f64::from(USE) * unused / age(head.born);
        let (bytes, live) = ((head.span as usize) << self.shift, head.live as f64);
        let dense = uses / live.max(1.0);
        // Between 0, for no uses, and 1, for many: half of the live bytes if they have as many as
        // is usual.
        live * dense / (usual + dense) / bytes as f64
    }

    fn age_min(&self) -> u64 {
        (self.usable() / 32) as u64
    }

    /// Returns the bytes stored since the uses of the items of a run are counted.
    pub(in crate::segments) fn age_of(&self, number: usize) -> u64 {
        (self.stored - self.heads[number].born).max(self.age_min())
    }

    /// Chooses the sealed segment that costs least to clean: one with no valid items; else that with
    /// the fewest live bytes if all are to be `kept`, those later whose cleaning was given up before;
    /// else that of which the smallest part has more than the `usual` uses. Examines [`SEARCH`] segments, and more until there is
    /// one: a segment that is full of live bytes is none if all are to be kept.
    pub(in crate::segments) fn choose(
        &mut self,
        now: Second,
        kept: bool,
        usual: f64,
    ) -> Option<usize> {
        let count = self.heads.len();
        // Bounded by one turn around the table.
        for _ in 0..count.div_ceil(SEARCH) {
            let found = self.choose_here(now, kept, usual);
            // Small tables are searched whole, so the hand stays.
            if count > SEARCH {
                self.clean_hand = (self.clean_hand + SEARCH) % count;
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn choose_here(&mut self, now: Second, kept: bool, usual: f64) -> Option<usize> {
        let count = self.heads.len();
        let mut best: Option<(f64, usize)> = None;
        for n in 0..count.min(SEARCH) {
            let number = (self.clean_hand + n) % count;
            let head = &self.heads[number];
            // A reservation is moved only where a run needs its place.
            if head.state != State::Sealed || head.staged > 0 {
                continue;
            }
            self.fade(number);
            let head = &self.heads[number];
            let cost = if self.is_over(head, now) {
                // Free of charge: before any other, whose cost is 0 at least.
                -1.0
            } else if kept {
                // Copies leave as many gaps as there are.
                let bytes = ((head.span as usize) << self.shift) - head.gaps;
                let part = head.live as f64 / bytes as f64;
                if part > FULL {
                    continue;
                }
                part + f64::from(head.left) * GIVEN_UP
            } else {
                self.part_kept(head, usual)
            };
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, number));
            }
        }
        best.map(|(_, number)| number)
    }

    /// Halves uses that have been counted for a part of the bytes that the store holds, with their time.
    fn fade(&mut self, number: usize) {
        let (stored, most) = (self.stored, (self.usable() / FADE) as u64);
        let head = &mut self.heads[number];
        if stored - head.since > most {
            head.uses /= 2;
            // Half of the uses, and half of the time for which they are counted.
            head.since = stored - (stored - head.since) / 2;
        }
    }

    /// Chooses the `span` adjacent segments that cost least to clear; free ones cost nothing. Those of
    /// longer runs are left out if they are to be `single`. Returns the first of them, and their live
    /// bytes; `None` if the cleaner walks over a segment in each window, or none has segments of the kind.
    pub(in crate::segments) fn choose_window(
        &mut self,
        span: usize,
        single: bool,
    ) -> Option<(usize, usize)> {
        let last = self.kept - span;
        if self.window_hand > last {
            // It was left there by a search for fewer segments.
            self.window_hand = 0;
        }
        let mut best: Option<(Cost, usize)> = None;
        for _ in 0..=last / SEARCH {
            let end = (self.window_hand + SEARCH).min(last + 1);
            let here = self.cheapest_window(self.window_hand..end, span, single);
            best = best.into_iter().chain(here).min();
            self.window_hand = if end > last { 0 } else { end };
            if best.is_some_and(|(cost, _)| cost.barred == 0 && cost.withheld == 0) {
                break;
            }
        }
        let (cost, first) = best?;
        (cost.barred == 0).then_some((first, cost.live))
    }

    /// Returns the cost of the cheapest of the windows that begin in a range, and its first segment.
    fn cheapest_window(
        &self,
        firsts: Range<usize>,
        span: usize,
        single: bool,
    ) -> Option<(Cost, usize)> {
        // A sliding sum: each step adds the segment that comes in and subtracts the one that
        // leaves.
        let mut sum = Cost::default();
        (0..span).for_each(|n| sum += self.cost(firsts.start + n, single));
        let costs = firsts.clone().map(|first| {
            if first > firsts.start {
                sum += self.cost(first + span - 1, single);
                sum -= self.cost(first - 1, single);
            }
            (sum, first)
        });
        costs.min()
    }

    /// Returns the cost of clearing a segment; a run costs the same in each of its segments.
    fn cost(&self, number: usize, single: bool) -> Cost {
        let head = &self.heads[self.number(Offset(self.start(number)))];
        let barred = head.state == State::Cleaning || single && head.span > 1;
        Cost {
            barred: usize::from(barred),
            withheld: usize::from(head.state == State::Withheld),
            staged: usize::from(head.staged > 0),
            live: head.live / head.span as usize,
        }
    }

    /// Records that no segment was worth cleaning ahead of need.
    pub(in crate::segments) fn found_none(&mut self) {
        self.next_search = self.stored + (self.size() / PAUSE) as u64;
    }

    /// Returns whether enough was stored since to search again.
    #[inline]
    pub(in crate::segments) fn may_search(&self) -> bool {
        self.stored >= self.next_search
    }

    /// Makes a run one that is walked by the cleaner.
    pub(in crate::segments) fn begin_cleaning(&mut self, number: usize) {
        // The cleaner may walk over the segment that is being filled: the next item opens another.
        if self.heads[number].state == State::Open {
            let kind = self.heads[number].kind.0 as usize;
            self.open[kind] = None;
        }
        self.heads[number].state = State::Cleaning;
    }

    /// Gives up the cleaning of what is left of a run.
    pub(in crate::segments) fn leave(&mut self, number: usize) {
        self.postpone_ceding(number);
        let head = &mut self.heads[number];
        head.state = State::Sealed;
        head.left += 1;
        if head.live == 0 {
            self.vacate(number, State::Free);
        }
    }
}
