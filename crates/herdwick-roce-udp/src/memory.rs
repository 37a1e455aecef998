//! The memory of a port's regions, by region index, as the engine accesses it.

use herdwick_fabric::RegionId;
use herdwick_mem::{Span, WORD};
use herdwick_roce::{Memory, region_index};

/// The registered memory of a port, by region index, with the full id beside it: indexes are
/// reused, ids are not.
#[derive(Debug, Default)]
pub(crate) struct RegisteredMemory(Vec<Option<(RegionId, Span)>>);

impl RegisteredMemory {
    #[inline]
    pub(crate) fn get(&self, region: RegionId) -> Option<&Span> {
        let (id, span) = self.0.get(region_index(region))?.as_ref()?;
        (*id == region).then_some(span)
    }

    pub(crate) fn insert(&mut self, region: RegionId, span: Span) {
        let index = region_index(region);
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some((region, span));
    }

    /// Removes every region for which `stays` returns false.
    pub(crate) fn retain(&mut self, stays: impl Fn(RegionId) -> bool) {
        for slot in &mut self.0 {
            if slot.as_ref().is_some_and(|(id, _)| !stays(*id)) {
                *slot = None;
            }
        }
    }

    /// Returns the length of the table.
    #[cfg(test)]
    pub(crate) fn places(&self) -> usize {
        self.0.len()
    }
}

/// The engine names regions that it registered, and ranges inside them. A region that was removed
/// meanwhile has no span: writes are dropped, reads return zeros.
impl Memory for RegisteredMemory {
    #[inline]
    fn write(&mut self, region: RegionId, offset: usize, bytes: &[u8]) {
        if let Some(span) = self.get(region) {
            span.write_bytes(offset, bytes);
        }
    }

    #[inline]
    fn read(&self, region: RegionId, offset: usize, out: &mut [u8]) {
        match self.get(region) {
            Some(span) => span.read_bytes(offset, out),
            None => out.fill(0),
        }
    }

    fn fetch_add(&mut self, region: RegionId, offset: usize, add: u64) -> u64 {
        let span = self.get(region);
        span.map_or(0, |span| span.fetch_add(offset / WORD, add))
    }

    fn compare_swap(&mut self, region: RegionId, offset: usize, expected: u64, new: u64) -> u64 {
        let span = self.get(region);
        span.map_or(0, |span| span.compare_swap(offset / WORD, expected, new))
    }
}
