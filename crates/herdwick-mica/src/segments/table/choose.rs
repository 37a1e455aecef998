//! Which segment is cleaned, and which window of segments is cleared for a run.

use std::ops::{AddAssign, SubAssign};

use herdwick_layout::bucket::Offset;
use herdwick_request::Second;

use super::{Head, Segments, State};

/// The largest window of the table that one search examines.
const SEARCH: usize = 2048;

/// What it costs to clear a window of segments, the dearest first.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// Segments that the cleaner walks over, and could not finish.
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

    /// Returns the uses of a segment a byte and byte stored since they are counted.
    fn density(&self, head: &Head) -> f64 {
        let age = (self.stored - head.since).max(self.age_min()) as f64;
        let bytes = (head.span as usize) << self.shift;
        f64::from(head.uses) / (bytes as f64 * age)
    }

    fn age_min(&self) -> u64 {
        (self.usable() / 32) as u64
    }

    /// Returns the bytes stored since the uses of the items of a run are counted.
    pub(in crate::segments) fn age_of(&self, number: usize) -> u64 {
        (self.stored - self.heads[number].born).max(self.age_min())
    }

    /// Chooses the sealed segment that costs least to clean: one with no valid items; else that with
    /// the fewest live bytes if all are to be `kept`; else that with the fewest uses a byte.
    pub(in crate::segments) fn choose(&mut self, now: Second, kept: bool) -> Option<usize> {
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
                -1.0
            } else if kept {
                head.live as f64 / ((head.span as usize) << self.shift) as f64
            } else {
                self.density(head)
            };
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, number));
            }
        }
        if count > SEARCH {
            self.clean_hand = (self.clean_hand + SEARCH) % count;
        }
        best.map(|(_, number)| number)
    }

    /// Halves uses that have been counted for as many bytes as the store holds, with their time.
    fn fade(&mut self, number: usize) {
        let (stored, most) = (self.stored, self.usable() as u64);
        let head = &mut self.heads[number];
        if stored - head.since > most {
            head.uses /= 2;
            head.since = stored - (stored - head.since) / 2;
        }
    }

    /// Chooses the `span` adjacent segments that cost least to clear; free ones cost nothing.
    /// Returns the first of them, and their live bytes; `None` if the cleaner walks over a segment in
    /// each window.
    pub(in crate::segments) fn choose_window(&self, span: usize) -> Option<(usize, usize)> {
        let last = self.heads.len().saturating_sub(span);
        let mut sum = Cost::default();
        (0..span).for_each(|number| sum += self.cost(number));
        let mut best = (sum, 0);
        for first in 1..=last.min(SEARCH) {
            sum += self.cost(first + span - 1);
            sum -= self.cost(first - 1);
            best = best.min((sum, first));
        }
        let (cost, first) = best;
        (cost.barred == 0).then_some((first, cost.live))
    }

    /// Returns the cost of clearing a segment; a run costs the same in each of its segments.
    fn cost(&self, number: usize) -> Cost {
        let head = &self.heads[self.number(Offset(self.start(number)))];
        Cost {
            barred: usize::from(head.state == State::Cleaning),
            withheld: usize::from(head.state == State::Withheld),
            staged: usize::from(head.staged > 0),
            live: head.live / head.span as usize,
        }
    }
}
