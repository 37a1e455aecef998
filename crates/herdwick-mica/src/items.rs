//! The bytes of all items: each is read and written in place, by its offset.

use std::{
    io,
    ops::Range,
    sync::atomic::{Ordering, fence},
};

use herdwick_layout::{
    bucket::Offset,
    item::{
        self, Header, amend, has_key, publish, put_gap, put_header, seal, seal_staged, set_bits,
        set_deadline, set_last_access, touch,
    },
};
use herdwick_mem::{Arena, LINE, copy, prefetch_read};
use herdwick_request::{Deadline, Second};

/// Bytes of the longest gap that is written.
// A multiple of 8 whose length fits into 32 bits.
const GAP_MAX: usize = 1 << 31;

/// A byte range.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) from: usize,
    pub(crate) len: usize,
}

/// The memory that holds items. Where one lies, and which bytes are free, is decided elsewhere.
pub(crate) struct Items {
    bytes: Arena<u8>,
    /// Whether items carry checksums: recovery reads them, and readers in other processes, so items in a
    /// file and in published memory have them.
    pub(crate) sums: bool,
    /// Called between two stores of a change that a kill must not tear.
    #[cfg(test)]
    pub(crate) witness: Option<Box<dyn FnMut() + Send + Sync>>,
}

impl Items {
    pub(crate) fn new(bytes: Arena<u8>, sums: bool) -> Self {
        Self {
            bytes,
            sums,
            #[cfg(test)]
            witness: None,
        }
    }

    /// Returns the capacity in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Lets the kernel use huge pages, or not; see [`Arena::allow_huge_pages`].
    pub(crate) fn allow_huge_pages(&self, allow: bool) {
        self.bytes.allow_huge_pages(allow);
    }

    /// Keeps the kernel from returning bytes with a huge page that they are a part of.
    pub(crate) fn forbid_huge_pages(&self, bytes: Range<usize>) {
        self.bytes.forbid_huge_pages(bytes);
    }

    /// Returns the memory of bytes that no item has to the system.
    pub(crate) fn give_back(&mut self, bytes: Range<usize>) -> io::Result<()> {
        self.bytes.give_back(bytes)
    }

    /// Returns the header of the item, or gap, at `at`.
    #[inline(always)]
    pub(crate) fn header(&self, at: Offset) -> Header {
        Header::read(&self.bytes[at.0..])
    }

    #[inline]
    pub(crate) fn key(&self, at: Offset) -> &[u8] {
        self.key_of(at, &self.header(at))
    }

    /// As [`Self::key`], of an item with this header.
    #[inline]
    pub(crate) fn key_of(&self, at: Offset, header: &Header) -> &[u8] {
        &self.bytes[at.0 + header.form.bytes()..at.0 + header.front()]
    }

    #[inline]
    pub(crate) fn value(&self, at: Offset) -> &[u8] {
        let run = self.value_run(at);
        &self.bytes[run.from..run.from + run.len]
    }

    /// As [`Self::value`], of an item with this header.
    #[inline]
    pub(crate) fn value_of(&self, at: Offset, header: &Header) -> &[u8] {
        &self.bytes[at.0 + header.front()..at.0 + header.end()]
    }

    #[inline]
    pub(crate) fn value_mut(&mut self, at: Offset) -> &mut [u8] {
        let run = self.value_run(at);
        &mut self.bytes[run.from..run.from + run.len]
    }

    /// Returns whether the item at `at` has this key. `at` may be beyond the memory.
    #[inline(always)]
    pub(crate) fn is(&self, at: Offset, key: &[u8]) -> bool {
        self.bytes
            .get(at.0..)
            // A guess for no item lies beyond the memory (`Hit::default`).
            .is_some_and(|item| has_key(item, key))
    }

    /// Returns the bytes from the item, or gap, at `at` to what lies behind it.
    #[inline]
    pub(crate) fn step(&self, at: Offset) -> usize {
        item::step(&self.bytes[at.0..])
    }

    /// Returns whether a gap is at `at`.
    #[inline]
    pub(crate) fn is_gap(&self, at: Offset) -> bool {
        item::is_gap(&self.bytes[at.0..])
    }

    /// Writes gaps over `bytes`, which begin and end at a multiple of 8: one, as long as its word can
    /// tell its length.
    pub(crate) fn put_gaps(&mut self, bytes: Range<usize>) {
        for at in bytes.clone().step_by(GAP_MAX) {
            let len = GAP_MAX.min(bytes.end - at);
            self.put_gap(at, len as u32);
        }
    }

    /// Writes a gap of `len` bytes: a walk passes over it.
    pub(crate) fn put_gap(&mut self, at: usize, len: u32) {
        put_gap(&mut self.bytes[at..], len);
    }

    /// Returns the bytes of an item but the padding.
    #[inline]
    fn whole(&mut self, at: Offset, header: &Header) -> &mut [u8] {
        &mut self.bytes[at.0..at.0 + header.end()]
    }

    /// Writes an item, with its checksum if items have them.
    #[inline]
    pub(crate) fn write(&mut self, at: Offset, header: &Header, key: &[u8], value: &[u8]) {
        let sums = self.sums;
        let item = self.whole(at, header);
        put_header(item, header);
        let payload = &mut item[header.form.bytes()..];
        copy(&mut payload[..key.len()], key);
        copy(&mut payload[key.len()..], value);
        if sums {
            seal(item);
            // What readers elsewhere find by the index is complete.
            fence(Ordering::Release);
        }
    }

    /// Writes the header and key of a reservation: a dead item until it is published. Its checksum,
    /// over lengths and key, is always written.
    pub(crate) fn stage(&mut self, at: Offset, header: &Header, key: &[u8]) {
        let item = &mut self.bytes[at.0..at.0 + header.front()];
        put_header(item, header);
        copy(&mut item[header.form.bytes()..], key);
        seal_staged(item);
    }

