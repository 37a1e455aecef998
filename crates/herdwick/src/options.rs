use std::{fmt, sync::Arc, time::Duration};

pub use crate::ways::VerbsOptions;
pub use herdwick_herd::RequestPath;

/// A way in that is faster than memcached's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// Shared memory, on the same host.
    Shm,
    /// An RDMA device, to any host that has one.
    Verbs,
    /// RoCEv2 over UDP, from any host.
    Roce,
}

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a call may take, dialling included; [`Duration::MAX`]: for ever. Looking a host name
    /// up, and opening an RDMA device, are not cut short. Each fabric that is tried has
    /// half of the time that is left, so that one which carries nothing leaves some to the next way.
    pub deadline: Duration,
    /// Values above this many bytes are not taken from a server: the connection ends instead.
    pub value_bytes_max: usize,
    /// Whether to look for a better way than memcached's text.
    pub fabric: bool,
    /// The one fabric to look for; `None`: the best that there is.
    pub only: Option<Fabric>,
    /// How requests are to travel on a fabric; the server has the last word.
    pub request_path: Option<RequestPath>,
    /// Which RDMA device to use; `None`: the one that reaches the server.
    pub verbs: Option<VerbsOptions>,
    /// Requests in flight at each worker, on a fabric: rounded up to a power of two, at most 256;
    /// the server may grant fewer.
    pub window: usize,
    /// Shown to a server that asks for a password (memcached's `-Y`), and to no other.
    pub login: Option<Login>,
}

/// A user and a password. Neither shows when it is printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Login(Arc<[u8]>);

impl Login {
    /// Reads a line `user:password`, as it stands in the server's file; `None`: it is none.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let (user, password) = line.trim_end().split_once(':')?;
        (!user.contains(' ')).then(|| Self(format!("{user} {password}").into_bytes().into()))
    }

    /// `user password`, as memcached's text protocol has it.
    pub(crate) fn token(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login")
    }
}

impl Default for Options {
    /// One second, 128 MiB, the best way there is, 32 requests, and no
    /// password.
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(1),
            value_bytes_max: 128 << 20,
            fabric: true,
            only: None,
            request_path: None,
            verbs: None,
            window: 32,
            login: None,
        }
    }
}

impl Options {
    /// Whether `fabric` may be looked for.
    pub(crate) fn allows(&self, fabric: Fabric) -> bool {
        self.fabric && self.only.is_none_or(|only| only == fabric)
    }
}

impl Fabric {
    /// As on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Verbs => "verbs",
            Self::Roce => "roce",
        }
    }
}
