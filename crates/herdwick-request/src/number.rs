//! Decimal numbers: as `incr` and `decr` read and write them in values, for every store, and in replies.

/// Digits of `u64::MAX`.
const DIGITS_MAX: usize = 20;

/// Parses a decimal number as memcached does (`strtoull`): optional white space and sign, digits,
/// then the end, or white space or a zero byte followed by anything. A negative number is valid if
/// it wraps to less than 2^63.
#[must_use]
pub fn parse(value: &[u8]) -> Option<u64> {
    let blanks = value.iter().take_while(|byte| is_space(byte)).count();
    let value = &value[blanks..];
    if let Some(magnitude) = value.strip_prefix(b"-") {
        // strtoull negates in the unsigned type.
        return Some(digits(magnitude)?.wrapping_neg()).filter(|wrapped| *wrapped < 1 << 63);
    }
    digits(value.strip_prefix(b"+").unwrap_or(value))
}

fn digits(value: &[u8]) -> Option<u64> {
    let digits = value
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let (digits, rest) = value.split_at(digits);
    if digits.is_empty() || !rest.first().is_none_or(|byte| is_space(byte) || *byte == 0) {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        // An overflow is no number, as ERANGE is to memcached.
        number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })
}

/// C's `isspace`, which unlike Rust's `is_ascii_whitespace` includes the vertical tab.
fn is_space(byte: &u8) -> bool {
    byte.is_ascii_whitespace() || *byte == 0x0b
}

/// A number in decimal.
#[derive(Clone, Copy, Debug)]
pub struct Decimal {
    digits: [u8; DIGITS_MAX],
    from: usize,
}

impl Decimal {
    /// Formats a number.
    #[must_use]
    #[inline]
    pub fn new(mut number: u64) -> Self {
        let mut digits = [0; DIGITS_MAX];
        let mut from = DIGITS_MAX;
        // At least one digit, for 0.
        loop {
            from -= 1;
            digits[from] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Self { digits, from };
            }
        }
    }

    /// Returns its digits.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.digits[self.from..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_strtoull_parses() {
        let read: [(&[u8], u64); 10] = [
            (b"0", 0),
            (b"18446744073709551615", u64::MAX),
            (b"9 ", 9),
            (b" \t+12", 12),
            (b"12 and more", 12),
            (b"\x0b12\x0b", 12),
            (b"0000000000000000000000007", 7),
            (b"1\0x", 1),
            (b"-0", 0),
            (b"-18446744073709551615", 1),
        ];
        for (text, number) in read {
            assert_eq!(parse(text), Some(number), "{text:?}");
        }
    }

    #[test]
    fn refuses_text_that_is_no_number() {
        let refused: [&[u8]; 9] = [
            b"",
            b" ",
            b"x",
            b"12x",
            b"-1",
            b"+",
            b"18446744073709551616",
            b"+-1",
            b"-9223372036854775808",
        ];
        for text in refused {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn formats_numbers_as_std_does() {
        for number in [0, 7, 10, 99, 1 << 40, u64::MAX] {
            assert_eq!(
                Decimal::new(number).as_bytes(),
                number.to_string().as_bytes()
            );
        }
    }
}
