//! The cost of the benchmark itself: its generator and its check, run as in a measurement, against
//! a target that answers at once.

use crate::{
    host::Stopwatch,
    workload::{KeySpace, Step},
};

/// Share of an operation's time above which the benchmark's own cost makes a figure doubtful.
pub(crate) const SHARE_MAX: f64 = 0.2;
/// Most operations between two readings of the clock, so that reading it does not count.
const BLOCK: usize = 256;
/// Bytes of values laid out for a block: they stay in the second-level cache, as data just received
/// from a server does.
const VALUES_BYTES: usize = 256 << 10;
/// Time during which blocks are measured.
const MEASURE_NS: u64 = 30_000_000;
/// Least number of blocks, however long they take.
const BLOCKS_MIN: usize = 8;

/// Returns the number of operations in a block with values of this size.
pub(crate) fn block(space: &KeySpace) -> usize {
    (VALUES_BYTES / space.value_size().max(1)).clamp(16, BLOCK)
}

/// The values that answer a block's requests, laid out before the clock starts.
#[derive(Debug)]
pub(crate) struct Answers {
    space: KeySpace,
    values: Vec<u8>,
}

impl Answers {
    pub(crate) fn new(space: KeySpace) -> Self {
        let values = vec![0; space.value_size() * block(&space)];
        Self { space, values }
    }

    /// Lays out the value of each step's key; at most [`block`] steps.
    pub(crate) fn lay_out(&mut self, steps: impl Iterator<Item = Step>) {
        // Chunks of 0 bytes would panic; without bytes there are none.
        let values = self.values.chunks_exact_mut(self.space.value_size().max(1));
        for (step, value) in steps.zip(values) {
            self.space.value(step.key(), 0, value);
        }
    }

    /// Returns the value for step `index` of the block.
    #[inline]
    pub(crate) fn value(&self, index: usize) -> &[u8] {
        let size = self.space.value_size();
        &self.values[index * size..][..size]
    }
}

/// Returns nanoseconds per operation: the median over blocks. `run_block` returns the nanoseconds
/// and the operations of a block. The median discards blocks in which the thread lost its CPU.
pub(crate) fn ns_per_op(mut run_block: impl FnMut(&Stopwatch) -> (u64, u64)) -> f64 {
    let (clock, mut samples, mut spent_ns) = (Stopwatch::start(), Vec::new(), 0);
    while spent_ns < MEASURE_NS || samples.len() < BLOCKS_MIN {
        let (ns, operations) = run_block(&clock);
        // A block shorter than the clock's resolution must not keep the loop going.
        spent_ns += ns.max(1);
        samples.push(ns as f64 / operations.max(1) as f64);
    }
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
