//! The RNIC's cache of queue pair contexts: the least recently used one gives way.

use herdwick_fabric::Qpn;

use crate::maps::IdMap;

/// Contexts in the RNIC's memory.
pub(super) struct Contexts {
    /// 0: all of them fit.
    capacity: usize,
    /// The place of each.
    places: IdMap<Qpn, usize>,
    /// They are linked in the order of use.
    contexts: Vec<Context>,
    newest: usize,
    oldest: usize,
}

struct Context {
    qpn: Qpn,
    newer: usize,
    older: usize,
}

impl Contexts {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            places: IdMap::default(),
            contexts: Vec::new(),
            newest: 0,
            oldest: 0,
        }
    }

    /// Uses a context. `Some` if it was not here and had to be fetched.
    pub(super) fn touch(&mut self, qpn: Qpn) -> Option<()> {
        if self.capacity == 0 {
            return None;
        }
        if let Some(place) = self.places.get(&qpn).copied() {
            if place != self.newest {
                self.unlink(place);
                self.link(place);
            }
            return None;
        }
        // `link` sets both neighbours.
        let context = Context {
            qpn,
            newer: 0,
            older: 0,
        };
        let place = if self.contexts.len() < self.capacity {
            self.contexts.push(context);
            self.contexts.len() - 1
        } else {
            let place = self.oldest;
            self.unlink(place);
            self.places.remove(&self.contexts[place].qpn);
            self.contexts[place] = context;
            place
        };
        self.places.insert(qpn, place);
        self.link(place);
        Some(())
    }

    /// Takes a context out of the order.
    fn unlink(&mut self, place: usize) {
        let Context { newer, older, .. } = self.contexts[place];
        // The oldest has none that is older, whatever its link says, and the newest none that is newer.
        if place == self.oldest {
            self.oldest = newer;
        } else {
            self.contexts[older].newer = newer;
        }
        if place == self.newest {
            self.newest = older;
        } else {
            self.contexts[newer].older = older;
        }
    }

    /// Makes a context that is not in the order the newest.
    fn link(&mut self, place: usize) {
        let newest = self.newest;
        self.contexts[newest].newer = place;
        self.contexts[place].older = newest;
        self.newest = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_gives_way() {
        let mut contexts = Contexts::new(2);
        let mut misses = |qpns: &[u32]| -> Vec<bool> {
            let touch = |qpn: &u32| contexts.touch(Qpn(*qpn)).is_some();
            qpns.iter().map(touch).collect()
        };
        assert_eq!(misses(&[1, 2, 1, 3]), [true, true, false, true]);
        assert_eq!(misses(&[1, 2]), [false, true], "2 gave way to 3");
    }

    /// The same as a list of contexts by their last use.
    #[test]
    fn any_order_of_uses_agrees_with_a_list() {
        for capacity in 1..6 {
            let (mut contexts, mut list) = (Contexts::new(capacity), Vec::new());
            let mut draws = herdwick_check::Rng::new(capacity as u64);
            for _ in 0..2000 {
                let qpn = Qpn(u32::try_from(draws.below(8)).unwrap());
                let known = list.iter().position(|other| *other == qpn);
                assert_eq!(contexts.touch(qpn).is_some(), known.is_none());
                known.map(|place| list.remove(place));
                list.push(qpn);
                if list.len() > capacity {
                    list.remove(0);
                }
            }
        }
    }

    #[test]
    fn none_is_missed_without_a_limit() {
        let mut contexts = Contexts::new(0);
        assert!((0..1000).all(|qpn| contexts.touch(Qpn(qpn)).is_none()));
    }
}
