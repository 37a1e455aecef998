//! Free segments: found, held for a run, and cut off a run that is being cleaned.

use std::ops::Range;

use herdwick_layout::bucket::Offset;

use super::{Head, SPARE, Segments, State};
use crate::segments::book::{Move, RunLeft};

impl Segments {
    /// Ends a run without live items; each of its segments is in `state` from now on.
    pub(in crate::segments) fn vacate(&mut self, number: usize, state: State) {
        debug_assert_eq!(self.heads[number].live, 0);
        let head = self.heads[number];
        let Head { span, sequence, .. } = head;
        self.gaps -= head.gaps;
        let span = span as usize;
        self.flushed_runs -= usize::from(self.flushed_runs > 0 && sequence < self.flushed);
        // Out of the book before the segments are free: the next run in them writes over the items.
        self.book.cross_out(number);
        self.readers.leave(number..number + span);
        if state == State::Free {
            return self.free_all(number..number + span);
        }
        for next in number..number + span {
            self.heads[next] = Head {
                state,
                ..Head::FREE
            };
        }
    }

    /// Frees the segments of a run that end before the item at `at`: the cleaner has passed them.
    /// Returns the first segment that is left.
    #[inline]
    pub(in crate::segments) fn free_before(&mut self, number: usize, at: Offset) -> usize {
        let begin = at.0 >> self.shift;
        if begin > number {
            self.cut(number, begin, at);
        }
        begin
    }

    fn cut(&mut self, number: usize, begin: usize, at: Offset) {
        let cut = (begin - number) << self.shift;
        let head = self.heads[number];
        let end = number + head.span as usize;
        // Which part of its gaps went is not known: as great a part as of its segments.
        let gaps = head.gaps / head.span as usize * (end - begin);
        self.gaps -= head.gaps - gaps;
        self.free_all(number..begin);
        self.heads[begin] = Head {
            span: (end - begin) as u32,
            first: at.0 - self.start(begin),
            written: head.written - cut,
            gaps,
            ..head
        };
        self.book.cut(number, &self.run(begin));
        self.readers.leave(number..begin);
        let rest = State::Continues(begin as u32);
        (begin + 1..end).for_each(|next| self.heads[next].state = rest);
    }

    fn run(&self, number: usize) -> RunLeft {
        let head = &self.heads[number];
        RunLeft {
            number,
            first: head.first,
            written: head.written,
            sequence: head.sequence,
        }
    }

    /// Returns a free segment.
    pub(in crate::segments) fn find_free(&mut self) -> Option<usize> {
        if self.free == 0 {
            return None;
        }
        let count = self.heads.len();
        let places = (0..count).map(|n| (self.hand + n) % count);
        let mut free = places.filter(|&number| self.heads[number].state == State::Free);
        let found = free.next()?;
        self.hand = found;
        Some(found)
    }

    /// Returns the first of `span` adjacent free segments.
    pub(in crate::segments) fn find_run(&self, span: usize) -> Option<usize> {
        let mut len = 0;
        if self.free < span {
            return None;
        }
        for (number, head) in self.heads.iter().enumerate() {
            #[cfg(test)]
            self.looked
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            len = if head.state == State::Free {
                len + 1
            } else {
                0
            };
            if len == span {
                return Some(number + 1 - span);
            }
        }
        None
    }

    /// Returns the first of `span` adjacent free segments, or any free one.
    pub(in crate::segments) fn find_free_run(&mut self, span: usize) -> Option<usize> {
        match span {
            1 => self.find_free(),
            _ => self.find_run(span),
        }
    }

    /// Returns whether a segment is free.
    pub(in crate::segments) fn is_free(&self, number: usize) -> bool {
        self.heads[number].state == State::Free
    }

    /// Returns the shortest stretch of segments with `span` free ones, from the first to behind the
    /// last of these; the others in it are runs that can be moved.
    pub(in crate::segments) fn scattered(&self, span: usize) -> Option<(usize, usize)> {
        if self.free < span {
            return None;
        }
        let (mut best, mut first, mut free): (Option<(usize, usize)>, _, _) = (None, 0, 0);
        for (number, head) in self.heads.iter().enumerate() {
            match head.state {
                State::Held | State::Withheld | State::Ceded => (first, free) = (number + 1, 0),
                State::Free => free += 1,
                _ => {}
            }
            if free < span || free == 0 {
                continue;
            }
            while !self.is_free(first) {
                first += 1;
            }
            let (from, to) = best.unwrap_or((0, usize::MAX));
            if number + 1 - first < to - from {
                best = Some((first, number + 1));
            }
            (first, free) = (first + 1, free - 1);
        }
        best
    }

