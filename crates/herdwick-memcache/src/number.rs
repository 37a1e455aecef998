//! Numbers as C's `strtoull` and `strtol` read them, which is how memcached reads them: white
//! space in front (a tab does not separate arguments), a sign, digits, then the end or more white
//! space.

/// `safe_strtoull`: a negative number counts as long as it wraps around to less than 2^63.
pub(crate) fn unsigned(text: &[u8]) -> Option<u64> {
    let (negative, magnitude) = magnitude(text)?;
    if !negative {
        return Some(magnitude);
    }
    let wrapped = magnitude.wrapping_neg();
    (wrapped < 1 << 63).then_some(wrapped)
}

/// `safe_strtoul` into 32 bits, without its truncation, as 1.6.45 reads the flags of meta commands.
pub(crate) fn unsigned32(text: &[u8]) -> Option<u32> {
    u32::try_from(unsigned(text)?).ok()
}

/// `safe_strtol` of a length into 32 bits, without its truncation, as 1.6.45 does it: 1.6.18 takes
/// the rest of such a block for commands.
fn signed32(text: &[u8]) -> Option<i32> {
    i32::try_from(signed(text)?).ok()
}

/// `safe_strtol` of the length of a data block, to which memcached adds the line end in an `int`.
pub(crate) fn block(text: &[u8]) -> Option<usize> {
    let bytes = signed32(text)?.checked_add(2)?;
    usize::try_from(bytes - 2).ok()
}

/// `safe_strtol` of an exptime, and of a negative one the time in January 1970 that memcached takes
/// instead (`EXPTIME_TO_POSITIVE_TIME`).
pub(crate) fn exptime(text: &[u8]) -> Option<u32> {
    seconds(text, 60 * 60 * 24 * 30 + 1)
}

/// The same of `flush_all`, to which a negative one says now, as 0 does.
pub(crate) fn delay(text: &[u8]) -> Option<u32> {
    seconds(text, 0)
}

/// The low 32 bits of what was said, as memcached takes them, or `past` if they are negative.
fn seconds(text: &[u8], past: u32) -> Option<u32> {
    let low = signed(text)? as i32;
    Some(u32::try_from(low).unwrap_or(past))
}

fn signed(text: &[u8]) -> Option<i64> {
    let (negative, magnitude) = magnitude(text)?;
    if negative {
        0i64.checked_sub_unsigned(magnitude)
    } else {
        i64::try_from(magnitude).ok()
    }
}

fn magnitude(text: &[u8]) -> Option<(bool, u64)> {
    let start = text.iter().position(|&byte| !is_space(byte))?;
    let (negative, digits) = match text[start] {
        b'-' => (true, &text[start + 1..]),
        b'+' => (false, &text[start + 1..]),
        _ => (false, &text[start..]),
    };
    let mut value = 0u64;
    let mut read = 0;
    for &byte in digits.iter().take_while(|byte| byte.is_ascii_digit()) {
        value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
        read += 1;
    }
    let ended = digits.get(read).is_none_or(|&byte| is_space(byte));
    (read > 0 && ended).then_some((negative, value))
}

/// C's `isspace`.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsigned_numbers_read_as_strtoull_does() {
        assert_eq!(unsigned(b"0"), Some(0));
        assert_eq!(unsigned(b"+7"), Some(7));
        assert_eq!(unsigned(b"\t7\tx"), Some(7));
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned(b"18446744073709551616"), None);
        assert_eq!(unsigned(b"-0"), Some(0));
        assert_eq!(unsigned(b"-1"), None);
        assert_eq!(unsigned(b"-18446744073709551615"), Some(1));
        for broken in [&b""[..], b"-", b"+", b"x", b"7x", b"--7", b"\t"] {
            assert_eq!(unsigned(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn lengths_are_refused_where_memcached_truncates() {
        assert_eq!(signed32(b"-1"), Some(-1));
        assert_eq!(signed32(b"2147483647"), Some(i32::MAX));
        assert_eq!(signed32(b"2147483648"), None);
        assert_eq!(signed32(b"4294967296"), None);
        assert_eq!(unsigned32(b"4294967295"), Some(u32::MAX));
        assert_eq!(unsigned32(b"4294967296"), None);
    }

    #[test]
    fn a_negative_delay_is_none() {
        assert_eq!(delay(b"-1"), Some(0));
        assert_eq!(delay(b"2592001"), Some(2_592_001));
        assert_eq!(delay(b"x"), None);
    }

    #[test]
    fn exptimes_keep_their_low_32_bits() {
        assert_eq!(exptime(b"-1"), Some(2_592_001));
        assert_eq!(exptime(b"2147483648"), Some(2_592_001));
        assert_eq!(exptime(b"4294967297"), Some(1));
        assert_eq!(exptime(b"-9223372036854775808"), Some(0));
        assert_eq!(exptime(b"9223372036854775808"), None);
    }
}
