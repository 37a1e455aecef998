//! How long tests run: short by default, longer where the environment sets `HERDWICK_LONG`, as in CI.

/// Returns the number that the variable `name` contains, or `default`.
///
/// # Panics
/// If it is no number.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "a test has no arguments")]
pub fn count(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number, not {value}"))
    })
}

/// Returns `long` where the variable `HERDWICK_LONG` is set, as in CI, or else `short`.
#[must_use]
pub fn length<T>(short: T, long: T) -> T {
    if std::env::var_os("HERDWICK_LONG").is_some() {
        long
    } else {
        short
    }
}
