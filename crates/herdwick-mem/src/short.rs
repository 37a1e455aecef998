//! Copies and comparisons of short runs, without a call.
//!
//! A key or a small value has fewer bytes than a call to libc's `memcpy` has instructions; and
//! glibc's versions with AVX-512 load such a run under a mask, which on a Zen 5 waits for what was
//! stored there a moment ago: 67 ns. A loop over words is no way around, for the compiler makes a
//! call of it. So the run is taken by its two ends, in pieces of a fixed size that may overlap.

/// The longest run that is copied in place.
const SHORT: usize = 32;

/// As `to.copy_from_slice(from)`.
///
/// # Panics
/// When the two differ in length.
#[inline]
pub fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "runs of one length");
    match from.len() {
        0 => {}
        // The three may be one byte: each is stored from the same index as it was loaded.
        1..=3 => {
            let (middle, last) = (from.len() / 2, from.len() - 1);
            // All loads before the stores, so that the compiler need not order them.
            let bytes = [from[0], from[middle], from[last]];
            [to[0], to[middle], to[last]] = bytes;
        }
        4..=7 => ends::<4>(to, from),
        8..=15 => ends::<8>(to, from),
        16..=SHORT => ends::<16>(to, from),
        _ => to.copy_from_slice(from),
    }
}

/// Copies the first `N` bytes and the last.
#[inline]
fn ends<const N: usize>(to: &mut [u8], from: &[u8]) {
    if let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) {
        if let Some(to) = to.first_chunk_mut() {
            *to = *first;
        }
        if let Some(to) = to.last_chunk_mut() {
            *to = *last;
        }
    }
}

/// As `out.extend_from_slice(from)`.
#[inline]
pub fn append(out: &mut Vec<u8>, from: &[u8]) {
    // For a longer run the call is a small part of the copy.
    if from.len() > SHORT {
        out.extend_from_slice(from);
        return;
    }
    // Of a fixed size, and cut down to what is meant.
    let mut padded = [0; SHORT];
    copy(&mut padded[..from.len()], from);
    let len = out.len() + from.len();
    out.extend_from_slice(&padded);
    out.truncate(len);
}

/// As `a == b`.
#[inline]
#[must_use]
pub fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    // All words are compared, without a branch for each: runs are short, and mostly equal.
    let words = a.iter().zip(b);
    let mut differ = words.fold(0, |d, (a, b)| {
        d | (u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b))
    });
    for (a, b) in a_rest.iter().zip(b_rest) {
        differ |= u64::from(a ^ b);
    }
    differ == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_append_and_same_work_at_every_length() {
        let from: Vec<u8> = (1..=100).collect();
        for len in 0..=from.len() {
            let from = &from[..len];
            let mut to = vec![0; len];
            copy(&mut to, from);
            assert_eq!(to, from, "{len}");
            let mut out = b"before".to_vec();
            append(&mut out, from);
            assert_eq!(out, [b"before", from].concat(), "{len}");
            assert!(same(&to, from));
            assert!(len == 0 || !same(&to[1..], from));
            for at in 0..len {
                to[at] ^= 1;
                assert!(!same(&to, from), "{len}: {at}");
                to[at] ^= 1;
            }
        }
    }

    #[test]
    #[should_panic(expected = "runs of one length")]
    fn copy_of_different_lengths_panics() {
        copy(&mut [0; 3], &[0; 4]);
    }
}
