//! Calls that submit their own request, or wait for a session.

use std::{collections::BTreeMap, task::Waker, time::Duration};

/// Calls that wait until they can submit their own request, or for a session, in the order of their first attempt.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    waiting: BTreeMap<u64, (Duration, Waker)>,
    last: u64,
    /// No call is due before.
    next_due: Option<Duration>,
}

impl WaitQueue {
    /// Returns the next turn: those of the queue and of the driver's line are one order.
    pub(super) fn next_turn(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Returns the turn of the call that has waited longest.
    pub(super) fn first_turn(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|(turn, _)| *turn)
    }

    /// Whether a call has to wait behind others, the first in the driver's line among them: `number` is its
    /// place, if it has one.
    pub(super) fn is_behind(&self, number: Option<u64>, in_line: Option<u64>) -> bool {
        let first = self.first_turn().into_iter().chain(in_line).min();
        match (number, first) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(number), Some(first)) => first < number,
        }
    }

    /// Lets a call wait, which is due at a time. Returns its place.
    pub(super) fn wait(&mut self, number: Option<u64>, due: Duration, waker: &Waker) -> u64 {
        let number = number.unwrap_or_else(|| self.next_turn());
        self.waiting.insert(number, (due, waker.clone()));
        self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
        number
    }

    /// Takes a call out that gives up. If it was woken already, the next one is woken in its place.
    pub(super) fn leave(&mut self, number: u64) {
        if self.waiting.remove(&number).is_none() {
            self.wake(1);
        }
    }

    /// Takes a call out that is served.
    pub(super) fn served(&mut self, number: u64) {
        self.waiting.remove(&number);
    }

    /// Wakes the `count` that have waited longest.
    pub(super) fn wake(&mut self, count: usize) {
        for _ in 0..count {
            let Some((_, (_, waker))) = self.waiting.pop_first() else {
                return;
            };
            waker.wake();
        }
    }

    pub(super) fn wake_all(&mut self) {
        self.wake(self.waiting.len());
    }

    /// Wakes those that are due at `now`.
    pub(super) fn expire(&mut self, now: Duration) {
        if self.next_due.is_none_or(|due| due > now) {
            return;
        }
        for (_, (_, waker)) in self.waiting.extract_if(.., |_, (due, _)| *due <= now) {
            waker.wake();
        }
        self.next_due = self.waiting.values().map(|(due, _)| *due).min();
    }

    /// Returns how long after `now` none is due.
    pub(super) fn left(&self, now: Duration) -> Duration {
        let due = self.next_due.filter(|_| !self.waiting.is_empty());
        due.map_or(Duration::MAX, |due| due.saturating_sub(now))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
