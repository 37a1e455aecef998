//! A store in published memory: where its parts lie, and what a reader of them may believe. The reader
//! maps the memory, or has copies of it; its words may change between any two loads.

use std::sync::atomic::{Ordering, fence};

use herdwick_mem::{WORD, Words};
use herdwick_request::{Deadline, KeyHash, Second};

use crate::{
    bucket::{self, BUCKET, BUCKETS_MAX, Bucket, Offset},
    item::{self, HEADER_MAX, HEADER_MIN, Header, bit},
};

/// The words at the beginning of the memory. All are constant but [`Word::Flushed`] and
/// [`Word::FlushAt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Word {
    /// [`MAGIC`].
    Magic,
    /// Buckets of the index.
    Buckets,
    /// Segments.
    Segments,
    /// Bytes of a segment.
    SegmentBytes,
    /// The offset of the index, in bytes.
    Index,
    /// The offset of the first segment, in bytes.
    Items,
    /// The monotonic clock in nanoseconds at which the store's second 0 began, of this host; 0 if
    /// readers are not to tell the time.
    Clock,
    /// Items of runs of segments with a lower sequence number are flushed.
    Flushed = 8,
    /// The second of the flush that is due next; 0 for none.
    FlushAt,
    /// The first of the words of segments, one each: 1 more than the sequence number of the run that it
    /// belongs to; 0 for a segment that is free.
    Runs = 16,
}

/// What [`Word::Magic`] is: name and version of the layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"hwstore\x02");
/// The parts begin at multiples of this.
pub const PAGE: usize = 4096;

/// The sizes of a store in published memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Buckets of the index.
    pub buckets: usize,
    /// Segments, and the bytes of each, a power of 2.
    pub segments: usize,
    /// Bytes of a segment.
    pub segment_bytes: usize,
}

impl Geometry {
    /// Returns the bytes of the words before the index.
    #[must_use]
    pub fn head_bytes(&self) -> usize {
        ((Word::Runs as usize + self.segments) * WORD).next_multiple_of(PAGE)
    }

    /// Returns the offset of the index.
    #[must_use]
    pub fn index(&self) -> usize {
        self.head_bytes()
    }

    /// Returns the offset of the first segment.
    #[must_use]
    pub fn items(&self) -> usize {
        self.index() + (self.buckets * BUCKET).next_multiple_of(PAGE)
    }

    /// Returns the bytes in all.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.items() + self.segments * self.segment_bytes
    }

    /// Writes the constant words.
    pub fn describe(&self, words: &impl Words) {
        let put = |word: Word, value: usize| words.store(word as usize, value as u64);
        put(Word::Buckets, self.buckets);
        put(Word::Segments, self.segments);
        put(Word::SegmentBytes, self.segment_bytes);
        put(Word::Index, self.index());
        put(Word::Items, self.items());
        // Last: who finds the magic finds the other words.
        words.store_release(Word::Magic as usize, MAGIC);
    }

    /// Reads the constant words; `None` if they do not describe a store in so many words.
    fn read(words: &impl Words) -> Option<Self> {
        if words.count() <= Word::Runs as usize || words.load(Word::Magic as usize) != MAGIC {
            return None;
        }
        let get = |word: Word| usize::try_from(words.load(word as usize)).ok();
        let geometry = Self {
            // The bounds keep `bytes` from overflowing: 2^32 segments of 2^30 bytes are 2^62.
            buckets: get(Word::Buckets).filter(|n| (1..=BUCKETS_MAX).contains(n))?,
            segments: get(Word::Segments).filter(|n| (1..=1 << 32).contains(n))?,
            segment_bytes: get(Word::SegmentBytes)
                .filter(|n| n.is_power_of_two() && (PAGE..=1 << 30).contains(n))?,
        };
        // Stored though they follow from the sizes: a store of another layout disagrees.
        let agrees = geometry.index() == get(Word::Index)? && geometry.items() == get(Word::Items)?;
        (agrees && geometry.bytes() <= words.count() * WORD).then_some(geometry)
    }
}

/// An entry of the index that may be a key's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    bucket: usize,
    way: usize,
    tag: u16,
    /// Where the item lies.
    pub at: Offset,
}

