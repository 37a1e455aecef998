use std::{fmt, str::FromStr, time::Duration};

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

    /// Whether a provider has the queue pairs for it.
    #[must_use]
    pub const fn is_possible(self, has: &Capabilities) -> bool {
        match self {
            Self::UcWrite => has.uc,
            Self::RcWrite => has.rc,
            Self::UdSend => has.ud,
        }
    }

    /// The best one that a provider has what it takes for. Where WRITEs would have to be announced
    /// one by one, a SEND does the same with less.
    #[must_use]
    pub fn best(has: &Capabilities) -> Option<Self> {
        let has_to_be_announced = |path| Announce::on(path, has) == Announce::Always;
        let mut possible = Self::ALL.into_iter().filter(|path| path.is_possible(has));
        let first = possible.clone().next();
        possible.find(|path| !has_to_be_announced(*path)).or(first)
    }
}

/// Which of a client's WRITEs carry an immediate, and so complete at the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Announce {
    /// None: the worker sees them in its memory, awake or asleep.
    #[default]
    Never,
    /// The first after a pause in which the worker may have gone to sleep, and retries: a WRITE
    /// alone does not wake it.
    AfterPause,
    /// Every one: nothing but its completion promises that a WRITE is whole.
    Always,
}

/// After so long without a request to a worker, a client announces its next one.
pub(crate) const PAUSE: Duration = Duration::from_micros(10);

impl Announce {
    /// [`Announce::on`] for a worker that goes to sleep no sooner than `spin` after its last request.
    /// One that may be asleep before a client takes its own silence for a pause hears of every
    /// request.
    #[must_use]
    pub fn for_spin(path: RequestPath, has: &Capabilities, spin: Duration) -> Self {
        match Self::on(path, has) {
            Self::AfterPause if spin < 2 * PAUSE => Self::Always,
            announce => announce,
        }
    }

    /// What a worker with `has` needs of requests that come by `path`.
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
