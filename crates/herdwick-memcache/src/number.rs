//! Numbers as memcached 1.6.45 parses them. Its own conversions accept digits only, up to a maximum
//! count. The flags and the exptime of a storage command still go through C's `strtoul` and
//! `strtol`: leading white space (a tab does not separate arguments), a sign, digits, then the end
//! or more white space.

/// Maximum length of a 32-bit number in memcached, leading zeros and sign included.
const DIGITS_32_MAX: usize = 11;
/// Maximum length of a 64-bit number.
const DIGITS_64_MAX: usize = 22;

/// Replaces a negative exptime: a time in January 1970 (`EXPTIME_TO_POSITIVE_TIME`).
const EXPTIME_PAST: u32 = 60 * 60 * 24 * 30 + 1;

/// Maximum number of digits of a number that fits every type here.
const SHORT_DIGITS_MAX: usize = 9;

/// Parses a number without a sign and of few digits, as almost all are.
#[inline]
fn short(text: &[u8]) -> Option<u32> {
    if text.is_empty() || text.len() > SHORT_DIGITS_MAX {
        return None;
    }
    let mut value = 0;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u32::from(digit);
    }
    Some(value)
}

/// `mcmc_toktou64`.
pub(crate) fn unsigned(text: &[u8]) -> Option<u64> {
    digits(text, DIGITS_64_MAX)
}

/// `mcmc_toktou32`.
pub(crate) fn unsigned32(text: &[u8]) -> Option<u32> {
    u32::try_from(digits(text, DIGITS_32_MAX)?).ok()
}

/// `mcmc_tokto32`, which reads a lone minus sign as 0.
fn signed32(text: &[u8]) -> Option<i32> {
    if text.len() > DIGITS_32_MAX {
        return None;
    }
    let magnitude = |text: &[u8]| i64::try_from(digits(text, DIGITS_32_MAX)?).ok();
    let value = match text {
        b"-" => 0,
        [b'-', rest @ ..] => -magnitude(rest)?,
        text => magnitude(text)?,
    };
    i32::try_from(value).ok()
}

/// Parses the length of a data block. memcached adds 2 for the line end in an `int`, so a sum
/// beyond `i32::MAX` is invalid.
#[inline]
pub(crate) fn block(text: &[u8]) -> Option<usize> {
    // So few digits are far below `i32::MAX`.
    if let Some(bytes) = short(text) {
        return Some(bytes as usize);
    }
    let bytes = signed32(text)?.checked_add(2)?;
    usize::try_from(bytes - 2).ok()
}

/// Parses an exptime, except that of a storage command.
pub(crate) fn exptime(text: &[u8]) -> Option<u32> {
    signed32(text).map(|seconds| u32::try_from(seconds).unwrap_or(EXPTIME_PAST))
}

/// Parses the delay of `flush_all`; a negative one means now, as 0 does.
pub(crate) fn delay(text: &[u8]) -> Option<u32> {
    signed32(text).map(|seconds| u32::try_from(seconds).unwrap_or(0))
}

/// `safe_strtoul`: parses the flags of a storage command, of which memcached keeps the low 32 bits.
/// A negative number is valid if it wraps to less than 2^63.
#[inline]
pub(crate) fn stored_flags(text: &[u8]) -> Option<u32> {
    short(text).or_else(|| stored_flags_in_full(text))
}

fn stored_flags_in_full(text: &[u8]) -> Option<u32> {
    let (negative, magnitude) = magnitude(text)?;
    let value = if negative {
        magnitude.wrapping_neg()
    } else {
        magnitude
    };
    (!negative || value < 1 << 63).then_some(value as u32)
}

/// `safe_strtol`: parses the exptime of a storage command, of which memcached keeps the low 32
/// bits.
#[inline]
pub(crate) fn stored_exptime(text: &[u8]) -> Option<u32> {
    short(text).or_else(|| stored_exptime_in_full(text))
}

fn stored_exptime_in_full(text: &[u8]) -> Option<u32> {
    let (negative, magnitude) = magnitude(text)?;
    let value = if negative {
        0i64.checked_sub_unsigned(magnitude)?
    } else {
        i64::try_from(magnitude).ok()?
    };
    // The low 32 bits have a sign, so a large number may be in the past.
    Some(u32::try_from(value as i32).unwrap_or(EXPTIME_PAST))
}

