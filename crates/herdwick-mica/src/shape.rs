//! The division of a store's memory into index, and segments with their table, or superblock and log.

use std::io;

use herdwick_layout::{
    bucket::{BUCKET, BUCKETS_MAX},
    item::ALIGN,
};

use crate::{
    StoreConfig, StoreError, StoreKind,
    segments::HEAD,
    superblock::{STRIDE, Superblock},
};

/// The index takes one part in this many of the memory. With items of 80 bytes (16-byte keys,
/// 32-byte values), four fifths of its slots are used when the log is full.
const INDEX_SHARE: usize = 9;
/// The largest item may take one part in this many of the log or of the segments: then room can
/// always be made for it and for what it skips.
const ITEM_SHARE: usize = 4;

/// A store of segments has about this many, unless they would be smaller or larger than ...
const SEGMENTS: usize = 256;
/// ... these bytes.
const SEGMENT_BYTES: std::ops::RangeInclusive<usize> = 4 << 10..=1 << 20;
/// The step in which the memory that is needed is searched for.
const PAGE: usize = 4 << 10;
/// The least number of segments.
const SEGMENTS_MIN: usize = 24;

pub(crate) struct Shape {
    pub(crate) buckets: usize,
    /// Bytes of the log; 0 if there are segments.
    pub(crate) log_bytes: usize,
    /// The number of segments, and the bytes of each.
    pub(crate) segments: usize,
    pub(crate) segment_bytes: usize,
    memory_bytes: usize,
}

impl Shape {
    /// Computes the sizes that fit the memory.
    pub(crate) fn of(config: &StoreConfig) -> Result<Self, StoreError> {
        if config.kind == StoreKind::Segments {
            return Self::of_segments(config);
        }
        let StoreConfig {
            memory_bytes,
            item_bytes_max,
            ..
        } = *config;
        let buckets = (memory_bytes / INDEX_SHARE / BUCKET).min(BUCKETS_MAX);
        let rest = memory_bytes - buckets * BUCKET;
        let word = size_of::<u64>();
        let superblock = Superblock::words(rest) * word;
        let log_bytes = rest.saturating_sub(superblock) / ALIGN * ALIGN;
        if buckets == 0 || item_bytes_max > log_bytes / ITEM_SHARE {
            let log = item_bytes_max.max(BUCKET) * ITEM_SHARE;
            // An upper bound: the superblock's words are counted for a log that includes them
            // (8 bytes for each STRIDE of 8 KiB are less than 1/512).
            let with_book = log + Superblock::words(log + log / 512 + STRIDE) * word + ALIGN;
            return Err(StoreError::TooSmall {
                memory_bytes,
                item_bytes_max,
                needed: (with_book.div_ceil(INDEX_SHARE - 1) * INDEX_SHARE)
                    .max(INDEX_SHARE * BUCKET),
            });
        }
        Ok(Self {
            buckets,
            log_bytes,
            segments: 0,
            segment_bytes: 1,
            memory_bytes,
        })
    }

    fn of_segments(config: &StoreConfig) -> Result<Self, StoreError> {
        let (memory_bytes, item_bytes_max) = (config.memory_bytes, config.item_bytes_max);
        Self::divided(memory_bytes, item_bytes_max).ok_or_else(|| {
            // Between too little and enough, to the next page.
            let (mut least, mut most) = (0, item_bytes_max / PAGE + SEGMENTS_MIN);
            while Self::divided(most * PAGE, item_bytes_max).is_none() {
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
        let rest = memory_bytes - buckets * BUCKET;
        let (least, most) = SEGMENT_BYTES.into_inner();
        let segment_bytes = (rest / SEGMENTS).clamp(least, most).next_power_of_two();
        let segments = rest / (segment_bytes + HEAD);
        let largest = item_bytes_max.div_ceil(segment_bytes);
        let fits = buckets > 0 && segments >= SEGMENTS_MIN && largest <= segments / ITEM_SHARE;
        fits.then_some(Self {
            buckets,
            log_bytes: 0,
            segments,
            segment_bytes,
            memory_bytes,
        })
    }

    /// Returns the bytes of memory for items.
    pub(crate) fn item_bytes(&self) -> usize {
        self.log_bytes + self.segments * self.segment_bytes
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
                kind: StoreKind::Log,
            };
            let Err(StoreError::TooSmall { needed, .. }) = Shape::of(&config(1)) else {
                panic!("a byte holds {item_bytes_max}");
            };
            let shape = Shape::of(&config(needed)).unwrap();
            let all =
                shape.buckets * BUCKET + shape.log_bytes + Superblock::words(shape.log_bytes) * 8;
            assert!(all <= needed);
        }
    }
}
