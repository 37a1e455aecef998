//! The store's time: seconds since the start of the server, item deadlines, and memcached's rule
//! for exptimes. Nothing here reads a clock; the caller passes the time.

/// Seconds since the server started, the store's unit of time. The count starts at 1, because 0
/// means "never" in a [`Deadline`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Second(pub u32);

/// The first second in which an item has expired, or [`Self::NEVER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline(pub u32);

impl Deadline {
    /// No expiry.
    pub const NEVER: Self = Self(0);
    /// Already expired: the first second of the count, which is never in the future.
    pub const PAST: Self = Self(1);

    /// Returns whether an item with this deadline has expired at `now`.
    #[inline]
    #[must_use]
    pub fn passed(self, now: Second) -> bool {
        // memcached counts an item as expired in the second of its exptime.
        self.0 != 0 && self.0 <= now.0
    }

    /// Returns the seconds left at `now`, or `None` for an item without expiry.
    #[must_use]
    pub fn left(self, now: Second) -> Option<u32> {
        // An item may be asked for in the second in which it expires.
        (self != Self::NEVER).then(|| self.0.saturating_sub(now.0))
    }
}

/// The time of a batch: the current second, and the Unix time of second 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Unix time at which `second` was 0.
    pub epoch_unix: u64,
    /// The current second.
    pub second: Second,
}

/// memcached reads an exptime above this as absolute Unix time.
const RELATIVE_MAX: u32 = 60 * 60 * 24 * 30;

/// An exptime that has expired already. memcached uses the same value: the smallest exptime that it
/// reads as absolute Unix time, which is in January 1970.
pub const EXPTIME_PAST: u32 = RELATIVE_MAX + 1;

impl Clock {
    /// Converts an exptime by memcached's rule (`realtime()` in memcached.c): 0 is never, up to 30
    /// days is relative to now, above that it is absolute Unix seconds, until 2106.
    #[must_use]
    pub fn deadline(&self, exptime: u32) -> Deadline {
        let at = match exptime {
            0 => return Deadline::NEVER,
            // Up to the last second that a deadline can name.
            1..=RELATIVE_MAX => self.second.0.saturating_add(exptime),
            _ => {
                // A time before the server's start gives 0.
                let since = u64::from(exptime).saturating_sub(self.epoch_unix);
                // At most the exptime, so it fits 32 bits.
                since as u32
            }
        };
        // 0 would mean never. memcached returns 1 for a time before its start, too.
        Deadline(at.max(Deadline::PAST.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exptime_deadlines_match_memcached() {
        const EPOCH: u32 = 1_700_000_000;
        let clock = Clock {
            epoch_unix: EPOCH.into(),
            second: Second(50),
        };
        for (exptime, deadline) in [
            (0, Deadline::NEVER),
            (1, Deadline(51)),
            (2_592_000, Deadline(2_592_050)),
            (EXPTIME_PAST, Deadline::PAST),
            (EPOCH - 1, Deadline::PAST),
            (EPOCH, Deadline::PAST),
            (EPOCH + 1, Deadline(1)),
            (EPOCH + 60, Deadline(60)),
            (i32::MAX as u32, Deadline(i32::MAX as u32 - EPOCH)),
            (1 << 31, Deadline((1 << 31) - EPOCH)),
            (u32::MAX, Deadline(u32::MAX - EPOCH)),
        ] {
            assert_eq!(clock.deadline(exptime), deadline, "{exptime}");
        }
        let last = Clock {
            epoch_unix: 0,
            second: Second(u32::MAX - 5),
        };
        assert_eq!(last.deadline(1000), Deadline(u32::MAX));
        assert_eq!(last.deadline(u32::MAX), Deadline(u32::MAX));
    }
}
