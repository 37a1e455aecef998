//! Connections in order of arrival. One that leaves early is removed without a walk through the
//! queue, because n disconnects at once would otherwise take O(n^2).

use std::collections::{BTreeMap, HashMap};

/// A queue of places, each at most once.
#[derive(Default)]
pub(crate) struct WaitQueue {
    /// The places by the number of their arrival.
    order: BTreeMap<u64, u32>,
    /// The number of each place's arrival.
    arrivals: HashMap<u32, u64>,
    next: u64,
}

impl WaitQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Appends `place`, which must not be in the queue.
    pub(crate) fn push_back(&mut self, place: u32) {
        let before = self.arrivals.insert(place, self.next);
        debug_assert_eq!(before, None, "{place} is queued twice");
        self.order.insert(self.next, place);
        self.next += 1;
    }

    pub(crate) fn pop_front(&mut self) -> Option<u32> {
        let (_, place) = self.order.pop_first()?;
        self.arrivals.remove(&place);
        Some(place)
    }

    /// Removes `place`; returns whether it was in the queue.
    pub(crate) fn remove(&mut self, place: u32) -> bool {
        let arrival = self.arrivals.remove(&place);
        arrival.is_some_and(|arrival| self.order.remove(&arrival).is_some())
    }

    /// Returns the places, the youngest first.
    pub(crate) fn youngest(&self) -> impl Iterator<Item = u32> {
        self.order.values().rev().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_leave_in_order_and_out_of_order() {
        let mut queue = WaitQueue::default();
        (0..100_000).for_each(|place| queue.push_back(place));
        // The square of this would be 10^10 steps.
        for place in (0..100_000).filter(|place| place % 1000 != 7) {
            assert!(queue.remove(place) && !queue.remove(place));
        }
        assert_eq!(queue.len(), 100);
        queue.push_back(3);
        assert_eq!(queue.youngest().take(2).collect::<Vec<_>>(), [3, 99_007]);
        let mut left = (0..100).map(|n| 1000 * n + 7);
        assert!(left.all(|place| queue.pop_front() == Some(place)));
        assert_eq!(queue.pop_front(), Some(3));
        assert!(queue.is_empty() && queue.pop_front().is_none());
    }
}
