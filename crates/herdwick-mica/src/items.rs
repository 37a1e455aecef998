//! The bytes of all items: each is read and written in place, by its offset.

use std::{io, ops::Range};

use herdwick_layout::{
    bucket::Offset,
    item::{HEADER, Header, amend, publish, put_header, seal, seal_staged, touch},
};
use herdwick_mem::{Arena, copy, prefetch_read, same};
use herdwick_request::Deadline;
use zerocopy::FromBytes;

/// A byte range.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) from: usize,
    pub(crate) len: usize,
}

/// The memory that holds items. Where one lies, and which bytes are free, is decided elsewhere.
pub(crate) struct Items {
    bytes: Arena<u8>,
    /// Whether items carry checksums: only recovery reads them, so only items in a file have them.
    pub(crate) sums: bool,
    /// Called between two stores of a change that a kill must not tear.
    #[cfg(test)]
    pub(crate) witness: Option<Box<dyn FnMut() + Send>>,
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

    /// Returns the memory of bytes that no item has to the system.
    pub(crate) fn give_back(&mut self, bytes: Range<usize>) -> io::Result<()> {
        self.bytes.give_back(bytes)
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

    /// Returns whether the item at `at` has this key. `at` may be beyond all items.
    #[inline]
    pub(crate) fn is(&self, at: Offset, key: &[u8]) -> bool {
        // One bounds check covers the header's key length (byte 0) and the key.
        match self.bytes.get(at.0..at.0 + HEADER + key.len()) {
            Some(bytes) => bytes[0] as usize == key.len() && same(&bytes[HEADER..], key),
            None => false,
        }
    }

    /// Writes a header.
    pub(crate) fn put_header(&mut self, at: Offset, header: Header) {
        put_header(&mut self.bytes[at.0..], header);
    }

    /// Writes an item, with its checksum if items have checksums.
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
    }

    /// Writes the header and key of a reservation: a dead item until it is published. Its checksum,
    /// over lengths and key, is written in every store.
    pub(crate) fn stage(&mut self, at: Offset, header: Header, key: &[u8]) {
        let item = &mut self.bytes[at.0..at.0 + HEADER + key.len()];
        put_header(item, header);
        copy(&mut item[HEADER..], key);
        seal_staged(item);
    }

    /// Makes a staged item a live one, by one store.
    pub(crate) fn publish(&mut self, at: Offset, header: Header) {
        if !self.sums {
            return put_header(&mut self.bytes[at.0..], header);
        }
        let item = &mut self.bytes[at.0..at.0 + HEADER + header.payload()];
        publish(item, header, || {
            #[cfg(test)]
            if let Some(witness) = &mut self.witness {
                witness();
            }
        });
    }

    /// As [`Self::write`], over an item of the same key and footprint; the key is not written.
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

    /// As [`Self::write`], with the concatenation of `front`, the value now at `old`, and `back` as
    /// value. The item may overlap the old one.
    pub(crate) fn write_around(
        &mut self,
        at: Offset,
        header: Header,
        key: &[u8],
        (front, old, back): (&[u8], Run, &[u8]),
    ) {
        let value = at.0 + HEADER + key.len();
        let middle = value + front.len();
        // First, because the other parts may overwrite the old value.
        self.bytes.copy_within(old.from..old.from + old.len, middle);
        let end = middle + old.len;
        self.bytes[value..middle].copy_from_slice(front);
        self.bytes[end..end + back.len()].copy_from_slice(back);
        put_header(&mut self.bytes[at.0..], header);
        self.bytes[at.0 + HEADER..value].copy_from_slice(key);
        self.seal(at);
    }

    /// Returns the byte range of an item's value.
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
    }

    /// Marks the item dead for recovery, by inverting its checksum.
    #[inline]
    pub(crate) fn bury(&mut self, at: Offset) {
        let header = self.header_mut(at);
        header.set_crc(!header.crc());
    }

    /// Changes an item's deadline, by one store.
    #[inline(never)]
    pub(crate) fn touch(&mut self, at: Offset, deadline: Deadline) {
        if !self.sums {
            return self.header_mut(at).set_deadline(deadline);
        }
        let payload = self.header(at).payload();
        touch(&mut self.bytes[at.0..at.0 + HEADER + payload], deadline);
    }

    /// Changes an item's header, but not its lengths.
    pub(crate) fn amend(&mut self, at: Offset, change: impl FnOnce(&mut Header)) {
        if !self.sums {
            return change(self.header_mut(at));
        }
        let payload = self.header(at).payload();
        amend(&mut self.bytes[at.0..at.0 + HEADER + payload], change);
    }

    /// Recomputes the item's checksum, if items have checksums.
    pub(crate) fn seal(&mut self, at: Offset) {
        if self.sums {
            let payload = self.header(at).payload();
            seal(&mut self.bytes[at.0..at.0 + HEADER + payload]);
        }
    }

    /// Returns the `len` bytes from `at`.
    pub(crate) fn bytes(&self, at: Offset, len: usize) -> &[u8] {
        &self.bytes[at.0..at.0 + len]
    }

    /// Prefetches the first two cache lines of an item.
    #[inline]
    pub(crate) fn prefetch(&self, at: Offset) {
        prefetch_read(&self.bytes, at.0);
        prefetch_read(&self.bytes, at.0 + herdwick_mem::LINE);
    }
}
