//! The timers of all queue pairs: an indexed binary heap.

use alloc::{vec, vec::Vec};
use core::time::Duration;

/// One deadline for each queue pair, ordered by a binary heap that knows the position of each queue
/// pair and so neither grows nor allocates.
pub(crate) struct Timers {
    heap: Vec<(Duration, u32)>,
    /// The position in the heap of each index.
    places: Vec<u32>,
}

/// The position of an index that has no timer.
const ABSENT: u32 = u32::MAX;

impl Timers {
    /// Makes timers for indices below `limit`.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            heap: Vec::with_capacity(limit),
            places: vec![ABSENT; limit],
        }
    }

    /// Returns the earliest deadline.
    pub(crate) fn first(&self) -> Option<Duration> {
        self.heap.first().map(|(when, _)| *when)
    }

    /// Makes `index` due at `when` or earlier. Postponing a deadline is the common case and costs
    /// nothing: a queue pair that is due too early sets its timer again.
    pub(crate) fn set(&mut self, index: usize, when: Duration) {
        let place = self.places[index];
        if place == ABSENT {
            self.heap.push((when, Self::narrow(index)));
            self.up(self.heap.len() - 1);
        } else if when < self.heap[place as usize].0 {
            self.heap[place as usize].0 = when;
            self.up(place as usize);
        }
    }

    pub(crate) fn clear(&mut self, index: usize) {
        if self.places[index] != ABSENT {
            self.take(self.places[index] as usize);
        }
    }

    /// Removes and returns an index that is due at `now`.
    pub(crate) fn due(&mut self, now: Duration) -> Option<usize> {
        let (when, index) = *self.heap.first()?;
        if when > now {
            return None;
        }
        self.take(0);
        Some(index as usize)
    }

    fn take(&mut self, place: usize) {
        let (_, index) = self.heap.swap_remove(place);
        self.places[index as usize] = ABSENT;
        if place < self.heap.len() {
            // The entry moved here from the end may be too early or too late for its new place.
            // At most one of the two moves it; the second call then finds it where the first left
            // it.
            self.up(place);
            self.down(self.places[self.heap[place].1 as usize] as usize);
        }
    }

    fn up(&mut self, mut place: usize) {
        while place > 0 && self.heap[place] < self.heap[(place - 1) / 2] {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
        self.note(place);
    }

    fn down(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|child| self.heap[*child]) else {
                break;
            };
            if self.heap[place] <= self.heap[least] {
                break;
            }
            self.swap(place, least);
            place = least;
        }
        self.note(place);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.note(a);
        self.note(b);
    }

    fn note(&mut self, place: usize) {
        let (_, index) = self.heap[place];
        self.places[index as usize] = Self::narrow(place);
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a slab has at most 2^20 places"
    )]
    fn narrow(place: usize) -> u32 {
        place as u32
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::collections::BTreeMap;

    use herdwick_check::Rng;

    use super::Timers;

    #[test]
    fn timers_expire_in_order_and_once() {
        let mut timers = Timers::new(32);
        let mut model = BTreeMap::new();
        let mut chance = Rng::new(1);
        for _ in 0..20_000 {
            let state = chance.bits();
            let index = (state >> 33) as usize % 32;
            let when = Duration::from_nanos(state >> 40 & 0xff);
            match state >> 60 {
                0..12 => {
                    timers.set(index, when);
                    let held = model.entry(index).or_insert(when);
                    *held = (*held).min(when);
                }
                12 => {
                    timers.clear(index);
                    model.remove(&index);
                }
                _ => {
                    let due = timers.due(when);
                    let first = model.iter().map(|(index, at)| (*at, *index)).min();
                    assert_eq!(due.is_some(), first.is_some_and(|(at, _)| at <= when));
                    let at = due.and_then(|index| model.remove(&index));
                    assert_eq!(at, first.filter(|_| due.is_some()).map(|(at, _)| at));
                }
            }
            assert_eq!(timers.first(), model.values().min().copied());
        }
    }
}