/// An item as it was read, and checked: it was the key's at a time between the first load for it and
/// the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// What is known of the item.
    pub header: Header,
    /// Bytes of the copy before the value.
    pub front: usize,
}

/// Why a reader has no answer, and asks the store's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsure {
    /// The index has no entry for the key: it is not stored, or is being moved.
    Absent,
    /// The checksum is another one: the item is being written, or is dead.
    Torn,
    /// The index has another item for the key meanwhile.
    Moved,
    /// The item was flushed, or a flush is due.
    Flushed,
    /// The item has expired, or there is no clock to tell by.
    Expired,
    /// The item is marked stale: one reader wins the right to store it anew.
    Stale,
    /// The item is larger than the reader wants.
    Large,
}

/// What a look at one entry of the index came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The key's item.
    Hit(Hit),
    /// An item of another key, or none.
    Other(Unsure),
    /// The key's item, probably, which the reader cannot judge.
    Unsure(Unsure),
}

/// A reader's view of a store in published memory.
///
/// A look-up is [`Self::prefetch`], [`Self::locate`], [`Self::look`], with other look-ups in between
/// while the memory of each comes. What is returned as a hit is never torn, another key's, deleted,
/// replaced, expired or flushed before the look-up began:
///
/// - the store completes an item before it points the index to it, and inverts the checksum of one that is
///   deleted, replaced, moved or evicted before its memory is used again. So an item with a valid
///   checksum is a current one, or one that becomes it;
/// - the second load of the entry, after the item's, excludes the latter;
/// - the word of the segment is loaded before the item, and a segment's sequence number only rises.
#[derive(Clone, Debug)]
pub struct View<W> {
    words: W,
    geometry: Geometry,
    /// Bytes of a segment, as a power of 2.
    shift: u32,
    index: usize,
    items: usize,
}

impl<W: Words> View<W> {
    /// Returns the view of a store; `None` if the words are not those of one.
    pub fn open(words: W) -> Option<Self> {
        let geometry = Geometry::read(&words)?;
        Some(Self {
            words,
            geometry,
            shift: geometry.segment_bytes.ilog2(),
            index: geometry.index() / WORD,
            items: geometry.items() / WORD,
        })
    }

    /// Returns the monotonic clock in nanoseconds at which second 0 of the store began, if it is
    /// known to readers.
    pub fn clock(&self) -> Option<u64> {
        let clock = self.words.load(Word::Clock as usize);
        (clock > 0).then_some(clock)
    }

