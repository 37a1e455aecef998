//! The paper's policy, recent and frequent combined; and LRU, which is the same without the window.

use herdwick_request::KeyHash;

use crate::{
    members::Members,
    popularity::{LOOKED_AT, Limits, Popularity, Seen},
    recency::Recency,
    window::Window,
};

/// Admission by the window, eviction by recency.
///
/// Reads of popular keys move the window on, but are not counted: they need no admission. So a key that was
/// evicted has to be read as often again as a new one.
#[derive(Debug)]
pub(crate) struct Combined {
    members: Members,
    recency: Recency,
    /// `None`: every read admits.
    window: Option<Window>,
    reads: u8,
}

impl Combined {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            window: Some(Window::new(limits.window)),
            ..Self::lru(limits)
        }
    }

    pub(crate) fn lru(limits: Limits) -> Self {
        Self {
            members: Members::new(limits.keys),
            recency: Recency::new(limits.keys),
            window: None,
            reads: limits.reads,
        }
    }

    pub(crate) fn set_bytes(limits: Limits) -> usize {
        Members::bytes(limits.keys) + Recency::bytes(limits.keys)
    }

    /// Returns whether a read of a key that is not popular admits it.
    #[inline]
    fn is_frequent(&mut self, hash: KeyHash) -> bool {
        let reads = self.reads;
        let counted = self.window.as_mut().map(|window| window.count(hash));
        counted.is_none_or(|counted| counted >= reads)
    }
}

impl Popularity for Combined {
    #[inline]
    fn read(&mut self, hash: KeyHash, _bytes: usize, may_admit: bool) -> Seen {
        if let Some(slot) = self.members.find(hash) {
            // The window moves on, uncounted.
            self.other();
            self.recency.touch(slot);
            return Seen::Popular { slot };
        }
        // First, because it counts the read even where the key may not be admitted.
        if !self.is_frequent(hash) || !may_admit {
            return Seen::Unpopular;
        }
        let victim = self.recency.least().filter(|_| self.members.is_full());
        if let Some(victim) = victim {
            self.remove(victim);
        }
        let Some(slot) = self.members.insert(hash) else {
            return Seen::Unpopular;
        };
        self.recency.push(slot);
        let evicted = victim.is_some();
        Seen::Admitted { slot, evicted }
    }

    #[inline]
    fn other(&mut self) {
        if let Some(window) = &mut self.window {
            window.pass();
        }
    }

    #[inline]
    fn find(&self, hash: KeyHash) -> Option<u32> {
        self.members.find(hash)
    }

    fn remove(&mut self, slot: u32) {
        // A slot without a member is in no list, and must not be taken out of one.
        let before = self.members.len();
        self.members.remove(slot);
        if self.members.len() < before {
            self.recency.remove(slot);
        }
    }

    fn next_victim(&mut self, may_go: &dyn Fn(u32) -> bool) -> Option<u32> {
        self.recency.least_of(may_go, LOOKED_AT)
    }

    fn clear(&mut self) {
        self.members.clear();
        self.recency.clear();
    }

    fn len(&self) -> usize {
        self.members.len()
    }

    #[inline]
    fn prefetch(&self, hash: KeyHash) {
        self.members.prefetch(hash);
        if let Some(window) = &self.window {
            window.prefetch(hash);
        }
    }
}
