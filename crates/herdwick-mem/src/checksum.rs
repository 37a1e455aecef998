//! CRC-32C and CRC-32 with low set-up cost for short inputs; longer inputs are left to the `crc32c`
//! and `crc32fast` crates.

use std::array;

/// Up to this many bytes, one stream of the CPU's CRC instruction is as fast as the three that the
/// `crc32c` crate interleaves, and avoids the crate's set-up, which costs more than the checksum of
/// an item of 48 bytes.
const SHORT: usize = 512;

/// Returns the CRC-32C (Castagnoli) of `bytes`, continued from `crc`, the checksum of the bytes
/// before them (0 at the start).
#[inline]
#[must_use]
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // The macro reads a cached word, so it costs a load and a branch.
    if bytes.len() <= SHORT && std::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the CPU has SSE 4.2, all that `short` needs.
        return unsafe { short(crc, bytes) };
    }
    crc32c::crc32c_append(crc, bytes)
}

/// The CRC-32C polynomial, bit-reflected.
const CASTAGNOLI: u32 = 0x82f6_3b78;

/// x^(2^n) modulo the polynomial, bit-reflected. They repeat after 31 and not after 32: the
/// polynomial is x + 1 times a primitive one of degree 31, so x^(2^31) is x again.
const POWERS: [u32; 31] = {
    // Bit-reflected, x is the bit below the highest, which is x^0.
    let mut powers = [1 << 30; 31];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = times(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
};

/// Returns the product of two polynomials modulo that of CRC-32C, all bit-reflected.
const fn times(a: u32, mut b: u32) -> u32 {
    // From x^0 on: `b` is multiplied by x after each bit.
    let (mut product, mut bit) = (0, 1 << 31);
    while bit > 0 {
        if a & bit > 0 {
            product ^= b;
        }
        b = (b >> 1) ^ if b & 1 > 0 { CASTAGNOLI } else { 0 };
        bit >>= 1;
    }
    product
}

/// Returns the change (XOR) of the [`crc32c()`] of a message when that of its prefix changes by
/// `difference`, and `len` bytes follow the prefix. The cost is logarithmic in `len`.
#[must_use]
pub fn crc32c_shift(difference: u32, len: usize) -> u32 {
    // Appending n bytes multiplies the remainder by x^(8n), that is by x^(2^(i+3)) for each bit i
    // set in n.
    let bits = (0..usize::BITS as usize).filter(|bit| len >> bit & 1 > 0);
    bits.fold(difference, |difference, bit| {
        times(POWERS[(bit + 3) % POWERS.len()], difference)
    })
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "sse4.2")]
fn short(crc: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    // The instruction takes 8 bytes at once; at most 7 are left for the loop by bytes.
    let (words, rest) = bytes.as_chunks();
    // CRC-32C begins and ends with an inversion of the register, so one that is continued is
    // inverted back first.
    let crc = words.iter().fold(u64::from(!crc), |crc, word| {
        _mm_crc32_u64(crc, u64::from_le_bytes(*word))
    });
    // The instruction leaves the upper half 0, so the cast loses nothing.
    !rest
        .iter()
        .fold(crc as u32, |crc, byte| _mm_crc32_u8(crc, *byte))
}

/// From this many bytes on, the `crc32fast` crate, which folds four blocks at once, is faster.
const BRIEF: usize = 512;
/// Bytes that one step of carry-less multiplication folds.
const BLOCK: usize = 16;

/// Returns the CRC-32 (IEEE) of `bytes`, continued from `crc`, the checksum of the bytes before
/// them (0 at the start).
#[inline]
#[must_use]
pub fn crc32(crc: u32, bytes: &[u8]) -> u32 {
    let [crc] = crc32_interleaved([crc], [bytes]);
    crc
}

/// Computes [`crc32`] of several messages at once. With messages of equal length the CPU overlaps
/// their computations, so that the latency of one hides behind the others.
#[inline]
#[must_use]
pub fn crc32_interleaved<const N: usize>(crcs: [u32; N], messages: [&[u8]; N]) -> [u32; N] {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // All messages alike, since one loop below runs over all of them.
    if fold_alike(&messages)
        && std::is_x86_feature_detected!("pclmulqdq")
        && std::is_x86_feature_detected!("avx")
    {
        // SAFETY: the CPU has PCLMULQDQ and AVX, all that `folded` needs.
        return unsafe { folded(crcs, messages) };
    }
    array::from_fn(|i| {
        let mut hasher = crc32fast::Hasher::new_with_initial(crcs[i]);
        hasher.update(messages[i]);
        hasher.finalize()
    })
}

