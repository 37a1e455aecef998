use std::{fmt, str::FromStr};

use herdwick_fabric::Capabilities;

/// How requests reach a worker: the transports that the HERD paper weighs in its section 3, best
/// first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RequestPath {
    /// Written into the worker's memory, unreliably: the HERD paper's.
    #[default]
    UcWrite,
    /// Written into the worker's memory, reliably.
    RcWrite,
    /// Sent as datagrams.
    UdSend,
}

/// There is no such path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no request path: say uc-write, rc-write or ud-send")]
pub struct UnknownPath(String);

impl RequestPath {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::UcWrite, Self::RcWrite, Self::UdSend];

    /// As the hello and the command line name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UcWrite => "uc-write",
            Self::RcWrite => "rc-write",
            Self::UdSend => "ud-send",
        }
    }

    /// Whether a provider has what it takes: the queue pairs, and for written requests the promise
    /// that the last word is seen last.
    #[must_use]
    pub const fn is_possible(self, has: &Capabilities) -> bool {
        match self {
            Self::UcWrite => has.uc && has.ordered_write,
            Self::RcWrite => has.rc && has.ordered_write,
            Self::UdSend => has.ud,
        }
    }

    /// The best one that a provider has what it takes for.
    #[must_use]
    pub fn best(has: &Capabilities) -> Option<Self> {
        Self::ALL.into_iter().find(|path| path.is_possible(has))
    }
}

impl fmt::Display for RequestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RequestPath {
    type Err = UnknownPath;

    fn from_str(name: &str) -> Result<Self, UnknownPath> {
        let path = Self::ALL.into_iter().find(|path| path.name() == name);
        path.ok_or_else(|| UnknownPath(name.to_owned()))
    }
}
