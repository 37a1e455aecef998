//! How requests reach a worker, and which of them must be announced by an immediate; chosen from a
//! provider's capabilities.

use std::{fmt, str::FromStr, time::Duration};

use herdwick_fabric::Capabilities;

/// How requests reach a worker: the verbs that section 3 of the HERD paper compares, best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RequestPath {
    /// WRITEs into the worker's memory over an unreliable connection, as in the HERD paper.
    #[default]
    UcWrite,
    /// WRITEs into the worker's memory over a reliable connection.
    RcWrite,
    /// SENDs of datagrams.
    UdSend,
}

/// A name that is no request path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no request path: give uc-write, rc-write or ud-send")]
pub struct UnknownPath(String);

impl RequestPath {
    /// All request paths, best first.
    pub const ALL: [Self; 3] = [Self::UcWrite, Self::RcWrite, Self::UdSend];

    /// The name in the hello and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UcWrite => "uc-write",
            Self::RcWrite => "rc-write",
            Self::UdSend => "ud-send",
        }
    }

    /// Whether a provider has the queue pairs for this path.
    #[must_use]
    pub const fn is_possible(self, has: &Capabilities) -> bool {
        match self {
            Self::UcWrite => has.uc,
            Self::RcWrite => has.rc,
            Self::UdSend => has.ud,
        }
    }

    /// Returns the best path that a provider supports. Where every WRITE would have to be
    /// announced, a SEND does the same with less.
    #[must_use]
    pub fn best(has: &Capabilities) -> Option<Self> {
        let has_to_be_announced = |path| Announce::on(path, has) == Announce::Always;
        let mut possible = Self::ALL.into_iter().filter(|path| path.is_possible(has));
        let first = possible.clone().next();
        // Without UD there is only the WRITE that is announced.
        possible.find(|path| !has_to_be_announced(*path)).or(first)
    }
}

/// Which of a client's WRITEs carry an immediate, and so complete at the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Announce {
    /// None: the worker sees WRITEs in its memory, and one wakes it.
    #[default]
    Never,
    /// The first one after a pause in which the worker may have gone to sleep, and retries: a plain
    /// WRITE does not wake it.
    AfterPause,
    /// Every one: only the completion guarantees that a WRITE is whole.
    Always,
}

/// Time without a request to a worker after which a client announces its next one.
pub(crate) const PAUSE: Duration = Duration::from_micros(10);

impl Announce {
    /// Returns [`Announce::on`] for a worker that sleeps no sooner than `spin` after its last
    /// request. A worker that may sleep before a client notices its own pause needs an announcement
    /// of every request; one that never sleeps needs none, and is spared a RECV and a completion each.
    #[must_use]
    pub fn for_spin(path: RequestPath, has: &Capabilities, spin: Duration) -> Self {
        match Self::on(path, has) {
            Self::AfterPause if spin == Duration::MAX => Self::Never,
            Self::AfterPause if spin < 2 * PAUSE => Self::Always,
            announce => announce,
        }
    }

    /// Returns what a worker on a provider with `has` needs of requests that arrive by `path`.
    #[must_use]
    pub const fn on(path: RequestPath, has: &Capabilities) -> Self {
        match path {
            RequestPath::UdSend => Self::Never,
            RequestPath::UcWrite | RequestPath::RcWrite if !has.ordered_write => Self::Always,
            RequestPath::UcWrite | RequestPath::RcWrite if has.wakes_on_write => Self::Never,
            RequestPath::UcWrite | RequestPath::RcWrite => Self::AfterPause,
        }
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
