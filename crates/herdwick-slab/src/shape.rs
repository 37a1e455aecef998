//! The division of a store's memory into index and slabs, and of slabs into chunks.

use std::io;

use herdwick_layout::chunk::HEADER;

use crate::{Growth, SlabConfig, SlabError, metas::META};

/// Bytes of a slab, unless the largest item is larger, or the memory small.
const SLAB_BYTES: usize = 1 << 20;
/// Slabs are halved, as far as they hold the largest item, until there are so many.
const SLABS: usize = 16;
/// The least number of slabs: then a class that has none can always get one.
const SLABS_MIN: usize = 4;
/// The index has a list for this many bytes of memory.
const BYTES_PER_LIST: usize = 128;
/// The part of the memory that the index takes: a word of 4 bytes for each list.
const INDEX_SHARE: usize = BYTES_PER_LIST / 4;
pub(crate) const PAGE: usize = 4 << 10;
/// Bytes of the place of a chunk, in memory that others READ.
pub(crate) const PLACE: usize = 8;
/// Chunks are whole words.
const ALIGN: usize = 8;
/// Most classes: more than any factor of use makes.
const CLASSES_MAX: usize = 1000;

/// The sizes of a store.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Lists of the index.
    pub(crate) lists: usize,
    pub(crate) slabs: usize,
    pub(crate) slab_bytes: usize,
    /// Bytes that cut slabs may take with what is kept of their chunks.
    pub(crate) budget: usize,
    /// Bytes of a chunk of each class, rising; the last is the whole slab.
    pub(crate) sizes: Vec<usize>,
    /// Bytes of what is kept of each chunk.
    kept: usize,
    memory_bytes: usize,
}

impl Shape {
    /// As [`Self::of`], for memory that others READ: it holds the places of chunks, and as much as a stag shows
    /// behind the last of them.
    pub(crate) fn of_published(config: &SlabConfig) -> Result<Self, SlabError> {
        let shape = Self::of(config)?;
        let behind = PAGE + shape.slab_bytes.next_power_of_two();
        let memory_bytes = config.memory_bytes.saturating_sub(behind);
        let less = SlabConfig {
            memory_bytes,
            ..*config
        };
        Ok(Self {
            kept: META + PLACE,
            ..Self::of(&less)?
        })
    }

    /// Returns the bytes that a slab of `chunks` chunks takes, with what is kept of each.
    pub(crate) fn taken(&self, chunks: usize) -> usize {
        self.slab_bytes + (chunks * self.kept).next_multiple_of(PAGE)
    }

    /// Computes the sizes that fit the memory.
    pub(crate) fn of(config: &SlabConfig) -> Result<Self, SlabError> {
        let (memory_bytes, item_bytes_max) = (config.memory_bytes, config.item_bytes_max);
        let largest = item_bytes_max.next_multiple_of(ALIGN).max(PAGE);
        let lists = (memory_bytes / BYTES_PER_LIST).max(1);
        // What the index takes, rounded up to whole pages, is not for slabs.
        let budget = memory_bytes.saturating_sub(memory_bytes.div_ceil(INDEX_SHARE) + PAGE);
        let mut slab_bytes = if largest > SLAB_BYTES {
            largest.next_multiple_of(PAGE)
        } else {
            SLAB_BYTES
        };
        while slab_bytes / 2 >= largest && budget / slab_bytes < SLABS {
            slab_bytes /= 2;
        }
        if budget < SLABS_MIN * (slab_bytes + PAGE) {
            let needed = SLABS_MIN * (slab_bytes + PAGE) + PAGE;
            return Err(SlabError::TooSmall {
                memory_bytes,
                item_bytes_max,
                // The index takes one part in `INDEX_SHARE` of the whole, so the rest is that much
                // less.
                needed: (needed.div_ceil(INDEX_SHARE - 1) * INDEX_SHARE).next_multiple_of(PAGE),
            });
        }
        let sizes = sizes(slab_bytes, config.growth);
        let chunks_max = slab_bytes / sizes[0];
        Ok(Self {
            // A list is chosen by 32 bits of the hash (`Index::list`).
            lists: lists.min(u32::MAX as usize),
            // Chunks are numbered by 32 bits, of which the last number is `Chunk::NONE`.
            slabs: (budget / slab_bytes).min((u32::MAX - 1) as usize >> shift(chunks_max)),
            slab_bytes,
            budget,
            sizes,
            kept: META,
            memory_bytes,
        })
    }

