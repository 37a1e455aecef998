use std::io;

use herdwick_mem::{Arena, copy, prefetch_read, same};
use zerocopy::FromBytes;

use crate::{
    Deadline,
    item::{ALIGN, Found, HEADER, Header, amend, examine, seal, shape},
    superblock::{Mark, Superblock},
};

/// Where an item begins: bytes from the log's first, a multiple of 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offset(pub(crate) usize);

/// A point in the log: `at` bytes into the memory, having passed `passed` bytes since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    at: usize,
    passed: u64,
}

impl Cursor {
    /// Bytes of log from the first ever written up to here, laps counted.
    pub(crate) fn passed(self) -> u64 {
        self.passed
    }
}

/// Some bytes of the log.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) from: usize,
    pub(crate) len: usize,
}

/// A circular run of items. New ones go in at the tail; the oldest come out at the head.
///
/// An item never straddles the physical end: what is left there is skipped, by 8 zero bytes. The
/// length is a multiple of 8, so there is room for them, or nothing is left.
///
/// The book says at every instant where head and tail are: the head is noted before anything
/// behind it is overwritten, the tail after the item before it is whole.
pub(crate) struct Log {
    bytes: Arena<u8>,
    pub(crate) superblock: Superblock,
    /// Whether items carry checksums: only a log that outlives the process is read by them.
    pub(crate) sums: bool,
    head: Cursor,
    tail: Cursor,
    /// Items that begin before this point are flushed, whatever their generation: bytes passed
    /// since the start.
    horizon: u64,
}

/// What is skipped at the physical end begins with these.
const SKIP: [u8; ALIGN] = [0; ALIGN];
/// Dead items put in the place of damage are not much longer: a length has 32 bits.
const FILLER_MAX: usize = 1 << 30;