/// Returns whether all messages have one length, and one that `folded` supports: a multiple of 4
/// from [`BLOCK`] up to [`BRIEF`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn fold_alike(messages: &[&[u8]]) -> bool {
    messages.first().is_some_and(|first| {
        // A shorter message has no whole block to begin with. RoCE pads packets to multiples of 4.
        (BLOCK..BRIEF).contains(&first.len())
            && first.len().is_multiple_of(4)
            && messages.iter().all(|message| message.len() == first.len())
    })
}

/// Powers of x modulo the CRC-32 polynomial, the polynomial, and the quotient for the Barrett
/// reduction, all bit-reflected, from "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
/// Instruction" (Gopal and others, Intel, 2009): x^(128+32) and x^(128-32), x^64, P and
/// floor(x^64/P).
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod constants {
    pub(super) const K3: i64 = 0x1_7519_97d0;
    pub(super) const K4: i64 = 0x0_ccaa_009e;
    pub(super) const K5: i64 = 0x1_63cd_6124;
    pub(super) const POLYNOMIAL: i64 = 0x1_db71_0641;
    pub(super) const INVERSE: i64 = 0x1_f701_1641;
}

/// Computes CRC-32 by folding. All of `messages` must satisfy [`fold_alike`]. The first step takes
/// the `len % 16` bytes in front of the last whole blocks and shifts zeros in before them: zeros in
/// front of a message do not change its remainder.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "pclmulqdq,avx")]
fn folded<const N: usize>(crcs: [u32; N], messages: [&[u8]; N]) -> [u32; N] {
    use constants::{K3, K4};
    use std::arch::x86_64::{
        __m128i, _mm_clmulepi64_si128, _mm_cvtsi32_si128, _mm_set_epi64x, _mm_setzero_si128,
        _mm_slli_si128, _mm_srli_si128, _mm_xor_si128,
    };
    let head = messages[0].len() % BLOCK;
    // All messages advance by one block in each step: their multiplications do not depend on each
    // other.
    let mut sums: [__m128i; N] = [_mm_setzero_si128(); N];
    let mut rests: [&[[u8; BLOCK]]; N] = [&[]; N];
    for i in 0..N {
        let Some(first) = messages[i].first_chunk() else {
            // Not reached: `fold_alike` has checked the length.
            return crcs;
        };
        // The register is XORed into the first four bytes, as a CRC does byte by byte.
        let first = _mm_xor_si128(block(first), _mm_cvtsi32_si128((!crcs[i]).cast_signed()));
        let (sum, rest) = match head {
            // The bytes of the head move to the end of the block; the last 16 - head of `first` are
            // read again below.
            4 => (_mm_slli_si128::<12>(first), &messages[i][4..]),
            8 => (_mm_slli_si128::<8>(first), &messages[i][8..]),
            12 => (_mm_slli_si128::<4>(first), &messages[i][12..]),
            _ => (first, &messages[i][BLOCK..]),
        };
        (sums[i], rests[i]) = (sum, rest.as_chunks().0);
    }
    // One factor for each half of the 128 bits that are folded.
    let by = _mm_set_epi64x(K4, K3);
    for next in 0..rests[0].len() {
        for (sum, rest) in sums.iter_mut().zip(rests) {
            // The low halves of both, and the high halves: each half is shifted by its own power of
            // x.
            let low = _mm_clmulepi64_si128::<0x00>(*sum, by);
            let high = _mm_clmulepi64_si128::<0x11>(*sum, by);
            *sum = _mm_xor_si128(_mm_xor_si128(low, high), block(&rest[next]));
        }
    }
    sums.map(|sum| {
        let low = _mm_clmulepi64_si128::<0x10>(sum, by);
        // 128 bits to 96: the low half by x^(128-32), added to the high one.
        !reduced(_mm_xor_si128(low, _mm_srli_si128::<8>(sum)))
    })
}

