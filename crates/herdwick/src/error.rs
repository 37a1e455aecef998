use std::{fmt, io, time::Duration};

use herdwick_memcache::reply::Malformed;

/// A call failed. The variants are sorted by who is to blame.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller: nothing was sent.
    #[error(transparent)]
    Usage(#[from] Usage),
    /// The caller, says the server: the item is larger than it stores. A `set` that ends so has
    /// removed the old value, as memcached does.
    #[error("the server refuses the item as too large")]
    TooLarge,
    /// The data: `incr` or `decr` on a value that is no decimal number.
    #[error("the value is not a number")]
    NotNumeric,
    /// The server: it answered, and said no. Nothing was stored or counted; a `set` for which it has
    /// no memory may have removed the old value, as memcached does.
    #[error("the server refuses: {0}")]
    Server(String),
    /// No connection to the server, or not again yet. Nothing was done.
    #[error("cannot reach {address}: {reason}")]
    Unreachable {
        /// Where it should be.
        address: String,
        /// Why, when it was last tried.
        reason: DialError,
    },
    /// No answer in time. Nothing was changed.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection was lost, and again when tried again; or the peer's answers make no sense.
    /// Nothing was changed.
    #[error("the connection was lost: {0}")]
    Disconnected(Cause),
    /// A mutation was sent and no answer came: it may have been carried out, or not. It is taken
    /// back where that is possible, but one that is still on its way may be carried out later,
    /// until the server sees that this connection is gone: a read that does not find it proves
    /// nothing. Where that matters use `cas`: a late one fails once a later one was stored.
    #[error("sent, but no answer came ({0}): it may or may not have been carried out")]
    UnknownOutcome(Cause),
}

/// What the caller did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Usage {
    /// A key's length is not 1 to 250 bytes.
    #[error("a key has 1 to 250 bytes, this one has {0}")]
    KeyLength(usize),
    /// A key holds a space or a control character.
    #[error("a key holds no spaces or control characters, this one holds byte {0:#04x}")]
    KeyByte(u8),
    /// The address is neither `host`, `host:port`, `[v6]:port` nor a path.
    #[error("an address is HOST:PORT or the path of a unix socket")]
    Address,
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
    /// The peer closed it, ended the lease, or does not answer over the fabric any more.
    #[error("the server closed the connection")]
    Closed,
    /// The operating system reported an error.
    #[error("{0}")]
    Io(OsError),
    /// The peer does not speak memcached.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// The session belongs to the process that this one was forked from: dial another.
    #[error("the session belongs to the process that this one was forked from")]
    Forked,
    /// A reply that does not belong to the oldest request in flight.
    #[error("the server's reply does not fit the request")]
    Unexpected,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// The operating system's answer; of kind `TimedOut` also when there was none in time.
    #[error("{0}")]
    Io(OsError),
    /// The server asks for a user and a password, and was given none.
    #[error("the server asks for a user and a password")]
    LoginNeeded,
    /// The server does not know this user by this password.
    #[error("the server does not know this user by this password")]
    LoginRefused,
    /// The host name leads nowhere.
    #[error("the name does not resolve: {0}")]
    Name(String),
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> Self {
        Self::Io(error.into())
    }
}

/// What the operating system said, as a value: an [`io::Error`] cannot be copied or compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OsError {
    kind: io::ErrorKind,
    code: Option<i32>,
}

impl OsError {
    /// What it means.
    #[must_use]
    pub fn kind(self) -> io::ErrorKind {
        self.kind
    }

    /// Its number (`errno`), unless it was found without asking the system: that time was over.
    #[must_use]
    pub fn raw_os_error(self) -> Option<i32> {
        self.code
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
