//! Keys as they are printed: memcached's URI encoding.

use std::fmt::{self, Write};

/// A key in memcached's URI encoding.
pub(crate) struct Uri<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Uri<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|&byte| {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                f.write_char(char::from(byte))
            } else {
                write!(f, "%{byte:02X}")
            }
        })
    }
}
