//! The division of a store's memory into index, segments, and their table.

use std::io;

use herdwick_layout::bucket::{self, BLOCK, BUCKET, BUCKETS_MAX, GROWTH_BITS};

use crate::{StoreConfig, StoreError, segments::HEAD};

/// The index takes one part in this many of the memory. With items of 64 bytes (16-byte keys,
/// 32-byte values), five sixths of its slots are used when all segments but those that are kept free
/// or are being filled are full.
const INDEX_SHARE: usize = 8;
/// The largest item may take one part in this many of the segments: then room can always be made for
/// it.
const ITEM_SHARE: usize = 4;

/// A store of segments has about this many, unless they would be smaller or larger than ...
const SEGMENTS: usize = 256;
/// ... these bytes.
const SEGMENT_BYTES: std::ops::RangeInclusive<usize> = 4 << 10..=1 << 20;
/// Blocks of the index that an index grows from, at least: their number is rounded up.
const BLOCKS_MIN: usize = 8;
/// The step in which the memory that is needed is searched for.
const PAGE: usize = 4 << 10;
/// The least number of segments.
const SEGMENTS_MIN: usize = 24;

pub(crate) struct Shape {
    pub(crate) buckets: usize,
    /// The number of segments, and the bytes of each.
    pub(crate) segments: usize,
    pub(crate) segment_bytes: usize,
    /// How often the index may double.
    pub(crate) doublings: u32,
    memory_bytes: usize,
    /// The fewest segments that hold the largest item.
    segments_min: usize,
}

impl Shape {
    /// Computes the sizes that fit the memory.
    pub(crate) fn of(config: &StoreConfig) -> Result<Self, StoreError> {
        let (memory_bytes, item_bytes_max) = (config.memory_bytes, config.item_bytes_max);
        Self::divided(memory_bytes, item_bytes_max).ok_or_else(|| {
            // Between too little and enough, to the next page.
            let (mut least, mut most) = (0, item_bytes_max / PAGE + SEGMENTS_MIN);
            while Self::divided(most * PAGE, item_bytes_max).is_none() {
                // Sizes are rounded to powers of two, so the least that is enough is searched for.
                most *= 2;
            }
            while most - least > 1 {
                let middle = usize::midpoint(least, most);
                match Self::divided(middle * PAGE, item_bytes_max) {
                    Some(_) => most = middle,
                    None => least = middle,
                }
            }
            StoreError::TooSmall {
                memory_bytes,
                item_bytes_max,
                needed: most * PAGE,
            }
        })
    }

    /// Divides the memory into index and segments; `None` if those do not hold the largest item.
    fn divided(memory_bytes: usize, item_bytes_max: usize) -> Option<Self> {
        let buckets = (memory_bytes / INDEX_SHARE / BUCKET).min(BUCKETS_MAX);
        let buckets = buckets - buckets % bucket::block(buckets).max(1);
        let rest = memory_bytes - buckets * BUCKET;
        let (least, most) = SEGMENT_BYTES.into_inner();
        let segment_bytes = (rest / SEGMENTS).clamp(least, most).next_power_of_two();
        let segments = rest / (segment_bytes + HEAD);
        let largest = item_bytes_max.div_ceil(segment_bytes);
        let fits = buckets > 0 && segments >= SEGMENTS_MIN && largest <= segments / ITEM_SHARE;
        fits.then_some(Self {
            buckets,
            segments,
            segment_bytes,
            doublings: 0,
            memory_bytes,
            segments_min: SEGMENTS_MIN.max(largest * ITEM_SHARE),
        })
    }

    /// Returns the shape whose index begins with the fewest blocks, and grows to as many as the others
    /// have. Its segments take what is left, and are ceded as it grows.
    pub(crate) fn growing(self) -> Self {
        let blocks = self.buckets / BLOCK;
        let doublings = (blocks / BLOCKS_MIN).max(1).ilog2().min(GROWTH_BITS);
        if doublings == 0 {
            return self;
        }
        let segments = |buckets: usize| {
            let rest = self.memory_bytes - buckets * BUCKET;
            rest / (self.segment_bytes + HEAD)
        };
        let mut buckets = blocks.div_ceil(1 << doublings) * BLOCK;
        // The largest index leaves room for the largest item.
        if segments(buckets << doublings) < self.segments_min {
            buckets = (blocks >> doublings) * BLOCK;
        }
        Self {
            buckets,
            segments: segments(buckets),
            doublings,
            ..self
        }
    }

    /// Returns the bytes that index and the table of segments leave to the index.
    pub(crate) fn index_room(&self) -> usize {
        self.memory_bytes - self.segments * (self.segment_bytes + HEAD)
    }

    /// Returns the bytes of memory for items.
    pub(crate) fn item_bytes(&self) -> usize {
        self.segments * self.segment_bytes
    }

    /// Returns the conversion of a kernel error to a [`StoreError`].
    pub(crate) fn refused(&self) -> impl Fn(io::Error) -> StoreError + use<> {
        let memory_bytes = self.memory_bytes;
        move |source| StoreError::Refused {
            memory_bytes,
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdwick_request::HashKey;

    #[test]
    fn reported_minimum_memory_is_enough() {
        for item_bytes_max in [64, 1000, 4096, 100_000, 1 << 20, 77 << 20] {
            let config = |memory_bytes| StoreConfig {
                memory_bytes,
                item_bytes_max,
                hash_key: HashKey([0; 2]),
            };
            let Err(StoreError::TooSmall { needed, .. }) = Shape::of(&config(1)) else {
                panic!("a byte holds {item_bytes_max}");
            };
            let shape = Shape::of(&config(needed)).unwrap();
            let table = shape.segments * HEAD;
            let all = shape.buckets * BUCKET + shape.item_bytes() + table;
            assert!(all <= needed);
            // The largest item fits when the index has grown, too.
            for memory_bytes in (needed..2 * needed).step_by(needed / 64) {
                let shape = Shape::of(&config(memory_bytes)).unwrap().growing();
                let rest = memory_bytes - (shape.buckets << shape.doublings) * BUCKET;
                let segments = rest / (shape.segment_bytes + HEAD);
                let largest = item_bytes_max.div_ceil(shape.segment_bytes);
                assert!(
                    segments >= SEGMENTS_MIN && largest <= segments / ITEM_SHARE,
                    "{memory_bytes} bytes for items of {item_bytes_max}"
                );
            }
        }
    }
}
