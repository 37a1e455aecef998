//! The events to come, by time; those of one time in the order of scheduling.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use super::event::Event;

/// Names an event that is scheduled: its time in nanoseconds, its number, and its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EventKey {
    at: u64,
    number: u64,
    place: usize,
}

/// The events to come. One that is cancelled leaves its key behind, which is skipped.
#[derive(Default)]
pub(super) struct EventQueue {
    /// The first key is that of an event that is not cancelled.
    keys: BinaryHeap<Reverse<EventKey>>,
    /// Number and event of each place; of a place in use, the key is in `keys`.
    places: Vec<(u64, Option<Event>)>,
    free: Vec<usize>,
    next: u64,
}

impl EventQueue {
    pub(super) fn schedule(&mut self, at: Duration, event: Event) -> EventKey {
        self.next += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() - 1
        });
        self.places[place] = (self.next, Some(event));
        let key = EventKey {
            at: u64::try_from(at.as_nanos()).unwrap_or(u64::MAX),
            number: self.next,
            place,
        };
        self.keys.push(Reverse(key));
        key
    }

    /// Takes an event back, unless it has happened.
    pub(super) fn cancel(&mut self, key: EventKey) {
        let (number, event) = &mut self.places[key.place];
        // The place may have another event by now.
        if *number == key.number {
            *event = None;
            self.skip_cancelled();
        }
    }

    pub(super) fn next_due(&self) -> Option<Duration> {
        let Reverse(first) = self.keys.peek()?;
        Some(Duration::from_nanos(first.at))
    }

    /// Takes the next event, and its time.
    pub(super) fn pop(&mut self) -> Option<(Duration, Event)> {
        let Reverse(key) = self.keys.pop()?;
        let event = self.places[key.place].1.take();
        self.free.push(key.place);
        self.skip_cancelled();
        Some((Duration::from_nanos(key.at), event?))
    }

    fn skip_cancelled(&mut self) {
        while let Some(Reverse(key)) = self.keys.peek() {
            if self.places[key.place].1.is_some() {
                break;
            }
            self.free.push(key.place);
            self.keys.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use herdwick_fabric::Qpn;

    use super::*;

    fn timer(queue: &mut EventQueue, at: u64, qpn: u32) -> EventKey {
        queue.schedule(Duration::from_nanos(at), Event::Timer(Qpn(qpn)))
    }

    fn rest(queue: &mut EventQueue) -> Vec<(u128, u32)> {
        std::iter::from_fn(|| queue.pop())
            .map(|(at, event)| match event {
                Event::Timer(qpn) => (at.as_nanos(), qpn.0),
                _ => panic!("no timer"),
            })
            .collect()
    }

    #[test]
    fn events_of_one_time_happen_in_the_order_of_scheduling() {
        let mut queue = EventQueue::default();
        for (at, qpn) in [(7, 1), (5, 2), (7, 3), (5, 4), (6, 5)] {
            timer(&mut queue, at, qpn);
        }
        assert_eq!(rest(&mut queue), [(5, 2), (5, 4), (6, 5), (7, 1), (7, 3)]);
    }

    #[test]
    fn a_cancelled_event_does_not_happen_and_is_not_due() {
        let mut queue = EventQueue::default();
        let keys = [3, 4, 5].map(|at| timer(&mut queue, at, at as u32));
        queue.cancel(keys[1]);
        queue.cancel(keys[0]);
        assert_eq!(queue.next_due(), Some(Duration::from_nanos(5)));
        assert_eq!(rest(&mut queue), [(5, 5)]);
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn a_key_of_the_past_cancels_nothing_in_its_place() {
        let mut queue = EventQueue::default();
        let old = timer(&mut queue, 1, 1);
        assert!(queue.pop().is_some());
        timer(&mut queue, 2, 2);
        queue.cancel(old);
        assert_eq!(rest(&mut queue), [(2, 2)]);
    }
}
