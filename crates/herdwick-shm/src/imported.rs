//! The shared memory that a client has mapped, by the region entry that names it.

use herdwick_fabric::{Rkey, Windows};
use herdwick_mem::Span;

use crate::layout::REGIONS;

/// The shared memory that a client has mapped, by region entry.
#[derive(Debug, Default)]
pub(crate) struct Imported(Vec<Option<(Rkey, Shared)>>);

/// Memory that the host shares, as a client has mapped it.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) span: Span,
    /// With windows, the addresses of the region are theirs.
    pub(crate) windows: Option<Windows>,
}

impl Shared {
    /// Returns the length of a region of it, at most.
    pub(crate) fn region_len(&self) -> usize {
        let windows = self.windows.as_ref();
        windows.map_or(self.span.len(), Windows::region_len)
    }
}

impl Imported {
    pub(crate) fn insert(&mut self, rkey: Rkey, shared: Shared) {
        // At the first import only: most domains share nothing.
        self.0.resize(REGIONS, None);
        self.0[rkey.0 as usize % REGIONS] = Some((rkey, shared));
    }

    /// Returns the memory that was imported under `rkey`.
    pub(crate) fn get(&self, rkey: Rkey) -> Option<&Shared> {
        let held = self.0.get(rkey.0 as usize % REGIONS)?.as_ref();
        // The index is the low bits alone: the entry may have been used for another region since.
        held.filter(|(of, _)| *of == rkey).map(|(_, shared)| shared)
    }
}
