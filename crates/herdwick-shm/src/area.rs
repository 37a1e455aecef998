use std::ops::Range;

use herdwick_mem::LINE;

/// Hands out runs of whole cache lines from one range of a file; first fit, neighbours merge.
///
/// The book-keeping is private memory of the side that owns the area: nothing a peer writes
/// reaches it.
#[derive(Debug)]
pub(crate) struct Area {
    /// Sorted, disjoint, never touching one another.
    free: Vec<Range<usize>>,
    size: usize,
}

impl Area {
    /// The whole lines of `range`.
    pub(crate) fn new(range: Range<usize>) -> Self {
        let range = range.start.next_multiple_of(LINE)..range.end / LINE * LINE;
        Self {
            size: range.len(),
            free: if range.is_empty() {
                Vec::new()
            } else {
                vec![range]
            },
        }
    }

    /// Bytes there are, free or not.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// `len` bytes, rounded up to lines; `None` when no run is long enough.
    pub(crate) fn take(&mut self, len: usize) -> Option<Range<usize>> {
        let len = len.max(1).checked_next_multiple_of(LINE)?;
        let at = self.free.iter().position(|run| run.len() >= len)?;
        let start = self.free[at].start;
        self.free[at].start += len;
        if self.free[at].is_empty() {
            self.free.remove(at);
        }
        Some(start..start + len)
    }

    /// Takes back a range that [`Area::take`] gave.
    pub(crate) fn give(&mut self, range: Range<usize>) {
        let at = self.free.partition_point(|run| run.start < range.start);
        self.free.insert(at, range);
        if at + 1 < self.free.len() && self.free[at].end == self.free[at + 1].start {
            self.free[at].end = self.free.remove(at + 1).end;
        }
        if at > 0 && self.free[at - 1].end == self.free[at].start {
            self.free[at - 1].end = self.free.remove(at).end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_never_overlap_and_all_come_back(steps in prop::collection::vec((any::<bool>(), 1usize..700), 0..80)) {
            let mut area = Area::new(100..8000);
            let mut held: Vec<Range<usize>> = Vec::new();
            for (take, n) in steps {
                if take {
                    if let Some(run) = area.take(n) {
                        prop_assert!(run.start >= 100 && run.end <= 8000 && run.len() >= n);
                        prop_assert!(run.start.is_multiple_of(LINE));
                        prop_assert!(held.iter().all(|h| h.end <= run.start || run.end <= h.start));
                        held.push(run);
                    }
                } else if !held.is_empty() {
                    area.give(held.swap_remove(n % held.len()));
                }
            }
            for run in held {
                area.give(run);
            }
            prop_assert_eq!(area.take(7872), Some(128..8000));
        }
    }
}
