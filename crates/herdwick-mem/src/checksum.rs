/// Up to here one stream of the CPU's instruction is as good as the three that the `crc32c` crate
/// interleaves, and does without the crate's set-up, which costs more than the sum over an item
/// of 48 bytes.
const SHORT: usize = 512;

/// CRC-32C (Castagnoli) of `bytes`, going on from `crc`, the checksum of what stands before them.
#[inline]
#[must_use]
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes.len() <= SHORT && std::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the CPU has SSE 4.2, all that `short` needs.
        return unsafe { short(crc, bytes) };
    }
    crc32c::crc32c_append(crc, bytes)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "sse4.2")]
fn short(crc: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let (words, rest) = bytes.as_chunks();
    let crc = words.iter().fold(u64::from(!crc), |crc, word| {
        _mm_crc32_u64(crc, u64::from_le_bytes(*word))
    });
    // The instruction leaves the upper half 0.
    !rest
        .iter()
        .fold(crc as u32, |crc, byte| _mm_crc32_u8(crc, *byte))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn the_check_value_of_the_catalogue() {
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn short_and_long_agree(bytes in vec(any::<u8>(), 0..2 * SHORT), cut in any::<prop::sample::Index>()) {
            let (front, back) = bytes.split_at(cut.index(bytes.len() + 1));
            prop_assert_eq!(crc32c(crc32c(0, front), back), crc32c::crc32c(&bytes));
        }
    }
}
