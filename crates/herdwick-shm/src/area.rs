//! Allocator of a domain's memory: whole cache lines from one range of a file, first fit.

use std::ops::Range;

use herdwick_mem::LINE;

/// Allocates runs of whole cache lines from one range of a file: first fit, free neighbours merge.
///
/// The book-keeping is private memory of the side that owns the area, so no peer can write it.
#[derive(Debug)]
pub(crate) struct Area {
    /// Free runs: sorted, disjoint and not adjacent.
    free: Vec<Range<usize>>,
    size: usize,
}

impl Area {
    /// Makes an area of the whole lines within `range`.
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

    /// Bytes of the area, free or not.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Allocates `len` bytes, rounded up to lines; `None` when no free run is long enough.
    pub(crate) fn take(&mut self, len: usize) -> Option<Range<usize>> {
        // One line at least, so that no two allocations begin at the same place.
        let len = len.max(1).checked_next_multiple_of(LINE)?;
        // First fit: the runs are few, and objects are made and freed rarely.
        let at = self.free.iter().position(|run| run.len() >= len)?;
        let start = self.free[at].start;
        self.free[at].start += len;
        if self.free[at].is_empty() {
            self.free.remove(at);
        }
        Some(start..start + len)
    }

    /// Frees a range that [`Area::take`] returned.
    pub(crate) fn give(&mut self, range: Range<usize>) {
        // Sorted by start, so that only the two neighbours can be adjacent.
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
        fn allocated_runs_never_overlap_and_are_all_freed(steps in prop::collection::vec((any::<bool>(), 1usize..700), 0..80)) {
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
