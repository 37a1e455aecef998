//! The layout of a bucket of the store's index: eight slots of tag and offset in one cache line,
//! and which two buckets a key may be in.

use herdwick_request::KeyHash;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::item::ALIGN;

/// The position of an item in bytes from the beginning of all items' memory, a multiple of 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset(pub usize);

/// Slots of a bucket.
pub const WAYS: usize = 8;

/// One cache line of eight slots. The tags are adjacent, four to a word, so that a word compares
/// four at once. A tag is never 0; a slot with tag 0 is free. Offsets are in units of 8 bytes.
#[derive(Clone, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(64))]
pub struct Bucket {
    tags: [u64; 2],
    low: [u32; WAYS],
    /// Bits 32..42 of the offsets in bits 0 to 9, then [`growth`]. Bit 15 of `high[0]` is the bucket's
    /// overflow mark.
    high: [u16; WAYS],
}

/// Bytes of a bucket.
pub const BUCKET: usize = size_of::<Bucket>();
// The tags come first, so that one load of 16 bytes has all of them.
const _: () = assert!(BUCKET == 64 && std::mem::offset_of!(Bucket, low) == 16);
const _: () = assert!(std::mem::offset_of!(Bucket, high) == 48);

/// Maximum number of buckets that 32 bits of hash distinguish: 256 GiB of them.
pub const BUCKETS_MAX: usize = 1 << 32;

const OVERFLOWED: u16 = 1 << 15;
/// The bits of [`growth`] in `high`.
const GROWTH_AT: u32 = 10;
const GROWTH: u16 = ((1 << GROWTH_BITS) - 1) << GROWTH_AT;
const _: () = assert!(GROWTH & OVERFLOWED == 0);
/// 2^32 over the golden ratio: spreads bits upwards.
const SPREAD: u32 = 0x9e37_79b1;
/// 1 in each of a word's four tags.
const EACH: u64 = 0x0001_0001_0001_0001;

/// Buckets of a block: the two buckets of a key are in one. A smaller index is one block.
pub const BLOCK: usize = 128;

/// Returns the buckets of a block of an index of so many buckets, a multiple of [`BLOCK`] or less than
/// that.
#[inline]
#[must_use]
pub const fn block(buckets: usize) -> usize {
    if buckets < BLOCK { buckets } else { BLOCK }
}

/// Returns the first of the two buckets of a hash among `buckets`, which do not grow.
#[inline]
#[must_use]
pub fn first(hash: KeyHash, buckets: usize) -> usize {
    // Both buckets of a key lie in one block, so that a block can be divided without the others.
    let block = block(buckets);
    // Multiply-shift instead of a remainder: any number of blocks, and no division.
    block_among(hash, buckets / block) * block + within(hash, block)
}

/// Returns the block of a hash among so many: bits 16..48, scaled by multiply-shift.
#[inline]
#[must_use]
pub fn block_among(hash: KeyHash, blocks: usize) -> usize {
    scale((hash.0 >> 16) as u32, blocks)
}

/// Returns the number of a hash's first bucket in its block of so many.
#[inline]
#[must_use]
pub fn within(hash: KeyHash, block: usize) -> usize {
    // The block takes the upper bits of the same 32; the product lets the lower ones decide here.
    scale(((hash.0 >> 16) as u32).wrapping_mul(SPREAD), block)
}

/// Returns the other bucket of an entry: in the block, `point - bucket` modulo the buckets of a block,
/// where `point` depends on the tag alone. So the function is its own inverse for any number of
/// buckets, where the usual XOR needs a power of two.
#[inline]
#[must_use]
pub fn other(bucket: usize, tag: u16, buckets: usize) -> usize {
    let block = block(buckets);
    let at = bucket % block;
    let point = scale(u32::from(tag).wrapping_mul(SPREAD), block);
    let other = if point >= at {
        point - at
    } else {
        point + block - at
    };
    // The block stays.
    bucket - at + other
}

/// Bits of a hash by which an index that grows divides a block: [`growth`].
pub const GROWTH_BITS: u32 = 5;

/// Returns the bits by which a hash's block is divided, one each time that the index doubles.
#[inline]
#[must_use]
pub fn growth(hash: KeyHash) -> u16 {
    (hash.0 >> 16) as u16 & ((1 << GROWTH_BITS) - 1)
}

