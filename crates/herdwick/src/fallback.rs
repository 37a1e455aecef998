//! Reasons why a session uses memcached's text protocol although a fabric is faster.

use std::path::PathBuf;

pub use herdwick_herd::hello::Refusal as LeaseRefusal;
use herdwick_herd::hello::VERSION;

use crate::{Fabric, OsError};

/// Why a session goes by memcached's text, though a fabric is faster; or by one fabric, though
/// another is.
///
/// What may pass ([`Fallback::NoAnswer`], [`Fallback::Socket`], [`Fallback::Refused`],
/// [`Fallback::Silent`], [`Fallback::Setup`]) does not bind a [`Client`](crate::Client) for ever: a
/// call after 1 s looks for a better transport, another 2 s later, and so on up to a minute apart.
/// Such a look takes up to 200 ms of that call, and no more than half of its deadline; opening an
/// RDMA device may take longer. A [`Session`](crate::Session) goes one way for as long as it lasts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fallback {
    /// [`Options::fabric`](crate::Options::fabric) is not set.
    #[error("no fabric was asked for")]
    Unasked,
    /// The server is a memcached.
    #[error("the server is a memcached, not a herdwick")]
    Memcached,
    /// The server's hello has another version.
    #[error("the server has version {0} of the hello, this client {VERSION}")]
    Version(u8),
    /// The server did not answer the hello within a quarter of the deadline (at least 250 ms, at most
    /// 5 s), or its answer was malformed: it is slow, or there is a proxy in between.
    #[error("the server or a proxy before it did not answer the hello")]
    NoAnswer,
    /// The server shares no memory with this host, and has no fabric that reaches other hosts.
    #[error(
        "the server offers no fabric: {}",
        Fabric::list(Fabric::why_not_offered, "; ")
    )]
    NotOffered,
    /// The server's engine is one that this client does not know.
    #[error("the server's engine is {0}, which this client does not know")]
    Engine(String),
    /// The server is no secondary store, which a client was to read or write.
    #[error("the server is no secondary store (`serve --secondary`)")]
    NotSecondary,
    /// The server offers a fabric for which this host has no device that reaches it.
    #[error("the server offers {title}, which this host lacks: {1}", title = .0.title())]
    NoDevice(Fabric, String),
    /// The lease socket cannot be reached, or does not answer.
    #[error("the server's lease socket, {}: {error}", path.display())]
    Socket {
        /// The path that the server offered.
        path: PathBuf,
        /// The system's error.
        error: OsError,
    },
    /// The server refused a lease.
    #[error(transparent)]
    Refused(#[from] LeaseRefusal),
    /// The server granted a lease, but nothing arrives over the fabric: a first exchange with each
    /// worker, repeated for a quarter of the time that the fabric has (at least 250 ms, at most 5 s),
    /// got no answer.
    #[error(
        "the server grants {name}, but nothing comes back over it: is there a firewall, or a port \
         forward of TCP alone, in between?",
        name = .0.name()
    )]
    Silent(Fabric),
    /// The granted lease could not be set up here: a limit of this process, or a malformed grant.
    #[error("the fabric could not be set up: {0}")]
    Setup(String),
}

impl Fallback {
    /// Whether the reason is temporary, so that another attempt may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::NoAnswer
            | Self::Socket { .. }
            | Self::Refused(_)
            | Self::Silent(_)
            | Self::Setup(_) => true,
            Self::Unasked
            | Self::Memcached
            | Self::Version(_)
            | Self::NotOffered
            | Self::Engine(_)
            | Self::NotSecondary
            | Self::NoDevice(..) => false,
        }
    }
}
