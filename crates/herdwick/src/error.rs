//! Errors of the client, sorted by who is to blame: the caller, the data, the server, the network.

use std::{fmt, io, time::Duration};

use herdwick_memcache::reply::MalformedReply;
use rustix::io::Errno;

/// Why a call failed. The variants are sorted by who is to blame.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller's mistake: nothing was sent.
    #[error(transparent)]
    Usage(#[from] Usage),
    /// The item is larger than the server stores. A `set` that fails so has removed the old value,
    /// as in memcached.
    #[error("the server refuses the item as too large")]
    TooLarge,
    /// The data: `incr` or `decr` of a value that is not a decimal number.
    #[error("the value is not a number")]
    NotNumeric,
    /// The server refused the request. Nothing was stored or counted; a `set` that it has no memory
    /// for may have removed the old value, as in memcached.
    #[error("the server refuses: {0}")]
    Server(String),
    /// No connection to the server, or the next dial is not due yet. Nothing was done.
    #[error("cannot reach {address}: {reason}")]
    Unreachable {
        /// The server's address.
        address: String,
        /// Why the last dial failed.
        reason: DialError,
    },
    /// No answer before the deadline. Nothing was changed.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection was lost, and again when it was retried; or the peer's replies are malformed.
    /// Nothing was changed.
    #[error("the connection was lost: {0}")]
    Disconnected(Cause),
    /// A mutation was sent and no answer arrived: it may have been executed, or not. The client
    /// cancels it where that is possible, but a request in flight may still be executed later,
    /// until the server notices that this connection is closed: a read that does not find it proves
    /// nothing. Where that matters use `cas`: a late one fails once a later one was stored.
    #[error("sent, but no answer came ({0}): it may or may not have been carried out")]
    UnknownOutcome(Cause),
}

/// A mistake of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Usage {
    /// A key's length is not 1 to 250 bytes.
    #[error("a key has 1 to 250 bytes, this one has {0}")]
    KeyLength(usize),
    /// A key contains a space or a control character.
    #[error("a key holds no spaces or control characters, this one holds byte {0:#04x}")]
    KeyByte(u8),
    /// The address is neither `host`, `host:port`, `[v6]:port` nor a path; or it is a URL.
    #[error("an address is HOST:PORT, [IPV6]:PORT, or the path of a unix socket")]
    Address,
    /// A cluster without servers.
    #[error("a cluster has at least one server")]
    NoServer,
    /// A cluster with two servers of one name: they would have the same keys.
    #[error("two servers of the cluster have one name")]
    ServerTwice,
    /// A cluster with weights under [`Distribution::Rendezvous`](crate::Distribution::Rendezvous).
    #[error("rendezvous hashing has no weights")]
    Weight,
    /// A `stats` argument with control characters or of more than 250 bytes.
    #[error("a stats argument is one line of at most 250 bytes")]
    StatsArgument,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The oldest request in flight got no answer in time.
    #[error("no answer in time")]
    Timeout,
    /// The peer closed it, ended the lease, or no longer answers over the fabric.
    #[error("the server closed the connection")]
    Closed,
    /// The operating system reported an error.
    #[error("{0}")]
    Io(OsError),
    /// The peer does not speak memcached.
    #[error("{0}")]
    Malformed(#[from] MalformedReply),
    /// The session belongs to the process that this one was forked from: dial another session.
    #[error("the session belongs to the process that this one was forked from")]
    Forked,
    /// A reply that does not belong to the oldest request in flight.
    #[error("the server's reply does not fit the request")]
    Unexpected,
}

/// Why dialling failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// An error of the operating system; of kind `TimedOut` also where the deadline passed.
    #[error("{0}")]
    Io(OsError),
    /// The server requires a user and a password, and none was configured.
    #[error("the server asks for a user and a password")]
    LoginNeeded,
    /// The server rejects this user or this password.
    #[error("the server does not know this user by this password")]
    LoginRefused,
    /// TLS could not be agreed on, or the server's certificate is not one to be trusted.
    #[error("TLS: {0}")]
    Tls(String),
    /// The server has registered anew in etcd, which this client has not heard of ([`Options::member`]).
    ///
    /// [`Options::member`]: crate::Options::member
    #[error(
        "the server has registered anew in etcd since this client has heard of it; once etcd answers this client, \
         it is used again"
    )]
    AnotherMember,
    /// The host name does not resolve.
    #[error("the name does not resolve: {0}")]
    Name(String),
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> Self {
        // An alert is the peer's refusal. With TLS 1.3 that of a client's certificate comes after
        // the handshake, with a read.
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref());
        match tls {
            Some(reason @ rustls::Error::AlertReceived(_)) => Self::Tls(reason.to_string()),
            _ => Self::Io(error.into()),
        }
    }
}

/// An error of the operating system as a value: an [`io::Error`] cannot be copied or compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OsError {
    kind: io::ErrorKind,
    code: Option<i32>,
}

impl OsError {
    /// The kind of the error.
    #[must_use]
    pub fn kind(self) -> io::ErrorKind {
        self.kind
    }

    /// The error number (`errno`), unless the error is a deadline that passed without a system
    /// call.
    #[must_use]
    pub fn raw_os_error(self) -> Option<i32> {
        self.code
    }

    /// Whether the process or the system lacks memory or descriptors: no fault of the peer's.
    #[must_use]
    pub fn is_shortage(self) -> bool {
        let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS];
        short
            .iter()
            .any(|errno| self.code == Some(errno.raw_os_error()))
    }
}

impl From<io::Error> for OsError {
    fn from(error: io::Error) -> Self {
        Self {
            kind: error.kind(),
            code: error.raw_os_error(),
        }
    }
}

impl From<io::ErrorKind> for OsError {
    fn from(kind: io::ErrorKind) -> Self {
        Self { kind, code: None }
    }
}

impl fmt::Display for OsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => io::Error::from_raw_os_error(code).fmt(f),
            None => self.kind.fmt(f),
        }
    }
}
