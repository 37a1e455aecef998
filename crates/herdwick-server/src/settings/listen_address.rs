//! Where a server listens: sockets, interfaces, addresses.

use std::{fmt, net::SocketAddr, path::PathBuf};

/// The sockets a server listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// TCP on these interfaces.
    Tcp(Vec<Interface>),
    /// A unix socket only.
    Unix {
        /// Its path. A socket file on which no server listens any more is replaced.
        path: PathBuf,
        /// The mode of its file (memcached's `-a`).
        mode: u32,
    },
}

/// A host name, or all interfaces, to listen on by TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its addresses, of which at least one must be free. Port 0 binds a free port.
    pub addresses: Vec<SocketAddr>,
    /// Without TLS even if the server has TLS (memcached's `notls:`).
    pub plain: bool,
}

impl From<SocketAddr> for Interface {
    fn from(address: SocketAddr) -> Self {
        Self {
            addresses: vec![address],
            plain: false,
        }
    }
}

/// An address a server listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Over TCP.
    Tcp(SocketAddr),
    /// Over a unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Returns the TCP port.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(address) => Some(address.port()),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}
