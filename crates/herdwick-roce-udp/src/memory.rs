use herdwick_fabric::RegionId;
use herdwick_mem::{Span, WORD};
use herdwick_roce::Memory;

/// The registered memory of a port, by region.
#[derive(Debug, Default)]
pub(crate) struct Regions(Vec<Option<Span>>);

impl Regions {
    pub(crate) fn get(&self, region: RegionId) -> Option<&Span> {
        self.0.get(region.0 as usize)?.as_ref()
    }

    pub(crate) fn insert(&mut self, region: RegionId, span: Span) {
        let index = region.0 as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some(span);
    }

    /// Forgets every region that `stays` does not name.
    pub(crate) fn retain(&mut self, stays: impl Fn(RegionId) -> bool) {
        for (id, slot) in (0..).zip(&mut self.0) {
            if !stays(RegionId(id)) {
                *slot = None;
            }
        }
    }
}

/// The engine names regions that it registered, and ranges inside them; what it does not know any
/// more has no span, and is neither read nor written.
impl Memory for Regions {
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
