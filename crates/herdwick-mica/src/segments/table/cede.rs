//! Segments that are ceded, the last ones first: their memory is the index's.

use std::ops::Range;

use herdwick_layout::bucket::Offset;

use super::{Head, Segments, State};

impl Segments {
    /// Decides to cede the last segment that is kept. It is ceded at once if it is free,
    /// or withheld by a limit, which another one is withheld for.
    pub(crate) fn cede(&mut self) {
        debug_assert_eq!(self.ceding(), None);
        self.kept -= 1;
        match self.heads[self.kept].state {
            State::Free => self.free -= 1,
            State::Withheld => self.withheld -= 1,
            _ => return,
        }
        self.free_one(self.kept);
    }

    /// Keeps the segment that was to be ceded.
    pub(crate) fn keep_ceding(&mut self) {
        debug_assert!(self.ceding().is_some());
        self.kept += 1;
    }

    /// Takes back the segment that was ceded last; it is free.
    pub(crate) fn take_back(&mut self) {
        debug_assert!(self.ceding().is_none() && self.ceded > 0);
        let number = self.kept;
        self.kept += 1;
        self.ceded -= 1;
        self.free_one(number);
    }

    /// Returns the segment that is to be ceded, and is not free yet.
    pub(crate) fn ceding(&self) -> Option<usize> {
        (self.kept + self.ceded < self.heads.len()).then_some(self.kept)
    }

    /// Returns where the bytes of ceded segments begin.
    pub(crate) fn ceded_from(&self) -> usize {
        self.start(self.heads.len() - self.ceded)
    }

    /// Returns the bytes of the `n`th segment that was ceded.
    pub(crate) fn ceded_bytes(&self, n: usize) -> Range<usize> {
        let number = self.heads.len() - n;
        self.start(number)..self.start(number + 1)
    }

    /// Returns the run to clean for a segment to be ceded, if it can be cleaned.
    pub(crate) fn ceding_run(&mut self) -> Option<usize> {
        let number = self.number(Offset(self.start(self.ceding()?)));
        if self.stored < self.next_ceding {
            return None;
        }
        if self.heads[number].state == State::Open {
            let kind = self.heads[number].kind;
            self.seal(kind);
        }
        let head = &self.heads[number];
        (head.state == State::Sealed && head.staged == 0).then_some(number)
    }

    /// Records that the cleaning of a run was given up: if it was the one to be ceded, others go first
    /// until a segment's bytes were stored.
    pub(in crate::segments) fn postpone_ceding(&mut self, number: usize) {
        let run = number..number + self.heads[number].span as usize;
        if self.ceding().is_some_and(|ceding| run.contains(&ceding)) {
            self.next_ceding = self.stored + self.size() as u64;
        }
    }

    /// Makes segments free, or ceded if they are not kept.
    pub(in crate::segments) fn free_all(&mut self, segments: Range<usize>) {
        for number in segments {
            self.free_one(number);
        }
    }

    fn free_one(&mut self, number: usize) {
        self.heads[number] = Head::FREE;
        if number < self.kept {
            self.free += 1;
        } else {
            self.heads[number].state = State::Ceded;
            self.ceded += 1;
        }
    }
}
