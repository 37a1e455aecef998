//! Addresses of servers, parsed from what a user types.

use std::{fmt, path::PathBuf, str::FromStr};

use crate::Usage;

/// memcached's port, the default of an address.
const PORT: u16 = 11211;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `host:port`.
    Tcp(String),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = Usage;

    /// Parses `host`, `host:port`, `[v6]:port`, or a path (text that contains a `/`, or begins with
    /// `unix:`).
    fn from_str(text: &str) -> Result<Self, Usage> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(path.into()));
        }
        if text.contains("://") {
            return Err(Usage::Address);
        }
        if text.contains('/') {
            return Ok(Self::Unix(text.into()));
        }
        // The last colon, since IPv6 addresses have more; text that ends with a bracket has no
        // port.
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !text.ends_with(']') => (host, port.parse().ok()),
            _ => (text, Some(PORT)),
        };
        // Without brackets it cannot be known whether the last group is a port.
        let bare_v6 = host.contains(':') && !host.starts_with('[');
        match port {
            Some(port) if !host.is_empty() && !bare_v6 => Ok(Self::Tcp(format!("{host}:{port}"))),
            _ => Err(Usage::Address),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host) => f.write_str(host),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_forms_are_parsed() {
        for (text, address) in [
            ("localhost", Ok(Address::Tcp("localhost:11211".into()))),
            ("10.0.0.1:77", Ok(Address::Tcp("10.0.0.1:77".into()))),
            ("[::1]", Ok(Address::Tcp("[::1]:11211".into()))),
            ("[::1]:77", Ok(Address::Tcp("[::1]:77".into()))),
            ("/run/m.sock", Ok(Address::Unix("/run/m.sock".into()))),
            ("unix:m.sock", Ok(Address::Unix("m.sock".into()))),
            ("", Err(Usage::Address)),
            (":77", Err(Usage::Address)),
            ("::1", Err(Usage::Address)),
            ("http://localhost:11211", Err(Usage::Address)),
            ("host:http", Err(Usage::Address)),
            ("host:65536", Err(Usage::Address)),
        ] {
            assert_eq!(text.parse(), address, "{text:?}");
        }
    }
}
