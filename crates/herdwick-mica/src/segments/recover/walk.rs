//! Walks over runs in a file: which items in them are live, and what is damaged.

use std::ops::Range;

use herdwick_layout::{
    bucket::Offset,
    item::{ALIGN, Found, LINE, examine},
};
use herdwick_request::{HashKey, KeyHash, Second};

use crate::{
    index::Division,
    items::Items,
    segments::{
        book::{Book, RunLeft},
        table::Contents,
    },
};

/// What walks over some runs have found.
#[derive(Default)]
pub(super) struct Walked {
    /// Live items with the hashes of their keys, for each part of the index.
    items: Vec<Vec<(Offset, KeyHash)>>,
    pub(super) runs: Vec<WalkedRun>,
}

impl Walked {
    /// Returns the items whose entries are in a part of the index.
    pub(super) fn items_of(&self, part: usize) -> &[(Offset, KeyHash)] {
        &self.items[part]
    }

    /// Forgets all, but keeps the memory.
    fn clear(&mut self, parts: usize) {
        self.items.resize_with(parts, Vec::new);
        self.items.iter_mut().for_each(Vec::clear);
        self.runs.clear();
    }
}

/// What a walk over a run has found.
pub(super) struct WalkedRun {
    pub(super) number: usize,
    pub(super) contents: Contents,
    /// Damaged bytes, each up to the next beginning of an item that was noted.
    pub(super) damage: Vec<Range<usize>>,
    /// Those behind which none was noted, to the end of the run.
    pub(super) lost: Option<Range<usize>>,
}

/// What a walk reads.
#[derive(Clone, Copy)]
pub(super) struct Walker<'a> {
    pub(super) items: &'a Items,
    pub(super) book: &'a Book,
    pub(super) segment_bytes: usize,
    pub(super) hash_key: HashKey,
    pub(super) now: Second,
    pub(super) division: Division,
}

impl Walker<'_> {
    /// Walks over each of some runs.
    pub(super) fn walk_all(&self, runs: &[RunLeft], walked: &mut Walked) {
        walked.clear(self.division.parts());
        for run in runs {
            let run = self.walk(run, &mut walked.items);
            walked.runs.push(run);
        }
    }

    fn walk(&self, run: &RunLeft, items: &mut [Vec<(Offset, KeyHash)>]) -> WalkedRun {
        let start = run.number * self.segment_bytes;
        let (mut at, end) = (start + run.first, start + run.written);
        let mut walked = WalkedRun {
            number: run.number,
            contents: Contents::default(),
            damage: Vec::new(),
            lost: None,
        };
        while at < end {
            match examine(self.items.bytes(Offset(at), end - at)) {
                Found::Item(len) => {
                    self.keep(Offset(at), len, &mut walked.contents, items);
                    at += len;
                }
                Found::Dead(len) => {
                    // A longer one was damage once: cleaning regains it.
                    if len < LINE && self.items.is_gap(Offset(at)) {
                        walked.contents.gaps += len;
                    }
                    at += len;
                }
                Found::Damaged => at = self.pass(at, end, &mut walked),
            }
        }
        walked
    }

    /// Counts an item, unless it has expired. None of the run is flushed.
    #[inline]
    fn keep(
        &self,
        at: Offset,
        len: usize,
        contents: &mut Contents,
        items: &mut [Vec<(Offset, KeyHash)>],
    ) {
        let header = self.items.header(at);
        if !header.deadline.passed(self.now) {
            let hash = self.hash_key.hash(self.items.key(at));
            items[self.division.part(hash)].push((at, hash));
            contents.add(&header, len);
        }
    }

    /// Passes over the damaged bytes at `at`. Returns where the walk continues.
    fn pass(&self, at: usize, end: usize, walked: &mut WalkedRun) -> usize {
        let next = self.book.next_beginning(at, end);
        match next.filter(|next| next.is_multiple_of(ALIGN)) {
            Some(next) => {
                walked.damage.push(at..next);
                next
            }
            None => {
                walked.lost = Some(at..end);
                end
            }
        }
    }
}
