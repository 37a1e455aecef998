//! The circular log of items: reservation at the tail, release at the head, a walk between them,
//! and its repair after damage. Order of stores: see [`Log`].

use std::io;

use herdwick_layout::{
    bucket::Offset,
    item::{ALIGN, Found, HEADER, Header, examine, shape},
};

use crate::{
    items::Items,
    superblock::{Mark, Superblock},
};

/// A position in the log: `at` is the byte in memory, `passed` counts bytes over all laps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) at: usize,
    passed: u64,
}

impl Cursor {
    /// Returns the bytes of log up to here since the first lap began.
    pub(crate) fn passed(self) -> u64 {
        self.passed
    }
}

/// A circular log of items. New items are appended at the tail; the oldest are released at the
/// head.
///
/// An item never straddles the physical end: the bytes left there are skipped, which 8 zero bytes
/// mark. The length is a multiple of 8, so either there is room for the mark or nothing is left.
///
/// The superblock holds valid positions of head and tail at every instant: the head is stored
/// before anything that it released is overwritten, the tail after the item before it is complete.
pub(crate) struct Log {
    /// Bytes of its items' memory.
    len: usize,
    pub(crate) superblock: Superblock,
    head: Cursor,
    tail: Cursor,
    /// Items that begin before this position are flushed, whatever their generation; in bytes over
    /// all laps, 0 for none.
    horizon: u64,
    /// Bytes that head and tail may be apart: the length, unless the memory is limited.
    pub(crate) window: usize,
    /// Released bytes before this position, over all laps, were returned to the system.
    pub(crate) returned: u64,
}

/// Marks that the rest up to the physical end is skipped. No item begins so: its first byte is the
/// key length, which is not 0.
const SKIP: [u8; ALIGN] = [0; ALIGN];
/// Size at which a dead item over damage is split: a value length has 32 bits.
const FILLER_MAX: usize = 1 << 30;

