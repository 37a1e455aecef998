//! The slots of section 4.2: requests lie at the right end of a slot, the keyhash last, so that it is seen
//! last. docs/wire.md draws them.

use herdwick_layout::wire::Field;
use herdwick_mem::{Span, WORD, Words};

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 1024;
/// Bytes of a keyhash, the rightmost of a slot, and of a GET.
pub const KEYHASH_BYTES: usize = 16;
/// Bytes of LEN, left of the keyhash: the length of a PUT's value, or 0 for a GET.
pub const LEN_BYTES: usize = 2;
/// Bytes of the longest value, left of LEN.
pub const VALUE_BYTES_MAX: usize = 1000;
/// Bytes of the longest request.
pub(super) const PUT_BYTES_MAX: usize = KEYHASH_BYTES + LEN_BYTES + VALUE_BYTES_MAX;

const SLOT_WORDS: usize = SLOT_BYTES / WORD;
/// The words of the keyhash.
const KEYHASH_WORD: usize = SLOT_WORDS - KEYHASH_BYTES / WORD;
/// The last word of a slot: the one that is polled.
const POLLED_WORD: usize = SLOT_WORDS - 1;
/// The word whose last bytes are LEN.
const LEN_WORD: usize = KEYHASH_WORD - 1;
const LEN_SHIFT: u32 = (8 * (WORD - LEN_BYTES)) as u32;
/// Where a value ends in its slot.
const VALUE_END: usize = SLOT_BYTES - KEYHASH_BYTES - LEN_BYTES;

/// The fields of a slot.
pub const SLOT_FIELDS: [Field; 3] = [
    Field {
        name: "value",
        offset: VALUE_END - VALUE_BYTES_MAX,
        bytes: VALUE_BYTES_MAX,
        meaning: "of a PUT: ends here, and begins as far left as it is long",
    },
    Field {
        name: "len",
        offset: VALUE_END,
        bytes: LEN_BYTES,
        meaning: "length of the value, 1 to 1000; not written by a GET",
    },
    Field {
        name: "keyhash",
        offset: SLOT_BYTES - KEYHASH_BYTES,
        bytes: KEYHASH_BYTES,
        meaning: "the last 8 bytes are not zero",
    },
];
const _: () = assert!(SLOT_FIELDS[1].offset + LEN_BYTES == SLOT_FIELDS[2].offset);
const _: () = assert!(PUT_BYTES_MAX <= SLOT_BYTES && KEYHASH_BYTES == 2 * WORD);
const _: () = assert!(VALUE_BYTES_MAX <= u16::MAX as usize);

/// What identifies a key: 16 bytes, of which the last 8 are not all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyhash([u64; 2]);

impl Keyhash {
    /// Returns the keyhash of these bytes; `None` if the last 8 of them are zero, since a slot with such a
    /// keyhash looks empty.
    #[inline]
    #[must_use]
    pub fn new(bytes: [u8; KEYHASH_BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<WORD>();
        let words = [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])];
        (words[1] != 0).then_some(Self(words))
    }

    /// Returns its bytes.
    #[inline]
    #[must_use]
    pub fn bytes(self) -> [u8; KEYHASH_BYTES] {
        let mut bytes = [0; KEYHASH_BYTES];
        let (halves, _) = bytes.as_chunks_mut::<WORD>();
        halves[0] = self.0[0].to_le_bytes();
        halves[1] = self.0[1].to_le_bytes();
        bytes
    }

    /// Returns its words: a GET.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[u64; 2] {
        &self.0
    }
}

/// A request to be written at the right end of its slot: a keyhash, and the value of a PUT.
///
/// # Panics
/// When `value` is longer than [`VALUE_BYTES_MAX`].
#[inline]
pub(super) fn encode_put<'a>(
    out: &'a mut [u8; PUT_BYTES_MAX],
    keyhash: Keyhash,
    value: &[u8],
) -> &'a [u8] {
    assert!(value.len() <= VALUE_BYTES_MAX);
    let (len, bytes) = (value.len(), KEYHASH_BYTES + LEN_BYTES + value.len());
    herdwick_mem::copy(&mut out[..len], value);
    out[len..len + LEN_BYTES].copy_from_slice(&(len as u16).to_le_bytes());
    out[len + LEN_BYTES..bytes].copy_from_slice(&keyhash.bytes());
    &out[..bytes]
}