impl Bucket {
    /// Returns the ways with this tag; tag 0 for the free ones.
    #[inline]
    #[must_use]
    pub fn ways(&self, tag: u16) -> Ways {
        let pattern = u64::from(tag) * EACH;
        let [first, second] = self.tags.map(|tags| zero_tags(tags ^ pattern));
        // The top bits of the first word move to bits 0, 16, 32, 48, those of the second beside
        // them.
        Ways(first >> 15 | second >> 14)
    }

    /// Returns a free way, if there is one.
    #[inline]
    #[must_use]
    pub fn free(&self) -> Option<usize> {
        self.ways(0).next()
    }

    /// Returns the tag and the offset of a way.
    #[inline]
    #[must_use]
    pub fn entry(&self, way: usize) -> (u16, Offset) {
        let tag = (self.tags[way / 4] >> (way % 4 * 16)) as u16;
        (tag, self.offset(way))
    }

    /// Returns the offset of a way.
    #[inline]
    #[must_use]
    pub fn offset(&self, way: usize) -> Offset {
        // Bits 10 to 15 are not part of the offset.
        let high = u64::from(self.high[way] & !OVERFLOWED & !GROWTH);
        Offset((high << 32 | u64::from(self.low[way])) as usize * ALIGN)
    }

    /// Returns the bits by which the block of a way's entry is divided.
    #[inline]
    #[must_use]
    pub fn growth(&self, way: usize) -> u16 {
        (self.high[way] & GROWTH) >> GROWTH_AT
    }

    /// Writes the entry of a way: tag, offset, and the bits by which its block is divided.
    #[inline]
    pub fn set(&mut self, way: usize, tag: u16, growth: u16, offset: Offset) {
        let units = (offset.0 / ALIGN) as u64;
        self.low[way] = units as u32;
        let high = growth << GROWTH_AT | (units >> 32) as u16;
        // The mark is the bucket's, and stays when its first way is written.
        self.high[way] = (self.high[way] & OVERFLOWED) | high;
        // Last: the tag is what makes the entry one.
        self.set_tag(way, tag);
    }

    /// Changes the tag of a way; 0 frees it.
    #[inline]
    pub fn set_tag(&mut self, way: usize, tag: u16) {
        let shift = way % 4 * 16;
        let word = &mut self.tags[way / 4];
        *word = *word & !(0xffff << shift) | u64::from(tag) << shift;
    }

    /// Returns whether an entry whose first bucket is this one may be in its other bucket.
    #[inline]
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.high[0] & OVERFLOWED != 0
    }

    /// Marks the bucket as overflowed; the mark stays until the bucket is emptied as a whole.
    #[inline]
    pub fn mark_overflowed(&mut self) {
        self.high[0] |= OVERFLOWED;
    }
}

/// A set of ways of a bucket: way `w` is bit `w % 4 * 16 + w / 4`.
#[derive(Clone, Copy, Debug)]
pub struct Ways(u64);

impl Iterator for Ways {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        // Clears the lowest bit.
        self.0 &= self.0 - 1;
        // In range already; the remainder lets the compiler drop the check of each index.
        Some((bit / 16 + bit % 16 * 4) % WAYS)
    }
}

/// Returns a word with the top bit set of each 16-bit part of `word` that is 0.
#[inline]
fn zero_tags(word: u64) -> u64 {
    // Adding to the low 15 bits alone cannot carry into the next part, so there are no false
    // matches, unlike with the shorter `word - EACH & !word`.
    const LOW: u64 = 0x7fff * EACH;
    !(((word & LOW) + LOW) | word | LOW)
}

/// Returns the tag of a hash: bits 0..16. Tag 0 marks a free slot, so hashes with 0 there share
/// tag 1.
#[inline]
#[must_use]
pub fn tag(hash: KeyHash) -> u16 {
    // Tag 1 then has twice the keys of another.
    (hash.0 as u16).max(1)
}

#[inline]
fn scale(x: u32, n: usize) -> usize {
    ((u64::from(x) * n as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tags_of_a_word_are_matched() {
        assert_eq!(zero_tags(0), 0x8000 * EACH);
        assert_eq!(zero_tags(0x0001_0000_8000_ffff), 0x0000_8000_0000_0000);
        assert_eq!(zero_tags(0x8000_7fff_0001_0000), 0x0000_0000_0000_8000);
    }
}
