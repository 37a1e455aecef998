//! What the table notes of items: the last deadline of a segment, and how often its items were used.

use herdwick_layout::{
    bucket::Offset,
    item::{Header, bit},
};
use herdwick_request::Deadline;

use super::{Kind, Segments, until};
use crate::uses::{USE, after_copy, after_first_copy, is_unread_copy, is_unused, was_used, weight};

/// What a new item has of the one that it replaces.
#[derive(Clone, Copy)]
pub(crate) struct Past {
    /// Which items it shares a segment with, if it lasts.
    pub(in crate::segments) kind: Kind,
    /// Bytes stored since its uses are counted.
    pub(in crate::segments) age: u64,
}

impl Past {
    pub(crate) const NONE: Self = Self {
        kind: Kind::YOUNG,
        age: 0,
    };
}

/// The live items of a run in a file, and its gaps.
#[derive(Default)]
pub(in crate::segments) struct Contents {
    pub(in crate::segments) items: u64,
    pub(in crate::segments) bytes: usize,
    /// Bytes of gaps.
    pub(in crate::segments) gaps: usize,
    until: u32,
    uses: u32,
    unused: u32,
    unread: u32,
}

impl Contents {
    /// Counts a live item of `len` bytes.
    #[inline]
    pub(in crate::segments) fn add(&mut self, header: &Header, len: usize) {
        self.items += 1;
        self.bytes += len;
        self.until = self.until.max(until(header.deadline));
        self.uses += weight(header.bits);
        self.unused += u32::from(is_unused(header.bits));
        self.unread += u32::from(is_unread_copy(header.bits));
    }
}

impl Segments {
    /// Counts what was found in a run that is recovered. Its items count as stored in no kind.
    pub(in crate::segments) fn restore(&mut self, number: usize, contents: &Contents) {
        let head = &mut self.heads[number];
        head.live += contents.bytes;
        head.gaps += contents.gaps;
        head.until = head.until.max(contents.until);
        head.uses += contents.uses;
        head.unused += contents.unused;
        head.unread += contents.unread;
        self.gaps += contents.gaps;
    }

    /// Records an item in the open segment of a kind: its deadline, the bits with the uses that it brings
    /// along, and for how many stored bytes they were counted.
    #[inline]
    pub(in crate::segments) fn note(&mut self, at: Offset, deadline: Deadline, bits: u8, age: u64) {
        let born = self.stored.saturating_sub(age);
        let head = self.head(at);
        head.until = head.until.max(until(deadline));
        head.uses += weight(bits);
        head.unused += u32::from(is_unused(bits));
        head.unread += u32::from(is_unread_copy(bits));
        if age > 0 {
            // A moving mean over the items that brought uses along.
            head.born = head.born - head.born / 8 + born / 8;
            head.since = head.born;
        } else {
            let kind = head.kind;
            self.reuse.stored(kind);
        }
    }

    /// Records that an item with `before` as bits was copied from `at` to `to`, where it has `after`.
    #[inline]
    pub(in crate::segments) fn copied(&mut self, at: Offset, to: Offset, before: u8, after: u8) {
        // Only such items have a first use still to be counted.
        if is_unused(after) || is_unread_copy(after) {
            let kind = |at| self.heads[self.number(at)].kind;
            let (from, to) = (kind(at), kind(to));
            self.reuse.moved(from, to, was_used(before));
        }
    }

    /// Returns what the uses of the item at `at` count for, if it has these bits.
    pub(in crate::segments) fn uses(&self, at: Offset, bits: u8) -> f64 {
        let kind = self.heads[self.number(at)].kind;
        if is_unused(bits) {
            f64::from(USE) * self.reuse.expected(kind)
        } else if is_unread_copy(bits) {
            f64::from(USE) * self.reuse.expected_unread(kind)
        } else {
            weight(bits).into()
        }
    }

    /// Returns the bits of a copy of the item at `at`, which was chosen among others.
    pub(in crate::segments) fn after_copy(&self, at: Offset, bits: u8) -> u8 {
        if self.heads[self.number(at)].kind.is_copied() {
            after_copy(bits)
        } else {
            after_first_copy(bits)
        }
    }

    /// Returns what an item that replaces the one at `at` inherits.
    pub(crate) fn past(&self, at: Offset) -> Past {
        Past {
            kind: Kind::OLD,
            age: self.age_of(self.number(at)) / 2,
        }
    }

    /// As [`Self::past`], for an item that keeps all its uses.
    pub(crate) fn past_whole(&self, at: Offset) -> Past {
        Past {
            kind: Kind::OLD,
            age: self.age_of(self.number(at)),
        }
    }

    /// Records that the item at `at` was used, which has changed its bits.
    #[inline]
    pub(crate) fn used(&mut self, at: Offset, before: u8, after: u8) {
        let head = self.head(at);
        // A use never lowers the weight.
        head.uses += weight(after) - weight(before);
        if bit::level(before) > 0 {
            return;
        }
        // The first use of a stored item, copied meanwhile or not.
        let counted = match is_unused(before) {
            true => &mut head.unused,
            false => &mut head.unread,
        };
        // Saturating here and below: uses fade, so that a count may be less than what is
        // subtracted.
        *counted = counted.saturating_sub(1);
        let kind = head.kind;
        self.reuse.read(kind);
    }

    /// Subtracts an item that is dead or was moved, with its uses, as far as they have not faded.
    #[inline]
    pub(crate) fn bury(&mut self, at: Offset, len: usize, bits: u8) {
        let head = self.head(at);
        head.uses = head.uses.saturating_sub(weight(bits));
        head.unused = head.unused.saturating_sub(u32::from(is_unused(bits)));
        head.unread = head.unread.saturating_sub(u32::from(is_unread_copy(bits)));
        self.release(at, len);
    }
}