    /// Returns the bits that number the chunks of a slab.
    pub(crate) fn shift(&self) -> u32 {
        shift(self.slab_bytes / self.sizes[0])
    }

    /// Returns the error for memory that the kernel refused.
    pub(crate) fn refused(&self) -> impl Fn(io::Error) -> SlabError + use<> {
        let memory_bytes = self.memory_bytes;
        move |source| SlabError::Refused {
            memory_bytes,
            source,
        }
    }
}

fn shift(chunks_max: usize) -> u32 {
    chunks_max.next_power_of_two().ilog2()
}

/// Returns the bytes of the chunks of each class. What the chunks of a slab would leave over is divided
/// among them.
fn sizes(slab_bytes: usize, growth: Growth) -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut size = (HEADER + growth.smallest.max(1)).next_multiple_of(ALIGN);
    while size <= slab_bytes / 2 && sizes.len() < CLASSES_MAX - 1 {
        // As large as so many chunks of a slab can be: nothing is left over at its end.
        let size_evened = slab_bytes / (slab_bytes / size) / ALIGN * ALIGN;
        // Classes of nearly a slab's size may come to the same.
        if sizes.last() != Some(&size_evened) {
            sizes.push(size_evened);
        }
        let grown = (size as f64 * growth.factor.max(1.0)).min(slab_bytes as f64);
        size = (grown as usize).next_multiple_of(ALIGN).max(size + ALIGN);
    }
    sizes.push(slab_bytes);
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdwick_request::HashKey;

    fn config(memory_bytes: usize, item_bytes_max: usize, growth: Growth) -> SlabConfig {
        SlabConfig {
            memory_bytes,
            item_bytes_max,
            hash_key: HashKey([0; 2]),
            growth,
        }
    }

    #[test]
    fn reported_minimum_memory_is_enough() {
        for item_bytes_max in [64, 1000, 4096, 100_000, 1 << 20, 77 << 20] {
            let config = |memory_bytes| config(memory_bytes, item_bytes_max, Growth::default());
            let Err(SlabError::TooSmall { needed, .. }) = Shape::of(&config(1)) else {
                panic!("a byte holds {item_bytes_max}");
            };
            let shape = Shape::of(&config(needed)).unwrap();
            assert!(shape.slabs >= SLABS_MIN, "{shape:?}");
            let whole = SLABS_MIN * shape.taken(1);
            assert!(whole <= shape.budget && shape.budget + shape.lists * 4 <= needed);
        }
    }

    /// Doubling from 64 bytes to a slab of 1 MB, as in the paper.
    #[test]
    fn classes_double_as_in_the_paper() {
        let growth = Growth {
            factor: 2.0,
            smallest: 32,
        };
        let shape = Shape::of(&config(64 << 20, 1 << 20, growth)).unwrap();
        let doubled: Vec<usize> = (6..=20).map(|power| 1 << power).collect();
        assert_eq!(shape.sizes, doubled);
        assert_eq!((shape.slab_bytes, shape.shift()), (1 << 20, 14));
    }

    #[test]
    fn classes_rise_and_waste_less_than_the_factor() {
        for factor in [1.01, 1.25, 1.5, 4.0, f64::INFINITY] {
            let growth = Growth {
                factor,
                smallest: 48,
            };
            let sizes = Shape::of(&config(64 << 20, 1 << 20, growth)).unwrap().sizes;
            assert!(sizes.len() <= CLASSES_MAX && sizes[0] >= HEADER + 48);
            for pair in sizes.windows(2) {
                assert!(pair[0] < pair[1]);
                let apart = pair[1] as f64 / pair[0] as f64;
                // The last step is from two chunks a slab to one.
                assert!(apart <= (factor * 1.5).max(2.1), "{pair:?}");
            }
        }
    }
}