/// A request in its slot. The value of a PUT is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotRequest {
    pub(super) keyhash: Keyhash,
    /// LEN, whatever the client wrote there.
    pub(super) len: u16,
}

/// Returns the request in slot `slot` of `slots`; `None` if there is none. Reads one cache line.
#[inline]
pub(super) fn find(slots: &Span, slot: usize) -> Option<SlotRequest> {
    let first = slot * SLOT_WORDS;
    // Pairs with the release by which a WRITE's last word becomes visible: LEN and the rest of the
    // keyhash are loaded after it.
    let last = slots.load_acquire(first + POLLED_WORD);
    if last == 0 {
        return None;
    }
    Some(SlotRequest {
        keyhash: Keyhash([slots.load(first + KEYHASH_WORD), last]),
        len: (slots.load(first + LEN_WORD) >> LEN_SHIFT) as u16,
    })
}

/// Copies the value of `out.len()` bytes, at most [`VALUE_BYTES_MAX`], out of slot `slot`.
#[inline]
pub(super) fn copy_value(slots: &Span, slot: usize, out: &mut [u8]) {
    slots.read_bytes(slot * SLOT_BYTES + VALUE_END - out.len(), out);
}

/// Frees slot `slot` for the next request: a GET does not write LEN, so that is zeroed too.
#[inline]
pub(super) fn clear(slots: &Span, slot: usize) {
    let first = slot * SLOT_WORDS;
    slots.store(first + LEN_WORD, 0);
    slots.store(first + KEYHASH_WORD, 0);
    slots.store_release(first + POLLED_WORD, 0);
}

/// Returns where a request of `bytes` bytes begins in the memory of the slots.
#[inline]
pub(super) fn start(slot: usize, bytes: usize) -> usize {
    (slot + 1) * SLOT_BYTES - bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyhash(byte: u8) -> Keyhash {
        Keyhash::new([byte; KEYHASH_BYTES]).unwrap()
    }

    /// The bytes that section 4.2 counts, at the right end of the slot, and nothing left of them.
    #[test]
    fn requests_lie_at_the_right_end_of_their_slot() {
        let slots = Span::anonymous(4 * SLOT_BYTES).unwrap();
        for (slot, len) in [(0, 1), (1, 32), (2, 333), (3, VALUE_BYTES_MAX)] {
            let value: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
            let mut out = [0; PUT_BYTES_MAX];
            let put = encode_put(&mut out, keyhash(7), &value);
            assert_eq!(put.len(), 16 + 2 + len);
            slots.write_bytes(start(slot, put.len()), put);
            let (keyhash, len) = (keyhash(7), len as u16);
            assert_eq!(find(&slots, slot), Some(SlotRequest { keyhash, len }));
            let mut copied = vec![0; value.len()];
            copy_value(&slots, slot, &mut copied);
            assert_eq!(copied, value);
            let mut left = vec![1; SLOT_BYTES - put.len()];
            slots.read_bytes(slot * SLOT_BYTES, &mut left);
            assert!(left.iter().all(|byte| *byte == 0), "{}", value.len());
        }
    }

    /// A GET in a slot that had a PUT is a GET.
    #[test]
    fn get_does_not_find_the_length_of_an_earlier_put() {
        let slots = Span::anonymous(SLOT_BYTES).unwrap();
        let mut out = [0; PUT_BYTES_MAX];
        let put = encode_put(&mut out, keyhash(1), &[9; 32]);
        slots.write_bytes(start(0, put.len()), put);
        clear(&slots, 0);
        assert_eq!(find(&slots, 0), None);
        slots.write_words(KEYHASH_WORD, keyhash(2).words());
        let found = find(&slots, 0);
        assert_eq!(
            found.map(|found| (found.keyhash, found.len)),
            Some((keyhash(2), 0))
        );
    }

    #[test]
    fn keyhash_that_looks_like_an_empty_slot_is_refused() {
        let mut bytes = [0; KEYHASH_BYTES];
        bytes[..WORD].fill(1);
        assert_eq!(Keyhash::new(bytes), None);
        bytes[KEYHASH_BYTES - 1] = 1;
        assert_eq!(Keyhash::new(bytes).map(Keyhash::bytes), Some(bytes));
    }
}
