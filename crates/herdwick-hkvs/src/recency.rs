//! Slots in the order of their last use.

/// No slot.
const NONE: u32 = u32::MAX;

/// A doubly linked list of slots, in one array.
#[derive(Debug)]
pub(crate) struct Recency {
    links: Box<[Links]>,
    /// Least and most recently used.
    ends: Links,
    /// Where [`Recency::least_of`] goes on; [`NONE`]: at the one used least recently.
    hand: u32,
}

/// The slots before and behind one: used earlier, and later.
#[derive(Clone, Copy, Debug)]
struct Links {
    earlier: u32,
    later: u32,
}

const ALONE: Links = Links {
    earlier: NONE,
    later: NONE,
};

impl Recency {
    /// Makes an empty list of slots below `most`.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            links: vec![ALONE; most].into(),
            ends: ALONE,
            hand: NONE,
        }
    }

    /// Returns the bytes of a list of slots below `most`.
    pub(crate) fn bytes(most: usize) -> usize {
        most * size_of::<Links>()
    }

    /// Returns the slot used least recently.
    pub(crate) fn least(&self) -> Option<u32> {
        (self.ends.earlier != NONE).then_some(self.ends.earlier)
    }

    /// Returns the slot used least recently of those that `may_go`. Looks at `most` slots, and in the next call at
    /// those behind them, if none of them may.
    pub(crate) fn least_of(&mut self, may_go: &dyn Fn(u32) -> bool, most: usize) -> Option<u32> {
        let mut slot = match self.hand {
            NONE => self.ends.earlier,
            hand => hand,
        };
        self.hand = NONE;
        for _ in 0..most {
            if slot == NONE {
                return None;
            }
            // The hand is forgotten: the next search begins with the slot used least recently
            // again.
            if may_go(slot) {
                return Some(slot);
            }
            slot = self.links[slot as usize].later;
        }
        self.hand = slot;
        None
    }

    /// Notes the use of a slot that is in the list.
    #[inline]
    pub(crate) fn touch(&mut self, slot: u32) {
        if self.ends.later != slot {
            self.remove(slot);
            self.push(slot);
        }
    }

    /// Appends a slot that is not in the list, as used last.
    pub(crate) fn push(&mut self, slot: u32) {
        let last = self.ends.later;
        self.links[slot as usize] = Links {
            earlier: last,
            later: NONE,
        };
        match last {
            NONE => self.ends.earlier = slot,
            last => self.links[last as usize].later = slot,
        }
        self.ends.later = slot;
    }

    /// Removes a slot that is in the list.
    pub(crate) fn remove(&mut self, slot: u32) {
        let Links { earlier, later } = self.links[slot as usize];
        if self.hand == slot {
            // The search goes on behind a slot that leaves.
            self.hand = later;
        }
        match earlier {
            NONE => self.ends.earlier = later,
            earlier => self.links[earlier as usize].later = later,
        }
        match later {
            NONE => self.ends.later = earlier,
            later => self.links[later as usize].earlier = earlier,
        }
    }

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        self.ends = ALONE;
        self.hand = NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_finds_none_goes_on_behind_where_it_ended() {
        let mut recency = Recency::new(100);
        (0..100).for_each(|slot| recency.push(slot));
        let is_rare = |slot: u32| slot == 60 || slot == 90;
        // 0 to 29, then 30 to 59.
        assert_eq!(recency.least_of(&is_rare, 30), None);
        // It goes on behind a slot that is used, or leaves.
        recency.touch(30);
        recency.remove(31);
        assert_eq!(recency.least_of(&is_rare, 28), None);
        assert_eq!(recency.least_of(&is_rare, 1), Some(60));
        // From the beginning.
        assert_eq!(recency.least_of(&|_| true, 30), Some(0));
        recency.remove(60);
        let found = [(); 4].map(|()| recency.least_of(&is_rare, 30));
        assert_eq!(found, [None, None, Some(90), None]);
        recency.remove(90);
        let calls = (0..100).filter(|_| recency.least_of(&is_rare, 30).is_some());
        assert_eq!(calls.count(), 0);
        recency.clear();
        assert_eq!(recency.least_of(&|_| true, 30), None);
    }
}
