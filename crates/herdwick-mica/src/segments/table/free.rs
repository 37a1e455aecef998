//! Free segments: found, held for a run, and cut off a run that is being cleaned.

use herdwick_layout::bucket::Offset;

use super::{Head, SPARE, Segments, State};
use crate::segments::book::RunLeft;

impl Segments {
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
        self.heads[number..begin].fill(Head::FREE);
        self.free += begin - number;
        self.heads[begin] = Head {
            span: (end - begin) as u32,
            first: at.0 - self.start(begin),
            written: head.written - cut,
            ..head
        };
        self.book.cut(number, &self.run(begin));
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

    /// Returns whether more than the spare segments are free, and a limit is reached.
    pub(in crate::segments) fn has_spare(&self) -> bool {
        self.free > SPARE && self.withheld >= self.withhold
    }

    /// Makes a withheld segment free.
    pub(in crate::segments) fn restore_one(&mut self) {
        let withheld = |head: &&mut Head| head.state == State::Withheld;
        if let Some(head) = self.heads.iter_mut().find(withheld) {
            head.state = State::Free;
            self.free += 1;
        }
        self.withheld -= 1;
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

    /// Ends [`Self::hold`]: the segments are free.
    pub(in crate::segments) fn let_go(&mut self, first: usize, span: usize) {
        for head in &mut self.heads[first..first + span] {
            if head.state == State::Held {
                head.state = State::Free;
                self.free += 1;
            }
        }
    }

    /// Returns the number of free segments among `span` from `first` on.
    pub(in crate::segments) fn free_in(&self, first: usize, span: usize) -> usize {
        let window = self.heads[first..first + span].iter();
        window.filter(|head| head.state == State::Free).count()
    }
}
