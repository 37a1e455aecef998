use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

pub use crate::error::StartError;
use crate::{pin::Pin, tls::Tls, transports::VerbsOptions, udp::Udp};
use herdwick_herd::{RequestPath, hello::WORKERS_MAX as LEASE_WORKERS_MAX};
use herdwick_memcache::binary::REQUEST;
use herdwick_mica::ITEM_BYTES_MAX;

/// memcached's port.
pub const PORT: u16 = 11211;
/// Most workers by default: more must be asked for.
const WORKERS_DEFAULT_MAX: usize = 4;
/// Most workers at all.
pub const WORKERS_MAX: usize = 256;

/// How a server is to be.
#[derive(Clone)]
pub struct Config {
    /// Where to listen.
    pub listen: Listen,
    /// Memory for items, split evenly over the workers.
    pub memory_bytes: usize,
    /// Most connections at a time.
    pub connections_max: usize,
    /// Workers; `None`: as many as there are allowed CPUs, up to 4.
    pub workers: Option<usize>,
    /// Largest item: key, value and header.
    pub item_bytes_max: usize,
    /// How long, at least, a worker looks for work after the last request before it sleeps.
    pub spin: Duration,
    /// Which CPUs the workers stay on.
    pub pin: Pin,
    /// memcached's `-v`, shown by `stats settings`.
    pub verbosity: u8,
    /// Whether, and where, clients on this host get shared memory.
    pub leases: Option<Leases>,
    /// Where RoCEv2 is taken, over UDP; `None`: it is not. Port 0 takes a free one.
    pub roce: Option<SocketAddr>,
    /// Whether an RDMA device is used.
    pub verbs: Verbs,
    /// Whether packets of RoCEv2 have to be under keys, which the lease's connection carries.
    pub roce_keyed: bool,
    /// Where what RoCEv2 sends and takes is written to, for Wireshark to read.
    pub roce_capture: Option<PathBuf>,
    /// How every lease has its requests travel; `None`: as its client asks, else as suits the
    /// fabric.
    pub request_path: Option<RequestPath>,
    /// Connections that wait to be accepted (memcached's `-b`).
    pub backlog: u32,
    /// Beyond `connections_max`: whether a connection is told so and closed (memcached's
    /// `maxconns_fast`), or waits unaccepted.
    pub refuse_at_once: bool,
    /// Most requests of one connection before others have their turn (memcached's `-R`), rounded
    /// up to whole batches of 128.
    pub turn_requests: usize,
    /// When a connection that stalls is given up.
    pub timeout: Timeouts,
    /// Which administrative commands clients may give.
    pub offers: Offers,
    /// The protocols that connections may speak (memcached's `-B`).
    pub protocol: Protocol,
    /// A file of users and passwords (memcached's `-Y`); `None`: everybody may talk to the server.
    pub auth: Option<PathBuf>,
    /// TLS on the TCP ports (memcached's `-Z`).
    pub tls: Option<Tls>,
    /// memcached over UDP, too (memcached's `-U`), not encrypted even with `tls`; not with `auth`,
    /// and not for a unix socket.
    pub udp: Option<Udp>,
    /// How many of the keys asked for most to show, at most 64; 0: not to look for them.
    pub hot_keys: usize,
    /// Where to serve metrics over HTTP; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// Whether the metrics show the ten hottest keys, each as a series of its own, to whoever reads
    /// them.
    pub metrics_hot_keys: bool,
    /// Evict nothing, and refuse what there is no room for (memcached's `-M`).
    pub lossless: bool,
    /// A file that items are kept in, to outlive the server (memcached's `-e`).
    pub memory_file: Option<PathBuf>,
    /// What the command `shutdown` does (memcached's `-A`); `None`: it is refused.
    pub shutdown: Option<ShutdownHook>,
}

/// Ends the process that a server runs in.
#[derive(Clone)]
pub struct ShutdownHook(Arc<dyn Fn() + Send + Sync>);

impl ShutdownHook {
    /// `end` is called by a worker, and must not wait.
    pub fn new(end: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(end))
    }

    pub(crate) fn pull(&self) {
        (self.0)();
    }
}

impl fmt::Debug for ShutdownHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShutdownHook")
    }
}

/// When a connection that stalls is given up. Whole seconds count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Without a command for so long (memcached's `idle_timeout`); `None`: never.
    pub idle: Option<Duration>,
    /// In the middle of a command, its first byte so long ago; a second more for each 64 KiB of it
    /// that have come.
    pub request: Duration,
}

impl Default for Timeouts {
    /// Idle for ever, as memcached; half a minute in the middle of a command.
    fn default() -> Self {
        Self {
            idle: None,
            request: Duration::from_secs(30),
        }
    }
}

/// Which administrative commands clients may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    /// `flush_all` (not with memcached's `-F`).
    pub flush: bool,
    /// Commands that show keys: `stats cachedump`, `stats detail`, `lru_crawler metadump` (not
    /// with memcached's `-X`).
    pub dump: bool,
    /// `watch` (not with memcached's `-W`).
    pub watch: bool,
    /// `debugtime`, as in memcached's debug build: for tests.
    pub debug: bool,
}