impl Log {
    /// A log of `len` bytes, a multiple of 8.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        Ok(Self::over(Arena::zeroed(len)?, Superblock::new(len)?))
    }

    /// An empty log.
    pub(crate) fn over(bytes: Arena<u8>, superblock: Superblock) -> Self {
        debug_assert!(bytes.len().is_multiple_of(ALIGN));
        Self {
            bytes,
            superblock,
            sums: false,
            head: Cursor::default(),
            tail: Cursor::default(),
            horizon: 0,
        }
    }

    /// Bytes of the log.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets every item.
    pub(crate) fn clear(&mut self) {
        self.release(self.tail);
    }

    /// Bytes between tail and head.
    pub(crate) fn free(&self) -> usize {
        self.len() - (self.tail.passed - self.head.passed) as usize
    }

    /// Bytes that must be free for an item of `len` bytes: with what it skips at the end, and a few
    /// that keep head and tail apart when the log is full.
    pub(crate) fn needs(&self, len: usize) -> usize {
        let left = self.len() - self.tail.at;
        let skipped = if len <= left { 0 } else { left };
        skipped + len + ALIGN
    }

    /// Takes `len` bytes at the tail, to be written by the caller at once.
    pub(crate) fn reserve(&mut self, len: usize) -> Offset {
        debug_assert!(self.needs(len) <= self.free());
        let left = self.len() - self.tail.at;
        if len > left {
            self.tail = self.skip(self.tail);
        }
        let at = self.tail.at;
        self.superblock.note(at, len);
        self.tail = self.past(self.tail, len);
        Offset(at)
    }

    /// Marks that nothing follows up to the physical end; gives the point behind that.
    fn skip(&mut self, cursor: Cursor) -> Cursor {
        let left = self.len() - cursor.at;
        if left > 0 {
            self.bytes[cursor.at..cursor.at + ALIGN].copy_from_slice(&SKIP);
            self.superblock.forget(cursor.at, left);
        }
        self.past(cursor, left)
    }

    /// `part.0 / part.1` of the log, in bytes.
    #[inline]
    pub(crate) fn share(&self, part: (usize, usize)) -> usize {
        self.len() / part.1 * part.0
    }

    /// Where the oldest item is looked for.
    pub(crate) fn head(&self) -> Cursor {
        self.head
    }

    /// Behind the youngest item.
    pub(crate) fn tail(&self) -> Cursor {
        self.tail
    }

    /// Gives everything older than `cursor` back.
    pub(crate) fn release(&mut self, cursor: Cursor) {
        debug_assert!(self.head.passed <= cursor.passed && cursor.passed <= self.tail.passed);
        self.head = cursor;
        self.superblock.put(Mark::Head, (cursor.at / ALIGN) as u64);
        // Not before: a kill in between would bring back what is flushed.
        if self.horizon != 0 && self.horizon <= cursor.passed {
            self.put_horizon(0, 0);
        }
    }

    /// From now on all that is here is flushed.
    pub(crate) fn end_generations(&mut self) {
        self.put_horizon(self.tail.passed, (self.tail.at / ALIGN) as u64 + 1);
    }

    #[cold]
    fn put_horizon(&mut self, passed: u64, mark: u64) {
        self.horizon = passed;
        self.superblock.put(Mark::Horizon, mark);
    }

    /// Whether the item at `at` was there when the generations ended.
    #[inline]
    pub(crate) fn is_beyond_horizon(&self, at: Offset) -> bool {
        self.horizon != 0 && self.tail.passed - (self.age(at) as u64) < self.horizon
    }

    /// What was reserved is written.
    #[inline]
    pub(crate) fn commit(&mut self) {
        self.superblock
            .put(Mark::Tail, (self.tail.at / ALIGN) as u64);
    }

    /// The first item at or behind `cursor`, and the point behind it. This walk is what eviction
    /// runs on, and all that a scan of the log needs.
    pub(crate) fn next(&self, mut cursor: Cursor) -> Option<(Offset, Cursor)> {
        if cursor.passed >= self.tail.passed {
            return None;
        }
        let left = self.len() - cursor.at;
        if left == 0 || self.bytes[cursor.at] == 0 {
            cursor = Cursor {
                at: 0,
                passed: cursor.passed + left as u64,
            };
        }
        let at = Offset(cursor.at);
        Some((at, self.past(cursor, self.header(at).footprint())))
    }

    /// How far back from the tail an item begins.
    #[inline]
    pub(crate) fn age(&self, at: Offset) -> usize {
        if at.0 < self.tail.at {
            self.tail.at - at.0
        } else {
            self.tail.at + self.len() - at.0
        }
    }

    #[inline]
    pub(crate) fn header(&self, at: Offset) -> &Header {
        let bytes = &self.bytes[at.0..at.0 + HEADER];
        Header::ref_from_bytes(bytes).expect("HEADER bytes are a Header")
    }

    #[inline]
    pub(crate) fn header_mut(&mut self, at: Offset) -> &mut Header {
        let bytes = &mut self.bytes[at.0..at.0 + HEADER];
        Header::mut_from_bytes(bytes).expect("HEADER bytes are a Header")
    }

    #[inline]
    pub(crate) fn key(&self, at: Offset) -> &[u8] {
        let from = at.0 + HEADER;
        &self.bytes[from..from + self.header(at).key_len as usize]
    }

    #[inline]
    pub(crate) fn value(&self, at: Offset) -> &[u8] {
        let header = self.header(at);
        let from = at.0 + HEADER + header.key_len as usize;
        &self.bytes[from..from + header.value_len()]
    }

    #[inline]
    pub(crate) fn value_mut(&mut self, at: Offset) -> &mut [u8] {
        let header = self.header(at);
        let from = at.0 + HEADER + header.key_len as usize;
        let to = from + header.value_len();
        &mut self.bytes[from..to]
    }

    /// Whether the item at `at` has this key.
    #[inline]
    pub(crate) fn is(&self, at: Offset, key: &[u8]) -> bool {
        // The header is checked and the key compared under one bound.
        match self.bytes.get(at.0..at.0 + HEADER + key.len()) {
            Some(bytes) => bytes[0] as usize == key.len() && same(&bytes[HEADER..], key),
            None => false,
        }
    }

    /// Writes an item, and its checksum where there are any.
    #[inline]
    pub(crate) fn write(&mut self, at: Offset, header: Header, key: &[u8], value: &[u8]) {
        let item = &mut self.bytes[at.0..at.0 + HEADER + key.len() + value.len()];
        put_header(item, header);
        let payload = &mut item[HEADER..];
        copy(&mut payload[..key.len()], key);
        copy(&mut payload[key.len()..], value);
        if self.sums {
            seal(item);
        }
        self.commit();
    }

    /// Writes the header and key of an item whose value is to come: a dead one, for now.
    pub(crate) fn stage(&mut self, at: Offset, header: Header, key: &[u8]) {
        let item = &mut self.bytes[at.0..at.0 + HEADER + key.len()];
        put_header(item, header);
        copy(&mut item[HEADER..], key);
        seal(item);
        self.bury(at);
        self.commit();
    }

    /// Makes a staged item one that lives.
    pub(crate) fn publish(&mut self, at: Offset, header: Header) {
        put_header(&mut self.bytes[at.0..], header);
        self.seal(at);
    }

    /// Writes the first bytes of an item that had been copied out of the log.
    pub(crate) fn put_back(&mut self, at: Offset, bytes: &[u8]) {
        self.bytes[at.0..at.0 + bytes.len()].copy_from_slice(bytes);
        self.commit();
    }

    /// As [`Self::write`], over an item of the same key.
    #[inline]
    pub(crate) fn overwrite(&mut self, at: Offset, header: Header, value: &[u8]) {
        let payload = header.payload();
        let item = &mut self.bytes[at.0..at.0 + HEADER + payload];
        put_header(item, header);
        copy(&mut item[HEADER + payload - value.len()..], value);
        if self.sums {
            seal(item);
        }
    }

    /// As [`Self::write`], with a value of `front`, the value now at `old`, and `back`. The item
    /// may overlap the old one.
    pub(crate) fn write_around(
        &mut self,
        at: Offset,
        header: Header,
        key: &[u8],
        (front, old, back): (&[u8], Run, &[u8]),
    ) {
        let value = at.0 + HEADER + key.len();
        let middle = value + front.len();
        self.bytes.copy_within(old.from..old.from + old.len, middle);
        let end = middle + old.len;
        self.bytes[value..middle].copy_from_slice(front);
        self.bytes[end..end + back.len()].copy_from_slice(back);
        put_header(&mut self.bytes[at.0..], header);
        self.bytes[at.0 + HEADER..value].copy_from_slice(key);
        self.seal(at);
        self.commit();
    }

    /// Where an item's value lies.
    pub(crate) fn value_run(&self, at: Offset) -> Run {
        let header = self.header(at);
        Run {
            from: at.0 + HEADER + header.key_len as usize,
            len: header.value_len(),
        }
    }

    /// Copies an item of `len` bytes; the two places may overlap.
    pub(crate) fn copy(&mut self, from: Offset, len: usize, to: Offset) {
        self.bytes.copy_within(from.0..from.0 + len, to.0);
        self.commit();
    }

    /// Marks that no read may find the item any more.
    #[inline]
    pub(crate) fn bury(&mut self, at: Offset) {
        let header = self.header_mut(at);
        header.crc.set(!header.crc.get());
    }

    /// Gives an item another deadline.
    #[inline(never)]
    pub(crate) fn touch(&mut self, at: Offset, deadline: Deadline) {
        self.amend(at, |header| header.deadline.set(deadline.0));
    }

    /// Changes an item's header, but not its lengths.
    pub(crate) fn amend(&mut self, at: Offset, change: impl FnOnce(&mut Header)) {
        if !self.sums {
            return change(self.header_mut(at));
        }
        let payload = self.header(at).payload();
        amend(&mut self.bytes[at.0..at.0 + HEADER + payload], change);
    }

    /// Makes the checksum that of the item as it stands.
    pub(crate) fn seal(&mut self, at: Offset) {
        if self.sums {
            let payload = self.header(at).payload();
            seal(&mut self.bytes[at.0..at.0 + HEADER + payload]);
        }
    }

    /// Takes up a log where its book says that it was left; `None` if the book is damaged.
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
            // What lies beyond the tail has been released: a kill came before that was noted.
            let stands = (head as u64) < passed && passed <= self.tail.passed;
            self.put_horizon(
                if stands { passed } else { 0 },
                if stands { mark as u64 } else { 0 },
            );
        }
        Some(())
    }

    /// As [`Self::next`], on a log that may be damaged: what is damaged becomes a dead item, its
    /// bytes are counted, and the walk goes on behind it.
    pub(crate) fn mend(
        &mut self,
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
            let rest = &self.bytes[cursor.at..end];
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
                Some(next) => self.fill(cursor.at, next - cursor.at),
                None if on_last_lap => {
                    self.tail = cursor;
                    self.commit();
                }
                None => cursor = self.skip(cursor),
            }
        }
        None
    }

    /// Makes dead items of `len` bytes.
    fn fill(&mut self, mut at: usize, mut len: usize) {
        while len > 0 {
            let piece = if len > 2 * FILLER_MAX {
                FILLER_MAX
            } else {
                len
            };
            let filler = Header {
                key_len: 1,
                bits: 0,
                generation: 0.into(),
                crc: 0.into(),
                deadline: 0.into(),
                last_access: 0.into(),
                version: 0.into(),
                shape: shape(piece - HEADER - 1, 0),
            };
            put_header(&mut self.bytes[at..at + piece], filler);
            self.seal(Offset(at));
            self.bury(Offset(at));
            at += piece;
            len -= piece;
        }
    }

    /// The `len` bytes from `at`.
    pub(crate) fn bytes(&self, at: Offset, len: usize) -> &[u8] {
        &self.bytes[at.0..at.0 + len]
    }

    /// Brings the first two lines of an item near.
    #[inline]
    pub(crate) fn prefetch(&self, at: Offset) {
        prefetch_read(&self.bytes, at.0);
        prefetch_read(&self.bytes, at.0 + herdwick_mem::LINE);
    }

    fn past(&self, cursor: Cursor, len: usize) -> Cursor {
        let at = cursor.at + len;
        Cursor {
            at: if at == self.len() { 0 } else { at },
            passed: cursor.passed + len as u64,
        }
    }
}

