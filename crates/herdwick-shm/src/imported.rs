//! The shared memory that a client has mapped, by the region entry that names it.

use herdwick_fabric::Rkey;
use herdwick_mem::Span;

use crate::layout::REGIONS;

/// The shared memory that a client has mapped, by region entry.
#[derive(Debug, Default)]
pub(crate) struct Imported(Vec<Option<(Rkey, Span)>>);

impl Imported {
    pub(crate) fn insert(&mut self, rkey: Rkey, span: Span) {
        self.0.resize(REGIONS, None);
        self.0[rkey.0 as usize % REGIONS] = Some((rkey, span));
    }

    /// Returns the memory that was imported under `rkey`.
    pub(crate) fn get(&self, rkey: Rkey) -> Option<&Span> {
        let held = self.0.get(rkey.0 as usize % REGIONS)?.as_ref();
        held.filter(|(of, _)| *of == rkey).map(|(_, span)| span)
    }
}