/// Parses 1 to `most` digits.
fn digits(text: &[u8], most: usize) -> Option<u64> {
    if text.is_empty() || text.len() > most {
        return None;
    }
    text.iter().try_fold(0u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// Parses like `strtoull`; returns whether there is a minus sign, and the magnitude.
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
    let ended = digits
        .get(read)
        // A zero byte ends a string of C.
        .is_none_or(|&byte| byte == 0 || is_space(byte));
    (read > 0 && ended).then_some((negative, value))
}

/// C's `isspace`.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_accept_only_digits() {
        assert_eq!(unsigned(b"0"), Some(0));
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned(b"18446744073709551616"), None);
        assert_eq!(unsigned(b"0000000000000000000007"), Some(7));
        assert_eq!(unsigned(b"00000000000000000000007"), None);
        for broken in [&b""[..], b"-", b"-0", b"+7", b"x", b"7x", b"7\t", b"\t7"] {
            assert_eq!(unsigned(broken), None, "{broken:?}");
            assert_eq!(unsigned32(broken), None, "{broken:?}");
        }
        assert_eq!(unsigned32(b"4294967295"), Some(u32::MAX));
        assert_eq!(unsigned32(b"4294967296"), None);
        assert_eq!(unsigned32(b"00000000007"), Some(7));
        assert_eq!(unsigned32(b"000000000007"), None);
    }

    #[test]
    fn signed_numbers_are_limited_to_32_bits() {
        assert_eq!(signed32(b"-1"), Some(-1));
        assert_eq!(signed32(b"-"), Some(0));
        assert_eq!(signed32(b"-2147483648"), Some(i32::MIN));
        assert_eq!(signed32(b"-2147483649"), None);
        assert_eq!(signed32(b"2147483647"), Some(i32::MAX));
        assert_eq!(signed32(b"2147483648"), None);
        assert_eq!(signed32(b"-00000000001"), None);
        assert_eq!(signed32(b"+1"), None);
        assert_eq!(block(b"2147483645"), Some(2_147_483_645));
        assert_eq!(block(b"2147483646"), None);
        assert_eq!(block(b"-1"), None);
    }

    proptest! {
        /// Short numbers have a parser of their own, with the same result.
        #[test]
        fn short_numbers_parse_as_all_others(text in "[-+ \t]{0,1}[0-9]{0,12}[x \t]{0,1}") {
            let text = text.as_bytes();
            prop_assert_eq!(stored_flags(text), stored_flags_in_full(text));
            prop_assert_eq!(stored_exptime(text), stored_exptime_in_full(text));
            let in_full = signed32(text).and_then(|bytes| bytes.checked_add(2));
            let in_full = in_full.and_then(|bytes| usize::try_from(bytes - 2).ok());
            prop_assert_eq!(block(text), in_full);
        }
    }

    #[test]
    fn negative_exptime_is_expired_and_negative_delay_is_zero() {
        assert_eq!(exptime(b"-1"), Some(2_592_001));
        assert_eq!(exptime(b"2147483648"), None);
        assert_eq!(delay(b"-1"), Some(0));
        assert_eq!(delay(b"2592001"), Some(2_592_001));
        assert_eq!(delay(b"x"), None);
    }

    #[test]
    fn storage_commands_keep_the_low_32_bits() {
        assert_eq!(stored_exptime(b"-1"), Some(2_592_001));
        assert_eq!(stored_exptime(b"2147483648"), Some(2_592_001));
        assert_eq!(stored_exptime(b"4294967297"), Some(1));
        assert_eq!(stored_exptime(b"-9223372036854775808"), Some(0));
        assert_eq!(stored_exptime(b"9223372036854775808"), None);
        assert_eq!(stored_flags(b"4294967297"), Some(1));
        assert_eq!(stored_flags(b"18446744073709551615"), Some(u32::MAX));
        assert_eq!(stored_flags(b"18446744073709551616"), None);
        assert_eq!(stored_flags(b"-18446744073709551615"), Some(1));
        assert_eq!(stored_flags(b"-1"), None);
        assert_eq!(stored_flags(b"\t+7\tx"), Some(7));
        for broken in [&b""[..], b"-", b"+", b"x", b"7x", b"--7", b"\t"] {
            assert_eq!(stored_flags(broken), None, "{broken:?}");
        }
    }
}
