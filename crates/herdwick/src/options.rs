//! Options of a client.

use std::{fmt, sync::Arc, time::Duration};

use crate::Tls;
pub use herdwick_clover::Secret;
pub use herdwick_herd::{RequestPath, hello::StoreId};
pub use herdwick_providers::{DialOptions, Fabric};

/// Options of a client or a session.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a call may take, dialling included; [`Duration::MAX`]: for ever. Looking a host
    /// name up, and opening an RDMA device, are not cut short. Each fabric that is tried has half
    /// of the time that is left, so that one which carries nothing leaves some to the next
    /// transport.
    pub deadline: Duration,
    /// Largest value in bytes that is accepted from a server; a larger one ends the connection.
    pub value_bytes_max: usize,
    /// Whether to try faster transports than memcached's text protocol.
    pub fabric: bool,
    /// The only fabric to try; `None`: the best one available.
    pub only: Option<Fabric>,
    /// The preferred request path on a fabric; the server decides.
    pub request_path: Option<RequestPath>,
    /// Which devices to use, where a fabric has several.
    pub dial: DialOptions,
    /// Requests in flight at each worker over a fabric: rounded up to a power of two, at most 256;
    /// the server may grant fewer.
    pub window: usize,
    /// Whether reads look in the server's memory first, where the server grants that.
    pub one_sided: OneSidedReads,
    /// Sent to a server that requires a password (memcached's `-Y`), and to no other.
    pub login: Option<Login>,
    /// TLS on the connection; `None`: in plain text. With it no fabric is used that leaves the
    /// host, for none is encrypted.
    pub tls: Option<Tls>,
    /// Proved to a secondary store, of which only the server that it is a part of may write
    /// (`docs/hkvs.md`). With it no other server is used over a fabric.
    pub secret: Option<Secret>,
    /// Shown to a secondary store, so that this client may read there, if there is no secret. Likewise.
    pub store: Option<StoreId>,
    /// Where keys are read that the server has replicated to a secondary store.
    pub read_from: ReadFrom,
    /// The registration of the server in etcd that was seen last, the lease of its key: a server that has registered
    /// anew since, and invalidated its items, refuses the session (docs/cluster.md). A cluster in etcd sets it.
    pub member: Option<u64>,
}

/// Where keys are read that a server has replicated to a secondary store (`docs/hkvs.md`). Reads of other keys,
/// and all writes, go to the server; so do reads that the secondary store does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadFrom {
    /// From the server: strict consistency.
    #[default]
    Primary,
    /// From the secondary store while more of this session's requests are in flight at the server.
    Extended,
    /// This percentage of the keys from the secondary store, the others from the server.
    Interleaved(u8),
    /// From the secondary store.
    Secondary,
}

/// Whether a client on the server's host reads items in the server's memory itself (`herdwick serve
/// --one-sided-reads`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OneSidedReads {
    /// Where that is faster.
    #[default]
    Auto,
    /// Wherever it may. What it cannot judge there it requests from the server.
    Always,
    /// Never: each read is a request.
    Never,
}

/// A user and a password. `Debug` prints neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Login(Arc<[u8]>);

impl Login {
    /// Parses a line `user:password`, as in the server's file; `None` if it is malformed, or if there
    /// are several lines. The end of the line is not part of the password, and blanks before it are.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let line = line.trim_end_matches(['\r', '\n']);
        if line.contains(['\r', '\n']) {
            return None;
        }
        let (user, password) = line.split_once(':')?;
        // The token separates the two by its first space.
        (!user.contains(' ')).then(|| Self(format!("{user} {password}").into_bytes().into()))
    }

    /// Returns `user password`, the form of memcached's text protocol.
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
    /// One second, 128 MiB, the best transport available, 32 requests, no password, and no TLS.
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(1),
            value_bytes_max: 128 << 20,
            fabric: true,
            only: None,
            request_path: None,
            dial: DialOptions::default(),
            window: 32,
            one_sided: OneSidedReads::Auto,
            login: None,
            tls: None,
            secret: None,
            store: None,
            read_from: ReadFrom::default(),
            member: None,
        }
    }
}

impl Options {
    /// Whether `fabric` may be tried.
    pub(crate) fn allows(&self, fabric: Fabric) -> bool {
        let is_private = self.tls.is_none() || fabric.is_local();
        self.fabric && is_private && self.only.is_none_or(|only| only == fabric)
    }
}