    /// Records that a run was moved to the segments before it.
    pub(in crate::segments) fn move_head(&mut self, run: Move) {
        let Move { from, to } = run;
        let head = self.heads[from];
        let span = head.span as usize;
        self.heads[to..to + span].fill(Head {
            state: State::Continues(to as u32),
            ..Head::FREE
        });
        self.heads[to] = head;
        let vacated = self.vacated(run, span);
        // As many as it has taken.
        self.free -= vacated.len();
        self.free_all(vacated.clone());
        self.readers.enter(to..to + span, head.sequence);
        self.readers.leave(vacated);
        if head.state == State::Open {
            self.open[head.kind.0 as usize] = Some(to as u32);
        }
    }

    /// Returns the segments that a run of `span` leaves when it is moved.
    pub(in crate::segments) fn vacated(&self, run: Move, span: usize) -> Range<usize> {
        run.from.max(run.to + span)..run.from + span
    }

    /// Returns whether more than the spare segments are free, and a limit is reached.
    pub(in crate::segments) fn has_spare(&self) -> bool {
        self.free > SPARE && self.withheld >= self.withhold
    }

    /// Records that segments were opened for a new item, not for copies.
    pub(in crate::segments) fn opened(&mut self) {
        self.most_free = self.most_free.min(self.free + self.withheld);
    }

    /// Returns whether more segments are free or withheld than before, at the end of cleaning one.
    pub(in crate::segments) fn gains(&mut self) -> bool {
        let free = self.free + self.withheld;
        let gains = free > self.most_free;
        self.most_free = self.most_free.max(free);
        gains
    }

    /// Makes a withheld segment free. Returns the number of segments that it has looked at.
    pub(in crate::segments) fn restore_one(&mut self) -> usize {
        let count = self.heads.len();
        let mut places = (0..count).map(|n| (self.withheld_hand + n) % count);
        let found = places.position(|number| self.heads[number].state == State::Withheld);
        if let Some(ahead) = found {
            let number = (self.withheld_hand + ahead) % count;
            self.heads[number].state = State::Free;
            self.free += 1;
            self.withheld_hand = number;
        }
        // Even if none is found: the callers loop until it has fallen.
        self.withheld -= 1;
        found.unwrap_or(count) + 1
    }

    /// Keeps the free and the withheld segments among `span` from `first` on for one run.
    pub(in crate::segments) fn hold(&mut self, first: usize, span: usize) {
        for number in first..first + span {
            let state = self.heads[number].state;
            self.free -= usize::from(state == State::Free);
            self.withheld -= usize::from(state == State::Withheld);
            if matches!(state, State::Free | State::Withheld) {
                self.heads[number].state = State::Held;
            }
        }
    }

    /// Frees those among `span` segments from `first` on that were kept for one run.
    pub(in crate::segments) fn let_go(&mut self, first: usize, span: usize) {
        for number in first..first + span {
            if self.heads[number].state == State::Held {
                self.free_all(number..number + 1);
            }
        }
    }

    /// Returns the number of free segments among `span` from `first` on.
    pub(in crate::segments) fn free_in(&self, first: usize, span: usize) -> usize {
        let window = self.heads[first..first + span].iter();
        window.filter(|head| head.state == State::Free).count()
    }

    /// Returns the numbers of free and of withheld segments, by looking at each.
    #[cfg(test)]
    pub(in crate::segments) fn recount(&self) -> (usize, usize) {
        let count = |state| self.heads.iter().filter(|head| head.state == state).count();
        (count(State::Free), count(State::Withheld))
    }

    /// Returns how many segments in a row are withheld, from a segment on.
    #[cfg(test)]
    pub(in crate::segments) fn withheld_since(&self, number: usize) -> usize {
        let heads = self.heads[number..].iter();
        heads
            .take_while(|head| head.state == State::Withheld)
            .count()
    }

    /// Withholds all segments but so many.
    #[cfg(test)]
    pub(in crate::segments) fn withhold_all_but(&mut self, free: usize) {
        for head in &mut self.heads[free..] {
            head.state = State::Withheld;
        }
        (self.free, self.withheld) = (free, self.heads.len() - free);
    }
}
