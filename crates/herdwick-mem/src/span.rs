//! Memory that a peer may write at any instant, accessed only as whole atomic words and copies of
//! them.

use std::{fmt, io, ops::Range, ptr::NonNull, sync::Arc};

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::{Access, LINE, Mapping, WORD, Words};

/// Attempts to change part of a word while another thread or process keeps changing it.
const MERGES_MAX: usize = 64;

/// A range lies outside its span, or is not word-aligned where it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfSpan;

impl fmt::Display for OutOfSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("range lies outside the span or is not word-aligned")
    }
}

impl std::error::Error for OutOfSpan {}

/// A run of aligned 8-byte words that a peer may write at any instant.
/// Clones share the same memory; the last one unmaps it. No method returns a reference into it:
/// copy out, then validate the copy. Words read separately may belong to different writes. Methods
/// panic on a word or byte range out of bounds; check a range that a peer chose with
/// [`Span::slice`] first, which returns an error instead.
#[derive(Clone)]
pub struct Span {
    base: NonNull<AtomicU64>,
    words: usize,
    access: Access,
    mapping: Arc<Mapping>,
}

// SAFETY: every access through a Span is an atomic operation on a word of a mapping that the Arc
// keeps alive, so spans may be used from any thread. If it is mapped read-only, only relaxed loads
// are possible: all other operations assert that it is writable.
unsafe impl Send for Span {}
// SAFETY: as for Send; no operation on `&Span` conflicts with one on another thread's `&Span`.
unsafe impl Sync for Span {}

impl Span {
    /// Covers the whole of `mapping`.
    #[must_use]
    pub fn new(mapping: Arc<Mapping>) -> Self {
        // Whole words: the bytes behind the last one, if any, are never accessed.
        let words = mapping.len() / WORD;
        Self {
            base: mapping.base().cast(),
            words,
            access: mapping.access(),
            mapping,
        }
    }

