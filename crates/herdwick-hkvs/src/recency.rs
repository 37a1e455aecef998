//! Slots in the order of their last use.

/// No slot.
const NONE: u32 = u32::MAX;

/// A doubly linked list of slots, in one array.
#[derive(Debug)]
pub(crate) struct Recency {
    links: Box<[Links]>,
    /// Least and most recently used.
    ends: Links,
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
    }
}