impl Log {
    /// Creates an empty log over `len` bytes of items, a multiple of 8, with a superblock in
    /// anonymous memory.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        Ok(Self::over(len, Superblock::new(len)?))
    }

    /// Creates an empty log over `len` bytes of items.
    pub(crate) fn over(len: usize, superblock: Superblock) -> Self {
        debug_assert!(len.is_multiple_of(ALIGN));
        Self {
            window: len,
            returned: 0,
            len,
            superblock,
            head: Cursor::default(),
            tail: Cursor::default(),
            horizon: 0,
        }
    }

    /// Returns the capacity in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Releases every item.
    pub(crate) fn clear(&mut self) {
        self.release(self.tail);
    }

    /// Returns the bytes between head and tail.
    pub(crate) fn used(&self) -> usize {
        (self.tail.passed - self.head.passed) as usize
    }

    /// Returns the free bytes.
    pub(crate) fn free(&self) -> usize {
        self.window - self.used()
    }

    /// Returns the bytes that must be free for an item of `len` bytes: the item, what it skips at
    /// the physical end, and 8 that keep head and tail apart when the log is full.
    pub(crate) fn needs(&self, len: usize) -> usize {
        let left = self.len() - self.tail.at;
        let skipped = if len <= left { 0 } else { left };
        skipped + len + ALIGN
    }

    /// Reserves `len` bytes at the tail. The caller writes them at once.
    pub(crate) fn reserve(&mut self, items: &mut Items, len: usize) -> Offset {
        debug_assert!(self.needs(len) <= self.free());
        let left = self.len() - self.tail.at;
        if len > left {
            self.tail = self.skip(items, self.tail);
        }
        let at = self.tail.at;
        self.superblock.note(at, len);
        self.tail = self.past(self.tail, len);
        Offset(at)
    }

    /// Marks the rest up to the physical end as skipped; returns the cursor behind it.
    fn skip(&mut self, items: &mut Items, cursor: Cursor) -> Cursor {
        let left = self.len() - cursor.at;
        if left > 0 {
            items.put(Offset(cursor.at), &SKIP);
            self.superblock.forget(cursor.at, left);
        }
        self.past(cursor, left)
    }

    /// Returns the cursor from which the oldest item is found.
    pub(crate) fn head(&self) -> Cursor {
        self.head
    }

    /// Returns the cursor behind the youngest item.
    pub(crate) fn tail(&self) -> Cursor {
        self.tail
    }

    /// Releases everything older than `cursor`.
    pub(crate) fn release(&mut self, cursor: Cursor) {
        debug_assert!(self.head.passed <= cursor.passed && cursor.passed <= self.tail.passed);
        self.head = cursor;
        self.superblock.put(Mark::Head, (cursor.at / ALIGN) as u64);
        // Clear the horizon after the head is stored: a kill between the two in the other order
        // would revive flushed items.
        if self.horizon != 0 && self.horizon <= cursor.passed {
            self.put_horizon(0, 0);
        }
    }

    /// Flushes every item in the log by its position.
    pub(crate) fn end_generations(&mut self) {
        self.put_horizon(self.tail.passed, (self.tail.at / ALIGN) as u64 + 1);
    }

    #[cold]
    fn put_horizon(&mut self, passed: u64, mark: u64) {
        self.horizon = passed;
        self.superblock.put(Mark::Horizon, mark);
    }

    /// Returns whether the item at `at` lies before the horizon, and so is flushed.
    #[inline]
    pub(crate) fn is_beyond_horizon(&self, at: Offset) -> bool {
        self.horizon != 0 && self.tail.passed - (self.age(at) as u64) < self.horizon
    }

    /// Stores the tail in the superblock: the reserved item is complete.
    #[inline]
    pub(crate) fn commit(&mut self) {
        self.superblock
            .put(Mark::Tail, (self.tail.at / ALIGN) as u64);
    }

    /// Returns the first item at or behind `cursor`, and the cursor behind the item. Eviction and
    /// scans of the log walk by it.
    pub(crate) fn next(&self, items: &Items, mut cursor: Cursor) -> Option<(Offset, Cursor)> {
        if cursor.passed >= self.tail.passed {
            return None;
        }
        let left = self.len() - cursor.at;
        if left == 0 || items.bytes(Offset(cursor.at), 1) == [0] {
            cursor = Cursor {
                at: 0,
                passed: cursor.passed + left as u64,
            };
        }
        let at = Offset(cursor.at);
        Some((at, self.past(cursor, items.header(at).footprint())))
    }

    /// Returns the distance in bytes from the item's beginning to the tail.
    #[inline]
    pub(crate) fn age(&self, at: Offset) -> usize {
        if at.0 < self.tail.at {
            self.tail.at - at.0
        } else {
            self.tail.at + self.len() - at.0
        }
    }

    /// Restores head, tail and horizon from the superblock; `None` if the superblock is damaged.
    pub(crate) fn reopen(&mut self) -> Option<()> {
        let at = |mark| {
            let at = usize::try_from(self.superblock.get(mark)?)
                .ok()?
                .checked_mul(ALIGN)?;
            (at < self.len()).then_some(at)
        };
        let (head, tail) = (at(Mark::Head)?, at(Mark::Tail)?);
        let cursor = |at, passed: usize| Cursor {
            at,
            passed: passed as u64,
        };
        let lap = if tail < head { self.len() } else { 0 };
        (self.head, self.tail) = (cursor(head, head), cursor(tail, lap + tail));
        let mark = usize::try_from(self.superblock.get(Mark::Horizon)?).ok()?;
        if let Some(at) = mark.checked_sub(1) {
            let at = at.checked_mul(ALIGN)?;
            let passed = if at < head { self.len() + at } else { at } as u64;
            // A horizon that is not between head and tail is obsolete: everything before it has
            // been released, and a kill came before it was cleared.
            let stands = (head as u64) < passed && passed <= self.tail.passed;
            self.put_horizon(
                if stands { passed } else { 0 },
                if stands { mark as u64 } else { 0 },
            );
        }
        Some(())
    }

    /// As [`Self::next`], on a log that may be damaged: a damaged stretch up to the next noted
    /// beginning becomes a dead item, its bytes are added to `damaged`, and the walk continues
    /// behind it.
    pub(crate) fn mend(
        &mut self,
        items: &mut Items,
        mut cursor: Cursor,
        damaged: &mut u64,
    ) -> Option<(Offset, Cursor, Found)> {
        let last_lap = self.tail.passed / self.len() as u64;
        while cursor.passed < self.tail.passed {
            let on_last_lap = cursor.passed / self.len() as u64 == last_lap;
            let end = if on_last_lap {
                self.tail.at
            } else {
                self.len()
            };
            let rest = items.bytes(Offset(cursor.at), end - cursor.at);
            if !on_last_lap && rest.starts_with(&SKIP) {
                cursor = self.past(cursor, rest.len());
                continue;
            }
            let found = examine(rest);
            if let Found::Item(len) | Found::Dead(len) = found {
                return Some((Offset(cursor.at), self.past(cursor, len), found));
            }
            let next = self.superblock.next_beginning(cursor.at, end);
            let next = next.filter(|next| next - cursor.at > HEADER && next.is_multiple_of(ALIGN));
            *damaged += (next.unwrap_or(end) - cursor.at) as u64;
            match next {
                Some(next) => fill(items, cursor.at, next - cursor.at),
                None if on_last_lap => {
                    self.tail = cursor;
                    self.commit();
                }
                None => cursor = self.skip(items, cursor),
            }
        }
        None
    }

    fn past(&self, cursor: Cursor, len: usize) -> Cursor {
        let at = cursor.at + len;
        Cursor {
            at: if at == self.len() { 0 } else { at },
            passed: cursor.passed + len as u64,
        }
    }
}

