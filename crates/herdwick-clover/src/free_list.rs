//! A client's free lists, one for each size class: when it asks the server for more entries, and which it
//! gives back.

use std::time::Duration;

use crate::{
    layout::{CLASSES, Place},
    message::{BATCH, NUMBERS_MAX},
};

/// Entries of a class below which more are asked for, before they are waited for.
const LOW: usize = BATCH / 2;
/// Entries of a class above which some are given back.
const HIGH: usize = 2 * BATCH;

#[derive(Debug, Default)]
struct ClassFreeList {
    places: Vec<Place>,
    /// A call for entries is in flight.
    asked: bool,
    /// When entries may be asked for again, after there were none.
    again: Duration,
    /// The last reply had fewer entries than there may be, or none.
    scarce: bool,
    dry: bool,
    /// When an entry was taken or waited for last.
    used: Duration,
}

/// The free lists of all size classes.
#[derive(Debug)]
pub(crate) struct FreeList {
    classes: [ClassFreeList; CLASSES],
    /// Time without use after which the entries of a class are given back.
    idle: Duration,
}

impl FreeList {
    /// Makes room for what `window` requests may give back, beside what is asked for.
    pub(crate) fn new(window: usize, idle: Duration) -> Self {
        let class = |_| ClassFreeList {
            places: Vec::with_capacity(window + LOW + BATCH),
            ..ClassFreeList::default()
        };
        Self {
            classes: std::array::from_fn(class),
            idle,
        }
    }

    /// Takes an entry, or waits for one.
    pub(crate) fn take(&mut self, class: usize, now: Duration) -> Option<Place> {
        let class = &mut self.classes[class];
        class.used = now;
        class.places.pop()
    }

    /// Takes an entry back that was not used.
    pub(crate) fn put_back(&mut self, class: usize, place: Place) {
        self.classes[class].places.push(place);
    }

    /// Returns a class that is to be asked for; `waits` returns whether a request waits for it.
    pub(crate) fn wanting(&self, now: Duration, waits: impl Fn(usize) -> bool) -> Option<usize> {
        let wanting = |index: &usize| {
            let class = &self.classes[*index];
            // From 1 on: a class without any may be one that this client never uses.
            let low = !class.scarce && (1..LOW).contains(&class.places.len());
            let used = now.saturating_sub(class.used) <= self.idle;
            !class.asked && now >= class.again && (low && used || waits(*index))
        };
        (0..CLASSES).find(wanting)
    }

    /// Entries of a class are being asked for.
    pub(crate) fn asked(&mut self, class: usize) {
        self.classes[class].asked = true;
    }

    /// Takes the entries of a reply; after one without any, more are asked for at `again`.
    pub(crate) fn refill(&mut self, class: usize, words: &[u64], again: Duration) {
        let class = &mut self.classes[class];
        let before = class.places.len();
        class
            .places
            .extend(words.iter().filter_map(|word| Place::of(*word)));
        class.asked = false;
        class.scarce = words.len() < BATCH;
        class.dry = class.places.len() == before;
        class.again = if class.dry { again } else { Duration::ZERO };
    }

    /// Returns whether there were no entries of a class when they were asked for last.
    pub(crate) fn is_dry(&self, class: usize) -> bool {
        self.classes[class].dry
    }

    /// Returns entries of a class that are to be given back: too many, or not used for a while.
    pub(crate) fn surplus(&self, now: Duration) -> Option<(usize, &[Place])> {
        let surplus = |(index, class): (usize, &'_ ClassFreeList)| {
            let idle = now.saturating_sub(class.used) > self.idle;
            let kept = if idle { 0 } else { HIGH };
            let count = class.places.len().saturating_sub(kept).min(NUMBERS_MAX);
            (count > 0).then_some((index, count))
        };
        let (class, count) = self.classes.iter().enumerate().find_map(surplus)?;
        let places = &self.classes[class].places;
        // From the end, which `given` cuts off.
        Some((class, &places[places.len() - count..]))
    }

    /// So many entries of [`FreeList::surplus`] are being given back.
    pub(crate) fn given(&mut self, class: usize, count: usize) {
        let places = &mut self.classes[class].places;
        places.truncate(places.len().saturating_sub(count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_millis(1);

    fn words(count: usize) -> Vec<u64> {
        let place = |target| Place {
            target,
            version: 0,
            tombstone: false,
        };
        (1..=count as u32).map(|n| place(n).word()).collect()
    }

    #[test]
    fn one_call_at_a_time_asks_for_a_class() {
        let (mut free_list, now) = (FreeList::new(4, IDLE), Duration::from_secs(1));
        assert_eq!(free_list.wanting(now, |_| false), None);
        assert_eq!(free_list.take(3, now), None);
        assert_eq!(free_list.wanting(now, |class| class == 3), Some(3));
        free_list.asked(3);
        assert_eq!(free_list.wanting(now * 2, |class| class == 3), None);
        free_list.refill(3, &[], now * 3);
        assert_eq!(free_list.wanting(now * 2, |class| class == 3), None);
        assert_eq!(free_list.wanting(now * 3, |class| class == 3), Some(3));
        free_list.asked(3);
        assert!(free_list.is_dry(3));
        free_list.refill(3, &words(BATCH), now);
        assert!(!free_list.is_dry(3));
        for left in (LOW..BATCH).rev() {
            assert_eq!(free_list.wanting(now, |_| false), None, "{left}");
            assert!(free_list.take(3, now).is_some());
        }
        free_list.take(3, now);
        assert_eq!(free_list.wanting(now, |_| false), Some(3));
        assert_eq!(
            free_list.wanting(now * 2, |_| false),
            None,
            "it is not in use"
        );
        // Where there are few, others need them.
        free_list.refill(3, &words(1), now);
        assert_eq!(free_list.wanting(now, |_| false), None);
    }

    #[test]
    fn what_is_too_much_or_not_used_is_given_back() {
        let (mut free_list, now) = (FreeList::new(40, IDLE), Duration::from_secs(1));
        free_list.take(0, now);
        free_list.refill(0, &words(BATCH), now);
        assert_eq!(free_list.surplus(now), None);
        for word in words(2 * BATCH) {
            free_list.put_back(0, Place::of(word).unwrap());
        }
        let surplus = |free_list: &FreeList, now| {
            free_list
                .surplus(now)
                .map(|(class, places)| (class, places.len()))
        };
        assert_eq!(surplus(&free_list, now), Some((0, BATCH)));
        assert_eq!(surplus(&free_list, now + 2 * IDLE), Some((0, NUMBERS_MAX)));
        free_list.given(0, NUMBERS_MAX);
        assert_eq!(surplus(&free_list, now), None);
        assert_eq!(surplus(&free_list, now + 2 * IDLE), Some((0, BATCH)));
        free_list.given(0, BATCH);
        assert_eq!(surplus(&free_list, now + 2 * IDLE), None);
    }
}
