//! The memory of a port's regions, by region index, as the engine accesses it.

use herdwick_fabric::{RegionId, Windows};
use herdwick_mem::{Span, WORD};
use herdwick_roce::{Memory, region_index};

/// The registered memory of a port, by region index, with the full id beside it: indexes are
/// reused, ids are not.
#[derive(Debug, Default)]
pub(crate) struct RegisteredMemory(Vec<Option<Registered>>);

/// The memory of a region. With windows, the region's offsets are theirs.
#[derive(Clone, Debug)]
struct Registered {
    id: RegionId,
    span: Span,
    windows: Option<Windows>,
}

impl RegisteredMemory {
    #[inline]
    pub(crate) fn get(&self, region: RegionId) -> Option<&Span> {
        self.registered(region).map(|registered| &registered.span)
    }

    #[inline]
    fn registered(&self, region: RegionId) -> Option<&Registered> {
        let registered = self.0.get(region_index(region))?.as_ref()?;
        (registered.id == region).then_some(registered)
    }

    pub(crate) fn insert(&mut self, region: RegionId, span: Span) {
        self.insert_with(region, span, None);
    }

    pub(crate) fn insert_with(&mut self, id: RegionId, span: Span, windows: Option<Windows>) {
        let index = region_index(id);
        if self.0.len() <= index {
            // Regions are made rarely; the table never shrinks.
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some(Registered { id, span, windows });
    }

    /// Removes every region for which `stays` returns false.
    pub(crate) fn retain(&mut self, stays: impl Fn(RegionId) -> bool) {
        for slot in &mut self.0 {
            if slot.as_ref().is_some_and(|slot| !stays(slot.id)) {
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
        let Some(Registered { span, windows, .. }) = self.registered(region) else {
            return out.fill(0);
        };
        match windows {
            None => span.read_bytes(offset, out),
            Some(windows) => match windows.resolve(span, offset as u64, out.len()) {
                Some(place) => span.read_bytes(place, out),
                // A window at a place that its owner gave it beyond the memory.
                None => out.fill(0),
            },
        }
    }

    fn fetch_add(&mut self, region: RegionId, offset: usize, add: u64) -> u64 {
        let span = self.get(region);
        // Not reached for a region that the engine knows.
        span.map_or(0, |span| span.fetch_add(offset / WORD, add))
    }

    fn compare_swap(&mut self, region: RegionId, offset: usize, expected: u64, new: u64) -> u64 {
        let span = self.get(region);
        span.map_or(0, |span| span.compare_swap(offset / WORD, expected, new))
    }
}