/// Overwrites `len` bytes at `at` with dead items.
pub(crate) fn fill(items: &mut Items, mut at: usize, mut len: usize) {
    while len > 0 {
        // A split always leaves more than FILLER_MAX, so the last piece has room for a header.
        let piece = if len > 2 * FILLER_MAX {
            FILLER_MAX
        } else {
            len
        };
        let filler = Header {
            key_len: 1,
            bits: 0,
            generation: 0.into(),
            check: 0.into(),
            last_access: 0.into(),
            version: 0.into(),
            shape: shape(piece - HEADER - 1, 0),
        };
        items.put_header(Offset(at), filler);
        items.seal(Offset(at));
        items.bury(Offset(at));
        at += piece;
        len -= piece;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdwick_layout::item::shape;
    use herdwick_mem::{Arena, same};

    fn new(len: usize) -> (Log, Items) {
        let items = Items::new(Arena::zeroed(len).unwrap(), false);
        (Log::new(len).unwrap(), items)
    }

    fn append((log, items): &mut (Log, Items), n: u8, value_len: usize) -> Offset {
        let header = Header {
            key_len: 1,
            bits: 0,
            generation: 0.into(),
            check: 0.into(),
            last_access: 0.into(),
            version: 0.into(),
            shape: shape(value_len, 0),
        };
        let len = header.footprint();
        while log.free() < log.needs(len) {
            let (_, past) = log.next(items, log.head()).expect("the log is not empty");
            log.release(past);
        }
        let at = log.reserve(items, len);
        items.write(at, header, &[n], &vec![n; value_len]);
        log.commit();
        at
    }

    fn walk((log, items): &(Log, Items)) -> impl Iterator<Item = Offset> {
        let mut cursor = log.head();
        std::iter::from_fn(move || {
            let (at, past) = log.next(items, cursor)?;
            cursor = past;
            Some(at)
        })
    }

    #[test]
    fn log_wraps_correctly_with_any_space_left_at_its_end() {
        for len in (400..=600).step_by(8) {
            let mut log = new(len);
            let mut appended = Vec::new();
            for n in 0..2000usize {
                let value_len = n * 13 % 60;
                let at = append(&mut log, n as u8, value_len);
                assert!(
                    at.0 + log.1.header(at).footprint() <= len,
                    "never past the end"
                );
                appended.push((at, n as u8, value_len));
                let there: Vec<_> = walk(&log).collect();
                let last = &appended[appended.len() - there.len()..];
                for (at, (expected, n, value_len)) in there.iter().zip(last) {
                    assert_eq!(at, expected);
                    assert_eq!(
                        (log.1.key(*at), log.1.value(*at)),
                        (&[*n][..], &vec![*n; *value_len][..])
                    );
                }
            }
            assert!(log.0.tail().passed() > 200 * len as u64 / 2);
        }
    }

    #[test]
    fn age_increases_towards_the_head() {
        let mut log = new(512);
        for n in 0..100 {
            append(&mut log, n, usize::from(n) % 40);
            let ages: Vec<_> = walk(&log).map(|at| log.0.age(at)).collect();
            assert!(ages.is_sorted_by(|a, b| a > b), "{ages:?}");
            assert!(ages.iter().all(|age| (1..=512).contains(age)));
        }
    }

    #[test]
    fn keys_are_compared_in_full() {
        for len in 0..40 {
            let a = vec![7u8; len];
            assert!(same(&a, &a));
            for at in 0..len {
                let mut b = a.clone();
                b[at] ^= 1;
                assert!(!same(&a, &b));
            }
        }
    }
}