    /// Makes a staged item a live one, by one store.
    pub(crate) fn publish(&mut self, at: Offset, header: &Header) {
        if !self.sums {
            return put_header(&mut self.bytes[at.0..], header);
        }
        let item = &mut self.bytes[at.0..at.0 + header.end()];
        publish(item, header, || {
            #[cfg(test)]
            if let Some(witness) = &mut self.witness {
                witness();
            }
        });
        // As in `write`.
        fence(Ordering::Release);
    }

    /// As [`Self::write`], over an item of the same key, form and footprint; the key is not written.
    #[inline]
    pub(crate) fn overwrite(&mut self, at: Offset, header: &Header, value: &[u8]) {
        let sums = self.sums;
        let item = self.whole(at, header);
        put_header(item, header);
        copy(&mut item[header.front()..], value);
        // Without a fence: the index points here already, and a reader that meets half of it finds
        // a wrong checksum.
        if sums {
            seal(item);
        }
    }

    /// As [`Self::write`], with the concatenation of `front`, the value now at `old`, and `back` as
    /// value. The item may overlap the old one.
    pub(crate) fn write_around(
        &mut self,
        at: Offset,
        header: &Header,
        key: &[u8],
        (front, old, back): (&[u8], Run, &[u8]),
    ) {
        let value = at.0 + header.front();
        let middle = value + front.len();
        // First, because the other parts may overwrite the old value.
        self.bytes.copy_within(old.from..old.from + old.len, middle);
        let end = middle + old.len;
        self.bytes[value..middle].copy_from_slice(front);
        self.bytes[end..end + back.len()].copy_from_slice(back);
        put_header(&mut self.bytes[at.0..], header);
        self.bytes[value - key.len()..value].copy_from_slice(key);
        self.seal(at);
    }

    /// Returns the byte range of an item's value.
    #[inline]
    pub(crate) fn value_run(&self, at: Offset) -> Run {
        let header = self.header(at);
        Run {
            from: at.0 + header.front(),
            len: header.value_len(),
        }
    }

    /// Copies an item of `len` bytes; the two places may overlap.
    pub(crate) fn copy(&mut self, from: Offset, len: usize, to: Offset) {
        self.bytes.copy_within(from.0..from.0 + len, to.0);
        // As in `write`: the index is pointed to the copy after this.
        fence(Ordering::Release);
    }

    /// Overwrites bytes that no item has by zeros: a reader elsewhere finds no item there.
    pub(crate) fn wipe(&mut self, bytes: Range<usize>) {
        self.bytes[bytes].fill(0);
    }

    /// Marks the item dead for recovery and for readers elsewhere, by inverting its checksum.
    #[inline]
    pub(crate) fn bury(&mut self, at: Offset) {
        item::bury(&mut self.bytes[at.0..]);
    }

    /// Changes an item's bits, which are bookkeeping, by one store.
    #[inline]
    pub(crate) fn set_bits(&mut self, at: Offset, bits: u8) {
        set_bits(&mut self.bytes[at.0..], bits);
    }

    /// Changes the second of the last access, by one store.
    #[inline]
    pub(crate) fn set_last_access(&mut self, at: Offset, second: Second) {
        set_last_access(&mut self.bytes[at.0..], second);
    }

    /// Changes the deadline of an item whose form has one, by one store.
    #[inline(never)]
    pub(crate) fn touch(&mut self, at: Offset, deadline: Deadline) {
        if !self.sums {
            return set_deadline(&mut self.bytes[at.0..], deadline);
        }
        let header = self.header(at);
        touch(self.whole(at, &header), deadline);
    }

    /// Changes an item's header, but not its lengths and form.
    pub(crate) fn amend(&mut self, at: Offset, after: &Header) {
        if !self.sums {
            return put_header(&mut self.bytes[at.0..], after);
        }
        amend(self.whole(at, after), after);
    }

    /// Recomputes the item's checksum, if items have them.
    pub(crate) fn seal(&mut self, at: Offset) {
        if self.sums {
            let header = self.header(at);
            seal(self.whole(at, &header));
            fence(Ordering::Release);
        }
    }

    /// Returns the `len` bytes from `at`.
    pub(crate) fn bytes(&self, at: Offset, len: usize) -> &[u8] {
        &self.bytes[at.0..at.0 + len]
    }

    /// Prefetches the first cache line of an item, and the second if the item is longer than that, or
    /// most probably so: one that is not begins at the beginning or in the middle of a line.
    #[inline]
    pub(crate) fn prefetch(&self, at: Offset) {
        prefetch_read(&self.bytes, at.0);
        if !at.0.is_multiple_of(LINE / 2) {
            prefetch_read(&self.bytes, at.0 + LINE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of segments may be longer than the length in a gap's word.
    #[test]
    fn damage_of_more_than_4_gib_becomes_gaps() {
        let len = (4 << 30) + 4096;
        // The kernel has memory for the pages of the gaps' words alone.
        let mut items = Items::new(Arena::zeroed(len).unwrap(), true);
        items.put_gaps(8..len);
        let mut at = 8;
        while at < len {
            assert!(items.is_gap(Offset(at)));
            let step = items.step(Offset(at));
            assert!(step > 0, "at {at}");
            at += step;
        }
        assert_eq!(at, len);
    }

    /// Its last bytes look like the form of an item with a long header.
    #[test]
    fn gap_at_the_end_of_memory_is_read_by_its_first_byte() {
        for len in (8..4096).step_by(8) {
            let mut items = Items::new(Arena::zeroed(8).unwrap(), true);
            items.put_gap(0, len);
            assert!(items.is_gap(Offset(0)));
        }
    }
}
