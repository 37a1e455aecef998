//! Replies of classic text, appended to a buffer. The caller bounds the buffer.

use herdwick_mem::append;
use herdwick_request::number::Decimal;

use crate::KEY_BYTES_MAX;

/// A storage command has stored its value.
pub const STORED: &[u8] = b"STORED\r\n";
/// The condition of `add`, `replace`, `append` or `prepend` did not hold.
pub const NOT_STORED: &[u8] = b"NOT_STORED\r\n";
/// `cas` on an item that has changed.
pub const EXISTS: &[u8] = b"EXISTS\r\n";
/// No such item.
pub const NOT_FOUND: &[u8] = b"NOT_FOUND\r\n";
/// `delete` has removed the item.
pub const DELETED: &[u8] = b"DELETED\r\n";
/// `touch` has set the deadline.
pub const TOUCHED: &[u8] = b"TOUCHED\r\n";
/// The success of a command without a result.
pub const OK: &[u8] = b"OK\r\n";
/// `stats reset` is done.
pub const RESET: &[u8] = b"RESET\r\n";
/// The end of values or statistics.
pub const END: &[u8] = b"END\r\n";
/// No such command.
pub const ERROR: &[u8] = b"ERROR\r\n";
/// `incr` or `decr` of a value that is not a number.
pub const NON_NUMERIC: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
/// The item exceeds the maximum size.
pub const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
/// The store has no room without evicting, which it must not.
pub const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
/// `cache_memlimit` below what memcached allows.
pub const MEMORY_LIMIT_TOO_SMALL: &[u8] =
    b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n";
/// `shutdown` where it is not allowed.
// The colon is memcached's.
pub const SHUTDOWN_REFUSED: &[u8] = b"SERVER_ERROR: shutdown not enabled\r\n";
/// `shutdown` with an unknown mode.
pub const SHUTDOWN_MODE: &[u8] = b"CLIENT_ERROR invalid shutdown mode\r\n";
/// `cache_memlimit` that cannot be applied.
pub const MEMORY_LIMIT_FAILED: &[u8] =
    b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n";
/// `cache_memlimit` with a number so large that it is probably in bytes.
pub const MEMORY_LIMIT_IN_BYTES: &[u8] =
    b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n";
/// Sent to a connection beyond the limit, which is then closed.
pub const TOO_MANY_CONNECTIONS: &[u8] = b"ERROR Too many open connections\r\n";

/// Maximum bytes of [`value`] besides the data: `VALUE`, key, flags, length, CAS, two line ends.
pub const VALUE_OVERHEAD_BYTES_MAX: usize = 6 + KEY_BYTES_MAX + 11 + 11 + 21 + 2 + 2;

/// Appends one item of a `get`.
#[inline]
pub fn value(out: &mut Vec<u8>, key: &[u8], flags: u32, cas: Option<u64>, data: &[u8]) {
    // Once for all parts.
    out.reserve(VALUE_OVERHEAD_BYTES_MAX + data.len());
    out.extend_from_slice(b"VALUE ");
    append(out, key);
    out.push(b' ');
    decimal(out, u64::from(flags));
    out.push(b' ');
    decimal(out, data.len() as u64);
    if let Some(cas) = cas {
        out.push(b' ');
        decimal(out, cas);
    }
    out.extend_from_slice(b"\r\n");
    append(out, data);
    out.extend_from_slice(b"\r\n");
}

/// Appends the result of `incr` or `decr`.
pub fn number(out: &mut Vec<u8>, number: u64) {
    decimal(out, number);
    out.extend_from_slice(b"\r\n");
}

/// Appends `STAT name value`.
pub fn stat(out: &mut Vec<u8>, name: &str, value: impl std::fmt::Display) {
    use std::io::Write;
    write!(out, "STAT {name} {value}\r\n").expect("a Vec takes every write");
}

/// Appends a number.
#[inline]
pub(crate) fn decimal(out: &mut Vec<u8>, number: u64) {
    // Flags and lengths mostly have few digits.
    let digit = |unit| b'0' + (number / unit % 10) as u8;
    match number {
        0..10 => out.push(digit(1)),
        10..100 => out.extend_from_slice(&[digit(10), digit(1)]),
        100..1000 => out.extend_from_slice(&[digit(100), digit(10), digit(1)]),
        _ => append(out, Decimal::new(number).as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_format_as_in_std(n in any::<u64>(), shift in 0u32..64) {
            let mut out = Vec::new();
            number(&mut out, n >> shift);
            prop_assert_eq!(out, format!("{}\r\n", n >> shift).into_bytes());
        }
    }

    #[test]
    fn item_line_matches_protocol_txt() {
        let mut out = Vec::new();
        value(&mut out, b"k", 0, None, b"abc");
        value(&mut out, b"k", u32::MAX, Some(u64::MAX), b"");
        assert_eq!(
            out,
            b"VALUE k 0 3\r\nabc\r\nVALUE k 4294967295 0 18446744073709551615\r\n\r\n"
        );
    }

    #[test]
    fn reply_overhead_bound_is_exact() {
        let mut out = Vec::new();
        let data = vec![b'x'; 1 << 20];
        value(
            &mut out,
            &[b'k'; KEY_BYTES_MAX],
            u32::MAX,
            Some(u64::MAX),
            &data,
        );
        assert_eq!(
            out.len() - data.len() + "4294967295".len() - "1048576".len(),
            VALUE_OVERHEAD_BYTES_MAX
        );
    }
}