    /// Allocates zeroed private memory of `len` bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        Ok(Self::new(Arc::new(Mapping::anonymous(len)?)))
    }

    /// Returns the words of `bytes`, a byte range within this span.
    ///
    /// # Errors
    /// [`OutOfSpan`] when the range leaves the span or is not word-aligned at both ends.
    pub fn slice(&self, bytes: Range<usize>) -> Result<Self, OutOfSpan> {
        let aligned = bytes.start.is_multiple_of(WORD) && bytes.end.is_multiple_of(WORD);
        if !aligned || bytes.start > bytes.end || bytes.end > self.len() {
            return Err(OutOfSpan);
        }
        // SAFETY: start <= end <= len, checked above, so the offset stays inside the mapping (or
        // one past its end, for an empty span).
        let base = unsafe { self.base.add(bytes.start / WORD) };
        let words = (bytes.end - bytes.start) / WORD;
        Ok(Self {
            base,
            words,
            access: self.access,
            mapping: Arc::clone(&self.mapping),
        })
    }

    /// Returns the length in bytes, a multiple of [`WORD`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.words * WORD
    }

    /// Returns whether the span is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words == 0
    }

    /// Returns what this process may do with it.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the start address, for a device that accesses the memory by DMA. Each access through
    /// the pointer needs its own argument for soundness; this call forms no reference.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u64 {
        self.base.as_ptr().cast()
    }

    #[cfg(test)]
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        if index >= self.words {
            outside(index, 1, self.words);
        }
        // SAFETY: in bounds by the check, aligned because the mapping is page-aligned and
        // indexed by words, alive by the Arc. The reference does not leave this module.
        unsafe { self.base.add(index).as_ref() }
    }

    #[inline]
    fn run(&self, first: usize, count: usize) -> &[AtomicU64] {
        // Not `first + count`, which could overflow.
        let fits = first <= self.words && count <= self.words - first;
        if !fits {
            outside(first, count, self.words);
        }
        // SAFETY: in bounds by the check; alignment and life as in `word`. AtomicU64 allows
        // concurrent change, so a shared slice over racing memory is sound; it stays in here.
        unsafe { std::slice::from_raw_parts(self.base.add(first).as_ptr(), count) }
    }

    #[inline]
    fn writable(&self) {
        // A check instead of a signal: the memory is mapped read-only.
        assert!(
            self.access() == Access::ReadWrite,
            "store through a read-only span"
        );
    }

    /// Copies `N` words out, starting at word `first` (relaxed).
    #[inline]
    #[must_use]
    pub fn read_words<const N: usize>(&self, first: usize) -> [u64; N] {
        let run = self.run(first, N);
        // Relaxed: what must come before is loaded by `load_acquire`; the copy is checked, whatever it
        // holds.
        std::array::from_fn(|i| run[i].load(Ordering::Relaxed))
    }

    /// Stores `words` from word `first` on, the last one after all others (release).
    #[inline]
    pub fn write_words(&self, first: usize, words: &[u64]) {
        self.writable();
        let run = self.run(first, words.len());
        let Some((last, rest)) = words.split_last() else {
            return;
        };
        for (to, from) in run.iter().zip(rest) {
            to.store(*from, Ordering::Relaxed);
        }
        // Release on the last word alone: who loads it with acquire sees the words before it.
        run[rest.len()].store(*last, Ordering::Release);
    }

    /// Copies bytes out from byte `offset` on, by words.
    #[inline]
    pub fn read_bytes(&self, offset: usize, out: &mut [u8]) {
        // Up to the first word boundary, then words, then the rest: each word is loaded once.
        let (head, rest) = out.split_at_mut(to_word(offset).min(out.len()));
        self.read_part(offset, head);
        let offset = offset + head.len();
        let (words, tail) = rest.as_chunks_mut::<WORD>();
        if !words.is_empty() {
            let run = self.run(offset / WORD, words.len());
            for (to, from) in words.iter_mut().zip(run) {
                *to = from.load(Ordering::Relaxed).to_le_bytes();
            }
        }
        self.read_part(offset + words.len() * WORD, tail);
    }

    /// Copies bytes out of one word, for [`Span::read_bytes`].
    #[inline]
    fn read_part(&self, offset: usize, out: &mut [u8]) {
        if !out.is_empty() {
            let skip = offset % WORD;
            let word = self.word(offset / WORD).load(Ordering::Relaxed);
            out.copy_from_slice(&word.to_le_bytes()[skip..skip + out.len()]);
        }
    }

    /// Stores bytes from byte `offset` on, by words, the word with the last byte last (release). A
    /// compare-and-swap leaves the bytes beside the range as they are, even while another thread
    /// changes them, unless that thread wins `MERGES_MAX` (64) races in a row.
    #[inline]
    pub fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        self.writable();
        // Rising order, and the last part by a release: a poller of the last word sees all.
        let (head, rest) = bytes.split_at(to_word(offset).min(bytes.len()));
        self.write_part(offset, head);
        let offset = offset + head.len();
        let (words, tail) = rest.as_chunks::<WORD>();
        if let Some((last, before)) = words.split_last() {
            let run = self.run(offset / WORD, words.len());
            for (to, from) in run.iter().zip(before) {
                to.store(u64::from_le_bytes(*from), Ordering::Relaxed);
            }
            run[before.len()].store(u64::from_le_bytes(*last), Ordering::Release);
        }
        self.write_part(offset + words.len() * WORD, tail);
    }

    /// Stores bytes within one word, for [`Span::write_bytes`].
    #[inline]
    fn write_part(&self, offset: usize, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.merge(offset, bytes);
        }
    }

    /// Copies `len` bytes from byte `from_at` of another span to byte `offset` of this one, in rising
    /// order, by words; the word with the last byte is stored last (release). Each word of `from` is
    /// loaded once, whatever the alignments. Either span may change meanwhile; they must not overlap.
    pub fn copy_from(&self, offset: usize, from: &Self, from_at: usize, len: usize) {
        self.writable();
        // The parts of this side; `source` moves over the other's words whatever their alignment.
        let head = to_word(offset).min(len);
        let count = (len - head) / WORD;
        let tail = (len - head) % WORD;
        let end = from_at.checked_add(len).expect("a range of the span");
        // The words that the range touches, the first and the last of which may be only partly
        // meant.
        let mut source = Source::new(from.run(from_at / WORD, end.div_ceil(WORD) - from_at / WORD));
        source.skip(from_at % WORD);
        if head > 0 {
            self.merge(offset, &source.take(head)[..head]);
        }
        let to = self.run((offset + head) / WORD, count);
        if let Some((last, before)) = to.split_last() {
            // Relaxed but for the last word, which publishes the others.
            source.fill(before, Ordering::Relaxed);
            source.fill(std::slice::from_ref(last), Ordering::Release);
        }
        if tail > 0 {
            let bytes = source.take(tail);
            self.merge(offset + len - tail, &bytes[..tail]);
        }
    }

    /// Changes some bytes of a word and keeps the others.
    fn merge(&self, offset: usize, bytes: &[u8]) {
        let skip = offset % WORD;
        let word = self.word(offset / WORD);
        let merged = |held: u64| {
            let mut held = held.to_le_bytes();
            held[skip..skip + bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(held)
        };
        // Relaxed: only the bytes beside the range are taken from it, and the exchange checks them.
        let mut held = word.load(Ordering::Relaxed);
        for _ in 0..MERGES_MAX {
            match word.compare_exchange_weak(
                held,
                merged(held),
                // It may be the last word of a WRITE, which publishes those before it.
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => held = now,
            }
        }
        // A peer that changes the word so often must not block this thread for ever. This store may
        // undo its last change of the other bytes.
        word.store(merged(held), Ordering::Release);
    }

    /// Adds to word `index` and returns the old value. Coherent with the CPU's own atomics. Acquire and
    /// release, since a peer may use the word as a lock.
    pub fn fetch_add(&self, index: usize, add: u64) -> u64 {
        self.writable();
        self.word(index).fetch_add(add, Ordering::AcqRel)
    }

    /// Stores `new` in word `index` if it holds `expected`; returns the old value. Ordered as
    /// [`fetch_add`](Self::fetch_add).
    pub fn compare_swap(&self, index: usize, expected: u64, new: u64) -> u64 {
        self.writable();
        let word = self.word(index);
        match word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(old) | Err(old) => old,
        }
    }

    /// Prefetches the cache line of word `index`. Out of bounds: does nothing.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        if index < self.words {
            crate::prefetch::line(std::ptr::from_ref(self.word(index)).cast());
        }
    }
}

