//! Parsers of numbers on the command line: counts, ports, sizes and times, with units. A number
//! without a unit has memcached's meaning.

use std::{str::FromStr, time::Duration};

/// Parses a number without a unit.
pub(crate) fn count<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| {
        let number = text.strip_prefix('-').unwrap_or(text);
        let reason = match (is_digits(number), number.len() < text.len()) {
            (true, true) => "not a number from 0 on",
            (true, false) => "too large a number",
            _ => "not a number",
        };
        reason.into()
    })
}

/// Parses a port, 0, or -1, which in memcached requests a free port.
pub(crate) fn port(text: &str) -> Result<i32, String> {
    let port = text.parse().ok();
    port.filter(|port| (-1..=i32::from(u16::MAX)).contains(port))
        .ok_or_else(|| "not a port: give 0 to 65535, or -1 for a free one".into())
}

/// Parses a size in bytes: `1024`, `512k`, `1m`, `2g`, `1t`, in powers of 1,024, with or without
/// `b` or `ib` behind the unit. A number without a unit is multiplied by `bare`.
pub(crate) fn bytes(text: &str, bare: usize) -> Option<usize> {
    let at = text.find(|c: char| !c.is_ascii_digit());
    let (digits, unit) = text.split_at(at.unwrap_or(text.len()));
    let unit = match unit.to_ascii_lowercase().as_str() {
        "" => bare,
        "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

/// Parses a size in megabytes (MiB), as for memcached's `-m`.
pub(crate) fn megabytes(text: &str) -> Result<usize, String> {
    let bytes = bytes(text, 1 << 20).ok_or("not a size: give megabytes, or 512m, 2g")?;
    match bytes % (1 << 20) {
        0 => Ok(bytes >> 20),
        _ => Err("not a whole number of megabytes".into()),
    }
}

/// Parses a time: `90`, `90s`, `15m`, `2h`, `1d`, `1w`; also `500ms` and `20us`. The number may
/// have a fraction. Without a unit it is multiplied by `bare`.
pub(crate) fn time(text: &str, bare: Duration) -> Option<Duration> {
    let at = text.find(|c: char| !(c.is_ascii_digit() || c == '.'));
    let (digits, unit) = text.split_at(at.unwrap_or(text.len()));
    let unit = match unit.to_ascii_lowercase().as_str() {
        "" => bare,
        "us" => Duration::from_micros(1),
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" | "min" => Duration::from_secs(60),
        "h" => Duration::from_secs(3600),
        "d" => Duration::from_secs(86_400),
        "w" => Duration::from_secs(604_800),
        _ => return None,
    };
    let seconds = digits.parse::<f64>().ok()? * unit.as_secs_f64();
    Duration::try_from_secs_f64(seconds).ok()
}

/// Parses a time of whole seconds.
pub(crate) fn seconds(text: &str) -> Result<u32, String> {
    let time = time(text, Duration::from_secs(1));
    let whole = time.filter(|time| time.subsec_nanos() == 0);
    whole
        .and_then(|time| u32::try_from(time.as_secs()).ok())
        .ok_or_else(|| "not a time: give whole seconds, or 90s, 15m, 2h, 1d".into())
}

/// Parses a time into microseconds.
pub(crate) fn microseconds(text: &str) -> Result<u64, String> {
    let time = time(text, Duration::from_micros(1));
    time.and_then(|time| u64::try_from(time.as_micros()).ok())
        .ok_or_else(|| "not a time: give microseconds, or 50us, 1ms".into())
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_accept_units_and_bare_numbers_use_memcacheds_unit() {
        for (text, expected) in [
            ("64", Some(64 << 20)),
            ("64m", Some(64 << 20)),
            ("1g", Some(1 << 30)),
            ("1GiB", Some(1 << 30)),
            ("2048k", Some(2 << 20)),
            ("7b", Some(7)),
            ("", None),
            ("m", None),
            ("1x", None),
            ("-1", None),
            ("99999999999999999999", None),
            ("99999999999999t", None),
        ] {
            assert_eq!(bytes(text, 1 << 20), expected, "{text}");
        }
        assert_eq!(megabytes("1g"), Ok(1024));
        assert_eq!(megabytes("1024k"), Ok(1));
        assert!(megabytes("1000k").is_err());
    }

    #[test]
    fn times_accept_units_and_bare_numbers_are_seconds() {
        for (text, expected) in [
            ("60", Some(60)),
            ("60s", Some(60)),
            ("1.5m", Some(90)),
            ("2h", Some(7200)),
            ("1d", Some(86_400)),
            ("1w", Some(604_800)),
            ("0.5", None),
            ("1y", None),
            ("", None),
            (".", None),
            ("-1", None),
            ("4294967296", None),
        ] {
            assert_eq!(seconds(text).ok(), expected, "{text}");
        }
        assert_eq!(microseconds("20"), Ok(20));
        assert_eq!(microseconds("1ms"), Ok(1000));
    }

    #[test]
    fn ports_0_and_minus_1_mean_a_free_port() {
        assert_eq!(port("-1"), Ok(-1));
        assert_eq!(port("65535"), Ok(65535));
        for wrong in ["-2", "65536", "x", ""] {
            assert!(port(wrong).is_err(), "{wrong}");
        }
        assert_eq!(count::<u8>("256"), Err("too large a number".into()));
        assert_eq!(count::<u8>("x"), Err("not a number".into()));
        assert_eq!(count::<u8>("-"), Err("not a number".into()));
        assert_eq!(count::<u8>("-1"), Err("not a number from 0 on".into()));
    }
}
