//! What eviction knows of the old end of the log: the next items there, and how many bytes of them it
//! may still copy. What it does there is in [`evict`](crate::evict).

use herdwick_layout::bucket::Offset;
use herdwick_request::KeyHash;

use crate::log::Cursor;

/// Number of items at the old end with buckets that are prefetched together.
pub(crate) const LOOKAHEAD: usize = 8;

/// The next items of the walk along the old end, hashed, with a prefetch issued for each bucket.
/// Items between head and tail do not move, so the positions stay valid.
#[derive(Default)]
pub(crate) struct Lookahead {
    pub(crate) items: [Oldest; LOOKAHEAD],
    pub(crate) next: usize,
    pub(crate) len: usize,
}

/// An item at the old end, and the cursor behind it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Oldest {
    pub(crate) at: Offset,
    pub(crate) past: Cursor,
    pub(crate) hash: KeyHash,
}

/// The bytes of second chances that may still be copied; negative after a large item.
#[derive(Default)]
pub(crate) struct Chances {
    /// In all: what was stored earns it.
    pub(crate) saved: isize,
    /// By the current request.
    pub(crate) at_once: isize,
}

impl Chances {
    pub(crate) fn spent(&self) -> bool {
        self.saved <= 0 || self.at_once <= 0
    }

    /// Adds `bytes` of copies, of which `most` may accumulate.
    pub(crate) fn earn(&mut self, bytes: usize, most: usize) {
        let earned = |chances: isize| (chances + bytes as isize).min(most as isize);
        (self.saved, self.at_once) = (earned(self.saved), earned(self.at_once));
    }

    pub(crate) fn spend(&mut self, len: usize) {
        self.saved -= len as isize;
        self.at_once -= len as isize;
    }
}
