//! Pauses before etcd is tried again.

use std::time::Duration;

/// The first pause doubles up to the last.
pub(super) const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Half to all of `span`, so that those who wait for etcd do not come at once.
pub(super) fn jittered(span: Duration) -> Duration {
    let share = getrandom::u32().unwrap_or(u32::MAX) as f64 / f64::from(u32::MAX);
    span.mul_f64(0.5 + share / 2.0)
}
