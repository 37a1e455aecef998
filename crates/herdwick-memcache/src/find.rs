//! Search for a byte where it is expected to be near.

use memchr::{memchr, memchr2};

/// Bytes that are searched in place, in words; behind them memchr is faster, which takes some 70
/// instructions to begin.
const NEAR_BYTES: usize = 64;
const WORD: usize = size_of::<u64>();
const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = LOW_BITS << 7;

/// Returns the offset of the first `byte` of `text`, as `memchr` does.
#[inline]
pub(crate) fn find(byte: u8, text: &[u8]) -> Option<usize> {
    let found = find_first(byte, text);
    #[cfg(test)]
    crate::counting::scan(text, found);
    found
}

#[inline]
fn find_first(byte: u8, text: &[u8]) -> Option<usize> {
    let (words, rest) = text.as_chunks::<WORD>();
    for (n, word) in words.iter().take(NEAR_BYTES / WORD).enumerate() {
        if let Some(at) = find_in_word(byte, *word) {
            return Some(n * WORD + at);
        }
    }
    if words.len() > NEAR_BYTES / WORD {
        return memchr(byte, &text[NEAR_BYTES..]).map(|at| NEAR_BYTES + at);
    }
    match text.last_chunk() {
        // The last word begins in what was searched.
        Some(last) => find_in_word(byte, *last).map(|at| text.len() - WORD + at),
        None => rest.iter().position(|&other| other == byte),
    }
}

/// Returns the offset of the first of either byte in `text`, as `memchr2` does.
#[inline]
pub(crate) fn find_either(bytes: [u8; 2], text: &[u8]) -> Option<usize> {
    let found = find_first_of(bytes, text);
    #[cfg(test)]
    crate::counting::scan(text, found);
    found
}

#[inline]
fn find_first_of([one, other]: [u8; 2], text: &[u8]) -> Option<usize> {
    let (words, rest) = text.as_chunks::<WORD>();
    for (n, word) in words.iter().take(NEAR_BYTES / WORD).enumerate() {
        let ends = [one, other].map(|byte| find_in_word(byte, *word).unwrap_or(WORD));
        let end = ends[0].min(ends[1]);
        if end < WORD {
            return Some(n * WORD + end);
        }
    }
    if words.len() > NEAR_BYTES / WORD {
        return memchr2(one, other, &text[NEAR_BYTES..]).map(|at| NEAR_BYTES + at);
    }
    let last = text.len() - rest.len();
    let at = rest.iter().position(|byte| [one, other].contains(byte));
    at.map(|at| last + at)
}

/// Returns the offset of the first `byte` of a word.
#[inline]
fn find_in_word(byte: u8, word: [u8; WORD]) -> Option<usize> {
    // An equal byte becomes 0.
    let difference = u64::from_le_bytes(word) ^ (u64::from(byte) * LOW_BITS);
    // The lowest bit set is that of the first byte without a difference; above it there may be more.
    let same = difference.wrapping_sub(LOW_BITS) & !difference & HIGH_BITS;
    (same != 0).then(|| same.trailing_zeros() as usize / 8)
}

/// Most bytes of a text of which [`bits_of`] returns a bit each, and one more for its end.
pub(crate) const BITS_MAX: usize = 63;

/// Returns a bit for each byte of `text`, of at most [`BITS_MAX`], the first one lowest: whether it is `byte`.
/// Costs less than to look for more than one of them, one after the other.
#[inline]
pub(crate) fn bits_of(byte: u8, text: &[u8]) -> u64 {
    debug_assert!(text.len() <= BITS_MAX);
    #[cfg(test)]
    crate::counting::scan(text, None);
    let (words, rest) = text.as_chunks::<WORD>();
    let mut bits = 0;
    for (n, word) in words.iter().enumerate() {
        bits |= bits_in_word(byte, *word) << (n * WORD);
    }
    match text.last_chunk() {
        // The last word begins in what has its bits already.
        Some(last) if !rest.is_empty() => bits | bits_in_word(byte, *last) << (text.len() - WORD),
        Some(_) => bits,
        None => rest
            .iter()
            .rev()
            .fold(bits, |bits, other| bits << 1 | u64::from(*other == byte)),
    }
}

/// Returns a bit for each byte of a word: whether it is `byte`.
#[inline]
fn bits_in_word(byte: u8, word: [u8; WORD]) -> u64 {
    let difference = u64::from_le_bytes(word) ^ (u64::from(byte) * LOW_BITS);
    // No carry leaves a byte: each high bit is that of its own byte alone, and set where that differs.
    let differs = ((difference & !HIGH_BITS) + !HIGH_BITS) | difference;
    let same = (!differs & HIGH_BITS) >> 7;
    // Gathers the lowest bits of the bytes in the highest byte.
    same.wrapping_mul(0x0102_0408_1020_4080) >> 56
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Among neighbours that differ in one bit, at every length and offset.
        #[test]
        fn first_byte_is_found_as_by_memchr(
            byte: u8,
            text in prop::collection::vec((0u8..10, any::<u8>()), 0..200),
        ) {
            let text: Vec<u8> = text
                .iter()
                .map(|&(bit, other)| if bit < 8 { byte ^ 1 << bit } else { other })
                .collect();
            for start in 0..text.len() {
                let (text, other) = (&text[start..], byte.wrapping_add(1));
                prop_assert_eq!(find(byte, text), memchr(byte, text));
                prop_assert_eq!(find_either([byte, other], text), memchr2(byte, other, text));
            }
        }
    }

    proptest! {
        #[test]
        fn bits_are_those_of_the_bytes_that_are_equal(
            byte: u8,
            text in prop::collection::vec((0u8..10, any::<u8>()), 0..=BITS_MAX),
        ) {
            let text: Vec<u8> = text
                .iter()
                .map(|&(bit, other)| match bit {
                    0..8 => byte ^ 1 << bit,
                    8 => byte,
                    _ => other,
                })
                .collect();
            let bits = text.iter().rev().fold(0, |bits, other| bits << 1 | u64::from(*other == byte));
            prop_assert_eq!(bits_of(byte, &text), bits);
        }
    }

    #[test]
    fn first_of_many_is_found() {
        for len in 0..=100 {
            for at in 0..=len {
                let text = [vec![b'x'; at], vec![b' '; len - at]].concat();
                assert_eq!(find(b' ', &text), (at < len).then_some(at), "{at} of {len}");
            }
        }
    }
}
