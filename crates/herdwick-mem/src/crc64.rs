//! CRC-64/XZ, by tables: eight bytes a step.

/// The polynomial of ECMA-182, bit-reflected.
const POLYNOMIAL: u64 = 0xc96c_5795_d787_0f42;

/// `TABLES[k][b]`: the remainder of the byte `b`, followed by `k` bytes of zeros.
static TABLES: [[u64; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u64, 0);
        while bit < 8 {
            // Bit-reflected: the bit that leaves is the lowest.
            crc = (crc >> 1) ^ if crc & 1 > 0 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before: u64 = tables[zeros - 1][byte];
            tables[zeros][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    tables
};

/// Returns the CRC-64/XZ of `bytes`, continued from `crc`, the checksum of the bytes before them (0 at
/// the start).
#[inline]
#[must_use]
pub fn crc64(crc: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    // The XZ variant inverts the register before and after.
    let crc = words.iter().fold(!crc, |crc, word| {
        let bytes = (crc ^ u64::from_le_bytes(*word)).to_le_bytes();
        // The first byte has the most bytes behind it, so it takes the last table.
        let parts = bytes.iter().zip(TABLES.iter().rev());
        parts.fold(0, |crc, (byte, table)| crc ^ table[usize::from(*byte)])
    });
    !rest.iter().fold(crc, |crc, byte| {
        (crc >> 8) ^ TABLES[0][usize::from(crc.to_le_bytes()[0] ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn crc64_of_the_catalogues_check_string() {
        assert_eq!(crc64(0, b"123456789"), 0x995d_c9bb_df19_39fa);
    }

    proptest! {
        #[test]
        fn steps_of_eight_bytes_match_single_bits(bytes in vec(any::<u8>(), 0..80), cut in any::<prop::sample::Index>()) {
            let mut bitwise = !0_u64;
            for byte in &bytes {
                bitwise ^= u64::from(*byte);
                for _ in 0..8 {
                    bitwise = (bitwise >> 1) ^ if bitwise & 1 > 0 { POLYNOMIAL } else { 0 };
                }
            }
            prop_assert_eq!(crc64(0, &bytes), !bitwise);
            let (front, back) = bytes.split_at(cut.index(bytes.len() + 1));
            prop_assert_eq!(crc64(crc64(0, front), back), !bitwise);
        }
    }
}