/// Reduces 96 bits to the remainder (Barrett reduction).
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "pclmulqdq,avx")]
fn reduced(sum: std::arch::x86_64::__m128i) -> u32 {
    use constants::{INVERSE, K5, POLYNOMIAL};
    use std::arch::x86_64::{
        _mm_and_si128, _mm_clmulepi64_si128, _mm_extract_epi32, _mm_set_epi32, _mm_set_epi64x,
        _mm_srli_si128, _mm_xor_si128,
    };
    // The instruction multiplies 64 bits; only 32 of them are meant.
    let low = _mm_set_epi32(0, 0, 0, !0);
    let folded = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(sum, low), _mm_set_epi64x(0, K5));
    let sum = _mm_xor_si128(folded, _mm_srli_si128::<4>(sum));
    let by = _mm_set_epi64x(INVERSE, POLYNOMIAL);
    let times = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(sum, low), by);
    let product = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(times, low), by);
    // Bit-reflected, the remainder is in the upper half of the low 64 bits.
    _mm_extract_epi32::<1>(_mm_xor_si128(product, sum)).cast_unsigned()
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx")]
fn block(bytes: &[u8; BLOCK]) -> std::arch::x86_64::__m128i {
    // SAFETY: 16 readable bytes, at any alignment.
    unsafe { std::arch::x86_64::_mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn crc32c_of_the_catalogues_check_string() {
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn crc32_of_the_catalogues_check_string() {
        assert_eq!(crc32(0, b"123456789"), 0xcbf4_3926);
    }

    /// Every length up to those of the largest MTU, so that each way is taken, and its first and last bytes.
    #[test]
    fn crc32_of_every_length_and_alignment_is_that_of_single_bits() {
        const LONGEST: usize = 4200;
        const INITIAL: u32 = 0x2144_df1c;
        let mut next = 1_u32;
        let bytes: Vec<u8> = (0..LONGEST + 64)
            .map(|_| {
                next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (next >> 24) as u8
            })
            .collect();
        for start in [0, 1, 4, 7, 16, 31, 63] {
            let mut register = !INITIAL;
            for (len, byte) in bytes[start..start + LONGEST].iter().enumerate() {
                let message = &bytes[start..start + len];
                assert_eq!(
                    crc32(INITIAL, message),
                    !register,
                    "{len} bytes from {start}"
                );
                let batch = crc32_interleaved([INITIAL; 4], [message; 4]);
                assert_eq!(batch, [!register; 4], "a batch of {len} bytes from {start}");
                register ^= u32::from(*byte);
                for _ in 0..8 {
                    register = (register >> 1) ^ if register & 1 == 1 { 0xedb8_8320 } else { 0 };
                }
            }
        }
    }

    proptest! {
        #[test]
        fn crc32c_shift_predicts_the_effect_of_a_changed_start(
            beginnings in any::<[u32; 2]>(),
            rest in vec(any::<u8>(), 0..5000),
        ) {
            let [before, after] = beginnings.map(|crc| crc32c(crc, &rest));
            let difference = crc32c_shift(beginnings[0] ^ beginnings[1], rest.len());
            prop_assert_eq!(before ^ difference, after);
        }

        #[test]
        fn crc32c_combine_matches_the_library(
            difference in any::<u32>(),
            len in 0..1_usize << 40,
        ) {
            let expected = crc32c::crc32c_combine(difference, 0, len);
            prop_assert_eq!(crc32c_shift(difference, len), expected);
        }

        #[test]
        fn folded_and_table_crc32_agree(crc in any::<u32>(), bytes in vec(any::<u8>(), 0..2 * BRIEF), cut in any::<prop::sample::Index>()) {
            // Multiples of four take the folding path.
            for bytes in [&bytes[..], &bytes[..bytes.len() / 4 * 4]] {
                let mut table = crc32fast::Hasher::new_with_initial(crc);
                table.update(bytes);
                prop_assert_eq!(crc32(crc, bytes), table.finalize());
                let (front, back) = bytes.split_at(cut.index(bytes.len() + 1));
                prop_assert_eq!(crc32(crc32(crc, front), back), crc32(crc, bytes));
            }
        }

        #[test]
        fn interleaved_crcs_match_separate_crcs(crcs in any::<[u32; 4]>(), bytes in vec(any::<u8>(), 4 * BRIEF), len in 0..BRIEF + 8, odd in 0..8_usize) {
            let mut messages: [&[u8]; 4] = array::from_fn(|i| &bytes[i * 300..][..len]);
            // In half of the cases one message has another length.
            if let Some(message) = messages.get_mut(odd) {
                *message = &message[..len / 2];
            }
            let alone: [u32; 4] = array::from_fn(|i| crc32(crcs[i], messages[i]));
            prop_assert_eq!(crc32_interleaved(crcs, messages), alone);
        }

        #[test]
        fn short_and_long_crc32c_agree(bytes in vec(any::<u8>(), 0..2 * SHORT), cut in any::<prop::sample::Index>()) {
            let (front, back) = bytes.split_at(cut.index(bytes.len() + 1));
            prop_assert_eq!(crc32c(crc32c(0, front), back), crc32c::crc32c(&bytes));
        }
    }
}