    /// Prefetches the first bucket of a key.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash) {
        let first = bucket::first(hash, self.geometry.buckets);
        self.words.prefetch(self.index + first * (BUCKET / WORD));
    }

    /// Returns the entry of a key that matches after `skip` others, and prefetches its item.
    #[inline]
    pub fn locate(&self, hash: KeyHash, skip: usize) -> Option<Pointer> {
        let (tag, first) = (
            bucket::tag(hash),
            bucket::first(hash, self.geometry.buckets),
        );
        // A copy: all that follows is of one state of the bucket, or of two mixed, which the item's
        // check finds.
        let slots = self.bucket(first);
        let mut ways = slots.ways(tag);
        let mut found = ways.nth(skip).map(|way| (first, way, slots.offset(way)));
        if found.is_none() && slots.overflowed() {
            // No underflow: the first bucket had at most `skip` matches.
            let skip = skip - slots.ways(tag).count();
            let other = bucket::other(first, tag, self.geometry.buckets);
            let slots = self.bucket(other);
            found = slots
                .ways(tag)
                .nth(skip)
                .map(|way| (other, way, slots.offset(way)));
        }
        let (bucket, way, at) = found?;
        let word = self.items + at.0 / WORD;
        self.words.prefetch(word);
        // A lined item begins at a half or a whole line, and lies within one line. Others may cross
        // into the next.
        if !at.0.is_multiple_of(item::LINE / 2) {
            self.words.prefetch(word + item::LINE / WORD);
        }
        Some(Pointer {
            bucket,
            way,
            tag,
            at,
        })
    }

    /// Copies the item at `pointer` to `copy`, if it is one of `key` of at most `most` bytes in all, and
    /// judges it. `now` is asked once the copy is made, and only where there is a deadline.
    #[inline]
    pub fn look(
        &self,
        pointer: &Pointer,
        key: &[u8],
        most: usize,
        now: impl FnOnce() -> Option<Second>,
        copy: &mut Vec<u8>,
    ) -> Look {
        let segment = pointer.at.0 >> self.shift;
        let end = self.geometry.segments << self.shift;
        // The entry may be torn: the words outside would panic.
        if pointer.at.0 + HEADER_MAX > end {
            return Look::Other(Unsure::Torn);
        }
        // Before the item, as the doc of [`View`] demands: a segment that is used anew gets a
        // higher number.
        let run = self.words.load_acquire(Word::Runs as usize + segment);
        let first = self.items + pointer.at.0 / WORD;
        let head: [u64; HEADER_MAX / WORD] = self.words.copy_out(first);
        let header = Header::read(head.map(u64::to_le_bytes).as_flattened());
        if usize::from(header.key_len) != key.len() {
            return Look::Other(Unsure::Torn);
        }
        let len = header.end();
        if len > most {
            return Look::Unsure(Unsure::Large);
        }
        if pointer.at.0 + len > end {
            return Look::Other(Unsure::Torn);
        }
        copy_bytes(&self.words, first, len, copy);
        // The entry is loaded again after the item.
        fence(Ordering::Acquire);
        self.judge(pointer, key, run, now, copy)
    }

    /// Judges a copy of an item, which was made after the word of its segment was loaded.
    #[inline]
    fn judge(
        &self,
        pointer: &Pointer,
        key: &[u8],
        run: u64,
        now: impl FnOnce() -> Option<Second>,
        copy: &[u8],
    ) -> Look {
        // Before the checksum, which costs more; most false matches end here.
        if !item::has_key(copy, key) {
            return Look::Other(Unsure::Torn);
        }
        let Some(header) = item::intact(copy) else {
            return Look::Unsure(Unsure::Torn);
        };
        let slots = self.bucket(pointer.bucket);
        // The item is still the key's, or was until the second load.
        if slots.entry(pointer.way) != (pointer.tag, pointer.at) {
            return Look::Unsure(Unsure::Moved);
        }
        // Before the other word, which is stored first: a flush is found due, or done.
        let flush_at = self.words.load_acquire(Word::FlushAt as usize);
        // The word is one more than the sequence number, so `<=` means that the number is lower. A
        // free segment, 0, is flushed always.
        if run <= self.words.load(Word::Flushed as usize) {
            return Look::Unsure(Unsure::Flushed);
        }
        if flush_at > 0 || header.deadline != Deadline::NEVER {
            let Some(now) = now() else {
                return Look::Unsure(Unsure::Expired);
            };
            if flush_at > 0 && flush_at <= u64::from(now.0) {
                return Look::Unsure(Unsure::Flushed);
            }
            if header.deadline.passed(now) {
                return Look::Unsure(Unsure::Expired);
            }
        }
        if header.has(bit::STALE) {
            return Look::Unsure(Unsure::Stale);
        }
        let front = header.front();
        Look::Hit(Hit { header, front })
    }

    #[inline]
    fn bucket(&self, bucket: usize) -> Bucket {
        let words: [u64; BUCKET / WORD] =
            self.words.copy_out(self.index + bucket * (BUCKET / WORD));
        zerocopy::transmute!(words)
    }
}

/// Copies `len` bytes from word `first` on to `copy`, and nothing else.
#[inline]
pub(crate) fn copy_bytes(words: &impl Words, first: usize, len: usize, copy: &mut Vec<u8>) {
    const LINE: usize = item::LINE / WORD;
    copy.clear();
    // Whole words: the bytes behind the item are cut off below.
    let count = len.div_ceil(WORD);
    let lines = count / LINE;
    // By lines of constant length, which the compiler unrolls.
    for line in 0..lines {
        let words: [u64; LINE] = words.copy_out(first + line * LINE);
        copy.extend_from_slice(words.map(u64::to_le_bytes).as_flattened());
    }
    for word in lines * LINE..count {
        copy.extend_from_slice(&words.load(first + word).to_le_bytes());
    }
    copy.truncate(len);
}

const _: () = assert!(HEADER_MIN.is_multiple_of(WORD) && item::ALIGN == WORD);