/// Field by field: a header put together on the stack and copied from there would be read back
/// wider than it was written, and wait for its own stores.
#[inline]
fn put_header(item: &mut [u8], header: Header) {
    let (to, _) = Header::mut_from_prefix(item).expect("an item has a header");
    *to = header;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::shape;

    fn append(log: &mut Log, n: u8, value_len: usize) -> Offset {
        let header = Header {
            key_len: 1,
            bits: 0,
            generation: 0.into(),
            crc: 0.into(),
            deadline: 0.into(),
            last_access: 0.into(),
            version: 0.into(),
            shape: shape(value_len, 0),
        };
        let len = header.footprint();
        while log.free() < log.needs(len) {
            let (_, past) = log.next(log.head()).expect("the log is not empty");
            log.release(past);
        }
        let at = log.reserve(len);
        log.write(at, header, &[n], &vec![n; value_len]);
        at
    }

    fn walk(log: &Log) -> impl Iterator<Item = Offset> {
        let mut cursor = log.head();
        std::iter::from_fn(move || {
            let (at, past) = log.next(cursor)?;
            cursor = past;
            Some(at)
        })
    }

    #[test]
    fn every_lap_ends_right_whatever_is_left_at_its_end() {
        for len in (400..=600).step_by(8) {
            let mut log = Log::new(len).unwrap();
            let mut appended = Vec::new();
            for n in 0..2000usize {
                let value_len = n * 13 % 60;
                let at = append(&mut log, n as u8, value_len);
                assert!(
                    at.0 + log.header(at).footprint() <= len,
                    "never past the end"
                );
                appended.push((at, n as u8, value_len));
                let there: Vec<_> = walk(&log).collect();
                let last = &appended[appended.len() - there.len()..];
                for (at, (expected, n, value_len)) in there.iter().zip(last) {
                    assert_eq!(at, expected);
                    assert_eq!(
                        (log.key(*at), log.value(*at)),
                        (&[*n][..], &vec![*n; *value_len][..])
                    );
                }
            }
            assert!(log.tail().passed() > 200 * len as u64 / 2);
        }
    }

    #[test]
    fn age_grows_towards_the_head() {
        let mut log = Log::new(512).unwrap();
        for n in 0..100 {
            append(&mut log, n, usize::from(n) % 40);
            let ages: Vec<_> = walk(&log).map(|at| log.age(at)).collect();
            assert!(ages.is_sorted_by(|a, b| a > b), "{ages:?}");
            assert!(ages.iter().all(|age| (1..=512).contains(age)));
        }
    }

    #[test]
    fn keys_are_compared_to_the_last_byte() {
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