/// Words as a stream of bytes, each loaded once.
struct Source<'a> {
    words: std::slice::Iter<'a, AtomicU64>,
    /// Bytes of the last word that was loaded and not consumed, in its low end, and how many.
    held: u64,
    bytes: usize,
}

impl<'a> Source<'a> {
    fn new(words: &'a [AtomicU64]) -> Self {
        Self {
            words: words.iter(),
            held: 0,
            bytes: 0,
        }
    }

    #[inline]
    fn load(&mut self) -> u64 {
        let next = self.words.next();
        next.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Skips `bytes` of the first word, less than all of it.
    fn skip(&mut self, bytes: usize) {
        if bytes > 0 {
            self.held = self.load() >> (8 * bytes);
            self.bytes = WORD - bytes;
        }
    }

    /// Returns the next `count` bytes, less than a word, at the front.
    fn take(&mut self, count: usize) -> [u8; WORD] {
        let mut taken = self.held;
        if count > self.bytes {
            let word = self.load();
            taken |= word << (8 * self.bytes);
            // `count - bytes` is less than a word, and so is what is left of this one.
            self.held = word >> (8 * (count - self.bytes));
            self.bytes += WORD - count;
        } else {
            self.held >>= 8 * count;
            self.bytes -= count;
        }
        taken.to_le_bytes()
    }

    /// Stores the next bytes to `to`.
    #[inline]
    fn fill(&mut self, to: &[AtomicU64], order: Ordering) {
        let shift = 8 * self.bytes;
        if shift == 0 {
            // Both aligned alike: a word of one is a word of the other.
            for (to, from) in to.iter().zip(self.words.by_ref()) {
                to.store(from.load(Ordering::Relaxed), order);
            }
            return;
        }
        for to in to {
            let word = self.load();
            to.store(self.held | word << shift, order);
            self.held = word >> (64 - shift);
        }
    }
}

/// Panics. By value: a message that is formatted where a word is accessed has its numbers stored there, at
/// each access.
#[cold]
#[inline(never)]
fn outside(first: usize, count: usize, words: usize) -> ! {
    panic!("words {first}+{count} of a span of {words}");
}

/// Stores the first `N` words, if there are so many and room for them, and returns what is left of both.
#[inline]
fn store_run<'a, 'b, const N: usize>(
    to: &'a [AtomicU64],
    from: &'b [u64],
) -> (&'a [AtomicU64], &'b [u64]) {
    let (Some((run, to_rest)), Some((words, from_rest))) =
        (to.split_first_chunk::<N>(), from.split_first_chunk::<N>())
    else {
        return (to, from);
    };
    for (to, from) in run.iter().zip(words) {
        to.store(*from, Ordering::Relaxed);
    }
    (to_rest, from_rest)
}

/// Returns the bytes from `offset` to the next word boundary.
#[inline]
const fn to_word(offset: usize) -> usize {
    offset.wrapping_neg() % WORD
}

impl Words for Span {
    fn count(&self) -> usize {
        self.words
    }
    #[inline]
    fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }
    #[inline]
    fn load_acquire(&self, index: usize) -> u64 {
        // Not an acquire load: for memory mapped read-only the language allows relaxed loads only
        // (std::sync::atomic, "Atomic accesses to read-only memory").
        let word = self.word(index).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        word
    }
    #[inline]
    fn store(&self, index: usize, value: u64) {
        self.writable();
        self.word(index).store(value, Ordering::Relaxed);
    }
    #[inline]
    fn store_release(&self, index: usize, value: u64) {
        self.writable();
        self.word(index).store(value, Ordering::Release);
    }
    #[inline]
    fn prefetch(&self, index: usize) {
        Self::prefetch(self, index);
    }
    #[inline]
    fn copy_out<const N: usize>(&self, first: usize) -> [u64; N] {
        self.read_words(first)
    }
    #[inline]
    fn line_if(
        &self,
        first: usize,
        counts: impl FnOnce(u64) -> bool,
    ) -> Option<([u64; LINE / WORD - 1], u64)> {
        let line = self.run(first, LINE / WORD);
        // As in `load_acquire`.
        // The last word first: the others are loaded only if it counts, and after it.
        let last = line[LINE / WORD - 1].load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        counts(last).then(|| {
            let words = std::array::from_fn(|i| line[i].load(Ordering::Relaxed));
            (words, last)
        })
    }
    #[inline]
    fn copy_in(&self, first: usize, words: &[u64]) {
        self.writable();
        for (to, from) in self.run(first, words.len()).iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
    }
    #[inline]
    fn publish_line(&self, first: usize, words: &[u64], last: u64) {
        self.writable();
        let line = self.run(first, LINE / WORD);
        let (body, control) = line.split_at(LINE / WORD - 1);
        // By runs of constant length: a loop over so few words takes as long as their stores.
        let (to, from) = store_run::<4>(body, words);
        let (to, from) = store_run::<2>(to, from);
        store_run::<1>(to, from);
        // Pairs with the fence in `line_if` and in `load_acquire`.
        control[0].store(last, Ordering::Release);
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({} bytes, {:?})", self.len(), self.access())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn span_writes_match_a_plain_buffer(
            writes in prop::collection::vec((0usize..200, prop::collection::vec(any::<u8>(), 0..56)), 1..20),
        ) {
            let span = Span::anonymous(256).unwrap();
            let mut plain = [0u8; 256];
            for (at, bytes) in &writes {
                span.write_bytes(*at, bytes);
                plain[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            for skip in 0..9 {
                let mut out = vec![0u8; 256 - skip];
                span.read_bytes(skip, &mut out);
                prop_assert_eq!(&out[..], &plain[skip..]);
            }
        }
    }

    proptest! {
        #[test]
        fn copies_between_spans_match_plain_buffers(
            from_at in 0usize..24, to_at in 0usize..24, len in 0usize..200, salt: u8,
        ) {
            let (from, to) = (Span::anonymous(256).unwrap(), Span::anonymous(256).unwrap());
            let bytes: Vec<u8> = (0..224).map(|n: u8| n.wrapping_mul(7).wrapping_add(salt)).collect();
            from.write_bytes(0, &bytes);
            let mut plain = [0xa5; 256];
            to.write_bytes(0, &plain);
            to.copy_from(to_at, &from, from_at, len);
            plain[to_at..to_at + len].copy_from_slice(&bytes[from_at..from_at + len]);
            let mut out = [0; 256];
            to.read_bytes(0, &mut out);
            prop_assert_eq!(&out[..], &plain[..]);
        }
    }

    /// Each word of the source holds eight equal bytes at any time; a copy at any alignment never
    /// mixes two values of one word.
    #[test]
    fn copies_load_each_word_once() {
        let (from, to) = (
            Span::anonymous(4096).unwrap(),
            Span::anonymous(4096).unwrap(),
        );
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    n = (n + 1) % 255;
                    (0..32).for_each(|word| from.store(word, n * 0x0101_0101_0101_0101));
                }
            });
            for round in 0..200_000 {
                let (skip, at) = (round % 8, round / 8 % 8);
                to.copy_from(at, &from, skip, 256 - skip);
                let mut out = [0; 256];
                to.read_bytes(at, &mut out[skip..]);
                for word in out.as_chunks::<8>().0.iter().skip(1) {
                    assert_eq!(*word, [word[0]; 8], "round {round}");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn partial_word_write_keeps_concurrent_stores_to_other_bytes() {
        let span = Span::anonymous(4096).unwrap();
        let counts = 200_000u32;
        std::thread::scope(|scope| {
            let low =
                scope.spawn(|| (1..=counts).for_each(|n| span.write_bytes(0, &n.to_le_bytes())));
            // A concurrent writer of the other half must not undo what this thread stored last.
            for n in 1..=counts {
                span.write_bytes(4, &n.to_le_bytes());
                let mut back = [0; 4];
                span.read_bytes(4, &mut back);
                assert_eq!(u32::from_le_bytes(back), n);
            }
            low.join().unwrap();
        });
        assert_eq!(span.load(0), u64::from(counts) << 32 | u64::from(counts));
    }

    #[test]
    fn slice_refuses_out_of_range_requests() {
        let span = Span::anonymous(4096).unwrap();
        assert!(span.slice(0..4096).is_ok());
        assert!(span.slice(4096..4096).unwrap().is_empty());
        assert!(span.slice(4..16).is_err());
        assert!(span.slice(8..4104).is_err());
        #[expect(clippy::reversed_empty_ranges, reason = "the point of the test")]
        let reversed = 16..8;
        assert!(span.slice(reversed).is_err());
        assert!(span.slice(usize::MAX - 7..usize::MAX - 7).is_err());
    }

    #[test]
    #[should_panic(expected = "of a span of")]
    fn word_out_of_bounds_panics_before_access() {
        let span = Span::anonymous(4096).unwrap();
        let _ = span.load(512);
    }
}
