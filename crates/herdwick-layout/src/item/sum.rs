//! The checksums of items: made, changed with the header, inverted where an item dies, and compared
//! where the bytes may be anything.

use std::sync::atomic::{Ordering, compiler_fence};

use herdwick_mem::{crc32c, crc32c_shift};
use herdwick_request::{Deadline, KEY_BYTES_MAX};

use super::{
    ALIGN, CHECK_AT, Form, HEADER_MAX, HEADER_MIN, Header, KEY_LEN_AT, LENGTH_BITS, LOW_AT,
    SHAPE_AT, STAMP_AT, WIDE_AT, bit, gap, put_header, put_word,
};

/// Returns the checksum, or its inverse.
#[inline]
fn crc(item: &[u8]) -> u32 {
    let at = crc_at(item);
    let (bytes, _) = item[at..]
        .split_first_chunk()
        .expect("an item has a checksum");
    u32::from_le_bytes(*bytes)
}

/// Changes the checksum, by one store.
#[inline]
fn set_crc(item: &mut [u8], crc: u32) {
    let at = crc_at(item);
    item[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

#[inline]
fn crc_at(item: &[u8]) -> usize {
    match item[SHAPE_AT + 1] >> (LENGTH_BITS - 8) {
        // The compact form has no word of its own for it.
        0 => LOW_AT,
        _ => CHECK_AT,
    }
}

/// Computes and stores the checksum of an item. `item` is all its bytes but the padding.
///
/// # Panics
/// If `item` is shorter than its header.
#[inline]
pub fn seal(item: &mut [u8]) {
    let crc = checksum(item);
    set_crc(item, crc);
}

/// Returns the checksum of an item; see [`Header`] for what it covers. `item` is all its bytes but
/// the padding.
///
/// # Panics
/// If `item` is shorter than its header.
#[inline]
#[must_use]
pub fn checksum(item: &[u8]) -> u32 {
    let header = Header::read(item);
    crc32c(front_sum(&header), &item[header.form.bytes()..])
}

/// Returns the checksum of what is covered of a header.
#[inline]
fn front_sum(header: &Header) -> u32 {
    let covered = Header {
        // The other bits change with reads, which must not compute a checksum.
        bits: header.bits & bit::STALE,
        accessed: 0,
        ..*header
    };
    let words = covered.words().map(u64::to_le_bytes);
    crc32c(0, words[..header.form.bytes() / 8].as_flattened())
}

/// Returns the checksum of a reservation: it covers the lengths and the key, which stay as they are
/// when it becomes an item.
fn checksum_staged(item: &[u8]) -> u32 {
    let header = Header::read(item);
    let key = &item[header.form.bytes()..header.front()];
    // The length takes the place of the CRC of earlier bytes: it is covered, too.
    crc32c(!header.value_len, key)
}

/// Stores the checksum that marks a reservation, which is dead until [`publish`]. `item` begins with
/// header and key.
///
/// # Panics
/// If `item` is shorter than these.
pub fn seal_staged(item: &mut [u8]) {
    // Inverted: dead until `publish`.
    let crc = !checksum_staged(item);
    set_crc(item, crc);
}

/// Marks an item dead, by inverting its checksum.
///
/// # Panics
/// If `item` is shorter than its header.
#[inline]
pub fn bury(item: &mut [u8]) {
    let crc = crc(item);
    set_crc(item, !crc);
}

/// Makes a reservation an item with another header of the same lengths and form. `item` is all its
/// bytes but the padding. Until the last store, of one word, it is a reservation to [`examine`].
/// `before_last` is called before that.
///
/// # Panics
/// If `item` is shorter than a [`Form::Full`] header.
pub fn publish(item: &mut [u8], published: &Header, before_last: impl FnOnce()) {
    let [first, stamp, check, wide] = published.words();
    // The words that a reservation does not cover may change while it is one.
    put_word(item, 0, first);
    put_word(item, STAMP_AT, stamp);
    put_word(item, WIDE_AT, wide);
    let crc = crc32c(front_sum(published), &item[HEADER_MAX..]);
    // The compiler alone is held back: after a kill the kernel has the process's stores in program order.
    compiler_fence(Ordering::Release);
    before_last();
    put_word(item, CHECK_AT, check | u64::from(crc));
}

/// Up to this many bytes of key and value, an item's checksum is recomputed when its header
/// changes: that costs less than shifting the difference.
const SUMMED_ANEW: usize = 4 << 10;

/// Changes the deadline of an item that has a word for it, and its checksum, by one store, without
/// reading a long value: CRC is linear, so the difference of the headers' checksums, shifted over the
/// payload, is the difference of the items'.
///
/// # Panics
/// If `item` is shorter than such a header.
pub fn touch(item: &mut [u8], deadline: Deadline) {
    let before = Header::read(item);
    let crc = changed_sum(item, &before, &Header { deadline, ..before });
    put_word(item, CHECK_AT, u64::from(crc) | u64::from(deadline.0) << 32);
}

/// Returns the checksum of an item, with `after` for its header.
fn changed_sum(item: &[u8], before: &Header, after: &Header) -> u32 {
    let payload = &item[before.form.bytes()..];
    if payload.len() <= SUMMED_ANEW {
        return crc32c(front_sum(after), payload);
    }
    let difference = front_sum(before) ^ front_sum(after);
    crc(item) ^ crc32c_shift(difference, payload.len())
}

/// Changes the header of an item, but not its lengths and form, and updates its checksum as [`touch`]
/// does, but by more than one store.
///
/// # Panics
/// If `item` is shorter than its header.
pub fn amend(item: &mut [u8], after: &Header) {
    let before = Header::read(item);
    let crc = changed_sum(item, &before, after);
    put_header(item, after);
    set_crc(item, crc);
}

/// The result of [`examine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A valid item, with the bytes that it takes.
    Item(usize),
    /// A dead item (deleted, replaced or reserved) or a gap, with the bytes that it takes.
    Dead(usize),
    /// Neither; its length is unknown.
    Damaged,
}

/// Validates the item, or gap, at the beginning of `bytes`, which may hold anything.
#[must_use]
pub fn examine(bytes: &[u8]) -> Found {
    match bytes.split_first_chunk() {
        Some((first, _)) if first[KEY_LEN_AT] == 0 => {
            return examine_gap(u64::from_le_bytes(*first), bytes.len());
        }
        Some(_) if is_whole(bytes) => {}
        _ => return Found::Damaged,
    }
    let header = Header::read(bytes);
    let len = header.footprint();
    if usize::from(header.key_len) > KEY_BYTES_MAX || len > bytes.len() {
        return Found::Damaged;
    }
    let sum = checksum(&bytes[..header.end()]);
    match crc(bytes) {
        crc if crc == sum && !header.has(bit::STAGED) => Found::Item(len),
        // Buried, or a reservation that was never published.
        crc if crc == !sum || crc == !checksum_staged(bytes) => Found::Dead(len),
        _ => Found::Damaged,
    }
}

/// Returns the header of a live item whose bytes, the padding excluded, are `item`, whatever they are;
/// `None` if the checksum is not that of these bytes, or is inverted.
#[inline]
#[must_use]
pub fn intact(item: &[u8]) -> Option<Header> {
    if item.len() < HEADER_MIN || !is_whole(item) {
        return None;
    }
    let header = Header::read(item);
    let is_all = header.end() == item.len() && !header.has(bit::STAGED);
    (is_all && checksum(item) == crc(item)).then_some(header)
}

fn examine_gap(word: u64, most: usize) -> Found {
    let len = (word >> (8 * LOW_AT)) as u32;
    let bytes = len as usize;
    // The length must be sound, or a walk over the memory would stand still or run out of it.
    if word == gap(len) && bytes > 0 && bytes.is_multiple_of(ALIGN) && bytes <= most {
        Found::Dead(bytes)
    } else {
        Found::Damaged
    }
}

/// Returns whether a header is there to be read, in a form that there is.
fn is_whole(bytes: &[u8]) -> bool {
    let form = bytes[SHAPE_AT + 1] >> (LENGTH_BITS - 8);
    form <= Form::Full as u8 && bytes.len() >= HEADER_MIN + 8 * usize::from(form)
}
