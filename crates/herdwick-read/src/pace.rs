//! How many READs and bytes are on the way, and whether a step may join them.

use crate::{ReaderOptions, Step};

/// READs and bytes that were posted and have not completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    reads_max: usize,
    bytes_max: usize,
    reads: usize,
    bytes: usize,
}

impl Pace {
    pub(crate) fn new(options: &ReaderOptions, rd_atomic_max: usize) -> Self {
        Self {
            reads_max: options.outstanding.min(rd_atomic_max).max(1),
            bytes_max: options.bytes_outstanding,
            reads: 0,
            bytes: 0,
        }
    }

    /// Admits the READs of a step, or has it wait. One that exceeds a limit by itself is admitted
    /// when nothing else is on the way.
    #[inline]
    pub(crate) fn admit(&mut self, step: &Step) -> bool {
        let (reads, bytes) = (self.reads + step.fetches().len(), self.bytes + step.room());
        let fits = reads <= self.reads_max && bytes <= self.bytes_max;
        if fits || self.reads == 0 {
            (self.reads, self.bytes) = (reads, bytes);
            return true;
        }
        false
    }

    /// Releases the READs of a step.
    #[inline]
    pub(crate) fn release(&mut self, step: &Step) {
        self.reads -= step.fetches().len();
        self.bytes -= step.room();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fetch;
    use herdwick_fabric::{Remote, Rkey};

    fn step(reads: usize, len: usize) -> Step {
        let from = Remote {
            rkey: Rkey(1),
            addr: 0,
        };
        let fetch = Fetch { from, len };
        (1..reads).fold(Step::one(fetch), |step, _| step.and(fetch))
    }

    fn pace(outstanding: usize, bytes_outstanding: usize, rd_atomic_max: usize) -> Pace {
        let options = ReaderOptions {
            outstanding,
            bytes_outstanding,
            ..ReaderOptions::default()
        };
        Pace::new(&options, rd_atomic_max)
    }

    #[test]
    fn reads_and_bytes_are_bounded() {
        let mut reads = pace(4, 1 << 20, 16);
        assert!(reads.admit(&step(3, 8)));
        assert!(!reads.admit(&step(2, 8)));
        assert!(reads.admit(&step(1, 8)));
        reads.release(&step(3, 8));
        assert!(reads.admit(&step(2, 8)));
        let mut bytes = pace(64, 100, 64);
        assert!(bytes.admit(&step(1, 60)) && !bytes.admit(&step(1, 60)));
        assert!(!bytes.admit(&step(1, 33)), "each READ takes whole words");
        assert!(bytes.admit(&step(1, 32)));
    }

    #[test]
    fn the_device_bounds_reads_too_and_a_large_step_goes_alone() {
        let mut pace = pace(64, 100, 2);
        assert!(pace.admit(&step(4, 1000)), "nothing else is on the way");
        assert!(!pace.admit(&step(1, 8)));
        pace.release(&step(4, 1000));
        assert!(pace.admit(&step(1, 8)) && pace.admit(&step(1, 8)) && !pace.admit(&step(1, 8)));
    }
}
