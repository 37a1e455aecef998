//! Requests: keys, operations, values and times to live.

use std::time::Duration;

use herdwick_request::EXPTIME_PAST;
pub use herdwick_request::Mode;

use crate::Usage;

/// A key: 1 to 250 bytes, none a space or control character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a>(&'a [u8]);

impl<'a> Key<'a> {
    /// Checks `bytes`.
    ///
    /// # Errors
    /// [`Usage::KeyLength`], [`Usage::KeyByte`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, Usage> {
        if !(1..=herdwick_request::KEY_BYTES_MAX).contains(&bytes.len()) {
            return Err(Usage::KeyLength(bytes.len()));
        }
        match bytes.iter().find(|&&byte| byte <= b' ' || byte == 0x7f) {
            Some(&byte) => Err(Usage::KeyByte(byte)),
            None => Ok(Self(bytes)),
        }
    }

    /// Names an item by the bytes of another key.
    #[cfg(feature = "aio")]
    pub(crate) fn of_checked(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// One operation on one key.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Read value, flags and version.
    Get,
    /// Store.
    Store(Mode, Put<'a>),
    /// Store if the item's version is still this one.
    Cas(u64, Put<'a>),
    /// Remove.
    Delete,
    /// Give the item a new time to live.
    Touch(Ttl),
    /// Add to a decimal value, wrapping at 2^64.
    Incr(u64),
    /// Subtract from a decimal value, down to 0.
    Decr(u64),
}

/// A value to store, its flags and its time to live.
#[derive(Clone, Copy, Debug, Default)]
pub struct Put<'a> {
    pub(crate) value: &'a [u8],
    pub(crate) flags: u32,
    pub(crate) ttl: Ttl,
}

impl<'a> Put<'a> {
    /// Makes a `Put` of `value` with flags 0, that never expires.
    #[must_use]
    pub fn new(value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self {
            value: value.as_ref(),
            flags: 0,
            ttl: Ttl::Never,
        }
    }

    /// Sets the client's flags, which are opaque to the server.
    #[must_use]
    pub fn flags(self, flags: u32) -> Self {
        Self { flags, ..self }
    }

    /// Sets the time to live.
    #[must_use]
    pub fn ttl(self, ttl: impl Into<Ttl>) -> Self {
        Self {
            ttl: ttl.into(),
            ..self
        }
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Put<'a> {
    fn from(value: &'a T) -> Self {
        Put::new(value)
    }
}

/// Time to live of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ttl {
    /// Until it is evicted.
    #[default]
    Never,
    /// This many seconds; 0: the item expires at once. Servers count whole seconds of their own, so
    /// an item may expire up to a second early. The text protocol cannot encode a time after
    /// January 2038: an item stored over it then stays until it is evicted.
    Seconds(u32),
}

impl From<Duration> for Ttl {
    /// Rounds up to whole seconds.
    fn from(span: Duration) -> Self {
        let fraction = u64::from(span.subsec_nanos() > 0);
        let seconds = span.as_secs().saturating_add(fraction);
        Self::Seconds(u32::try_from(seconds).unwrap_or(u32::MAX))
    }
}

impl Ttl {
    /// Returns memcached's exptime. `unix` is the current time in seconds.
    pub(crate) fn exptime(self, unix: u64) -> u32 {
        match self {
            Self::Never => 0,
            Self::Seconds(0) => EXPTIME_PAST,
            // memcached reads up to 30 days as seconds from now, and more as a date.
            Self::Seconds(seconds) if seconds < EXPTIME_PAST => seconds,
            // A time beyond 2106 cannot be encoded; the item then stays until it is evicted.
            Self::Seconds(seconds) => {
                u32::try_from(unix.saturating_add(seconds.into())).unwrap_or(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use herdwick_request::{Clock, Deadline, Second};

    use super::*;

    #[test]
    fn key_rules_match_memcacheds() {
        assert!(Key::new(&[b'k'; 250]).is_ok());
        assert!(Key::new("schlüssel".as_bytes()).is_ok());
        assert_eq!(Key::new(b""), Err(Usage::KeyLength(0)));
        assert_eq!(Key::new(&[b'k'; 251]), Err(Usage::KeyLength(251)));
        for byte in [b' ', b'\r', b'\n', 0, 0x7f] {
            assert_eq!(Key::new(&[b'k', byte]), Err(Usage::KeyByte(byte)));
        }
    }

    /// The reference is the store's own interpretation of an exptime.
    #[test]
    fn ttl_is_encoded_as_the_store_interprets_it() {
        let clock = Clock {
            epoch_unix: 1_700_000_000,
            second: Second(50),
        };
        let end = |ttl: Ttl| clock.deadline(ttl.exptime(clock.epoch_unix + 50));
        assert_eq!(end(Ttl::Never), Deadline::NEVER);
        assert_eq!(end(Ttl::Seconds(0)), Deadline::PAST);
        assert_eq!(end(Duration::from_millis(1).into()), Deadline(51));
        assert_eq!(end(Ttl::Seconds(60)), Deadline(110));
        for days in [30, 31, 365, 60 * 365] {
            let seconds = days * 24 * 60 * 60;
            assert_eq!(
                end(Ttl::Seconds(seconds)),
                Deadline(50 + seconds),
                "{days} days"
            );
        }
        assert_eq!(end(Duration::MAX.into()), Deadline::NEVER);
    }
}