impl Default for Offers {
    fn default() -> Self {
        Self {
            flush: true,
            dump: true,
            watch: true,
            debug: false,
        }
    }
}

/// The protocols that connections may speak (memcached's `-B`). The first byte of a connection
/// tells which it speaks; one that speaks another is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Text and binary.
    #[default]
    Any,
    /// Text, classic and meta; Herdwick's clients begin with text too.
    Text,
    /// The binary protocol only.
    Binary,
}

impl Protocol {
    /// Whether a connection may begin with this byte.
    pub(crate) fn may_begin_with(self, byte: u8) -> bool {
        match self {
            Self::Any => true,
            Self::Text => byte != REQUEST,
            Self::Binary => byte == REQUEST,
        }
    }

    /// Its name in `stats settings`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Any => "auto-negotiate",
            Self::Text => "ascii",
            Self::Binary => "binary",
        }
    }
}

/// Leases: shared memory for clients on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases {
    /// Below this, the server makes a private directory for the lease socket.
    pub directory: PathBuf,
    /// Mode of the socket and its directory, where it is not to be 0700.
    pub mode: Option<u32>,
    /// Most clients with a lease at a time.
    pub clients_max: usize,
    /// Whether the server does not start where it cannot be had; else it goes on without, and says
    /// so ([`crate::Server::left_out`]).
    pub needed: bool,
}

impl Default for Leases {
    /// 512 clients of this user, by a socket in the directory for temporary files, if it can be
    /// had.
    fn default() -> Self {
        Self {
            directory: std::env::temp_dir(),
            mode: None,
            clients_max: 512,
            needed: false,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Listen::Tcp(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)).into()]),
            memory_bytes: 64 << 20,
            connections_max: 1024,
            workers: None,
            item_bytes_max: ITEM_BYTES_MAX,
            spin: Duration::from_micros(20),
            pin: Pin::Off,
            verbosity: 0,
            leases: Some(Leases::default()),
            roce: None,
            verbs: Verbs::Off,
            roce_keyed: false,
            roce_capture: None,
            request_path: None,
            backlog: 1024,
            refuse_at_once: true,
            turn_requests: 512,
            timeout: Timeouts::default(),
            offers: Offers::default(),
            protocol: Protocol::Any,
            auth: None,
            tls: None,
            udp: None,
            hot_keys: 16,
            metrics: None,
            metrics_hot_keys: false,
            lossless: false,
            memory_file: None,
            shutdown: None,
        }
    }
}

impl Config {
    /// A server on a free port of the loopback interface: for tests and examples.
    #[must_use]
    pub fn local() -> Self {
        Self {
            listen: Listen::Tcp(vec![
                SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0).into(),
            ]),
            ..Self::default()
        }
    }

    /// How many fabrics it may offer.
    pub(crate) fn fabrics(&self) -> usize {
        usize::from(self.leases.is_some())
            + usize::from(self.roce.is_some())
            + usize::from(!matches!(self.verbs, Verbs::Off))
    }

    /// Checks what can be checked without the operating system, and settles the number of workers.
    pub(crate) fn settle(&self, cpus: usize) -> Result<usize, StartError> {
        let workers = self
            .workers
            .unwrap_or_else(|| cpus.clamp(1, WORKERS_DEFAULT_MAX));
        if !(1..=WORKERS_MAX).contains(&workers) {
            return Err(StartError::Workers { workers });
        }
        let shm = self.leases.as_ref().is_some_and(|leases| leases.needed);
        let verbs = matches!(self.verbs, Verbs::Needed(_));
        if workers > LEASE_WORKERS_MAX && (shm || verbs || self.roce.is_some()) {
            return Err(StartError::LeaseWorkers { workers });
        }
        if self.connections_max == 0 {
            return Err(StartError::NoConnections);
        }
        if self.udp.is_some() && self.auth.is_some() {
            return Err(StartError::UdpWithUsers);
        }
        if self.protocol == Protocol::Binary && self.auth.is_some() {
            return Err(StartError::BinaryWithUsers);
        }
        Ok(workers)
    }
}

/// Whether an RDMA device is a transport.
#[derive(Clone, Debug, Default)]
pub enum Verbs {
    /// It is not.
    #[default]
    Off,
    /// It is, if there is one that can be used; the server starts either way.
    IfThere(VerbsOptions),
    /// It is, and the server does not start without.
    Needed(VerbsOptions),
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// On these.
    Tcp(Vec<Interface>),
    /// On a unix socket only.
    Unix {
        /// Its path. A socket that nobody listens on any more is replaced.
        path: PathBuf,
        /// Its mode (memcached's `-a`).
        mode: u32,
    },
}

/// A host, or all, to listen on by TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its addresses; one of them, at least, has to be free. Port 0 takes a free one.
    pub addresses: Vec<SocketAddr>,
    /// Without TLS, even if the server speaks it (memcached's `notls:`).
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

/// Where a server can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Over TCP.
    Tcp(SocketAddr),
    /// Over a unix socket.
    Unix(PathBuf),
}

impl Address {
    /// The TCP port.
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
