use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use crate::{
    auth::AuthError,
    memory_file::MemoryFileError,
    pin::Pin,
    tls::{Tls, TlsError},
    udp::Udp,
    ways::VerbsOptions,
};
use herdwick_herd::{RequestPath, hello::WORKERS_MAX as LEASE_WORKERS_MAX};
use herdwick_mica::{ITEM_BYTES_MAX, StoreError};

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
    pub patience: Patience,
    /// Which administrative commands clients may give.
    pub offers: Offers,
    /// A file of users and passwords (memcached's `-Y`); `None`: everybody may talk to the server.
    pub auth: Option<PathBuf>,
    /// TLS on the TCP ports (memcached's `-Z`).
    pub tls: Option<Tls>,
    /// memcached over UDP, too (memcached's `-U`); not with `auth` or `tls`, and not for a unix
    /// socket.
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
pub struct Patience {
    /// Without a command for so long (memcached's `idle_timeout`); `None`: never.
    pub idle: Option<Duration>,
    /// In the middle of a command, its first byte so long ago; a second more for each 64 KiB of it
    /// that have come.
    pub request: Duration,
}

impl Default for Patience {
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
    /// 512 clients of this user, by a socket in the directory for temporary files, if it can be had.
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
            patience: Patience::default(),
            offers: Offers::default(),
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
        let if_there = matches!(self.verbs, Verbs::IfThere(_));
        let asked_for = self.fabrics() - usize::from(if_there);
        if asked_for > 0 && workers > LEASE_WORKERS_MAX {
            return Err(StartError::LeaseWorkers { workers });
        }
        if self.connections_max == 0 {
            return Err(StartError::NoConnections);
        }
        if self.udp.is_some() && (self.auth.is_some() || self.tls.is_some()) {
            return Err(StartError::UdpInTheOpen);
        }
        Ok(workers)
    }
}

/// Whether an RDMA device is a way in.
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

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Too few or too many workers.
    #[error("{workers} workers: give between 1 and {WORKERS_MAX} (-t)")]
    Workers {
        /// How many were asked for.
        workers: usize,
    },
    /// A lease cannot name so many workers.
    #[error(
        "{workers} workers: shared memory and RDMA are for at most {LEASE_WORKERS_MAX} (-t); \
         do without them (--shm off --roce off --verbs off) for more"
    )]
    LeaseWorkers {
        /// How many were asked for.
        workers: usize,
    },
    /// Fewer CPUs than workers to stay on them.
    #[error(
        "{workers} workers cannot stay on {cpus} CPUs (--pin); give fewer workers (-t), more CPUs, \
         or leave --pin out"
    )]
    Pinned {
        /// How many CPUs there are.
        cpus: usize,
        /// How many workers were asked for.
        workers: usize,
    },
    /// A CPU that is not there, or not for this process.
    #[error("CPU {cpu} (--pin) is not one that this process may use; `taskset -cp $$` lists those")]
    PinnedTo {
        /// Its number.
        cpu: usize,
    },
    /// Nobody could connect.
    #[error("a server needs at least one connection (-c)")]
    NoConnections,
    /// Datagrams carry no password and no session.
    #[error(
        "over UDP (-U) nobody authenticates and nothing is encrypted: leave it out, or -Y and -Z"
    )]
    UdpInTheOpen,
    /// A host without an address.
    #[error("there is no address to listen on; give one (-l)")]
    NoAddress,
    /// Another process listens there.
    #[error(
        "{address} is in use by another process; give another port (-p), or find it with: \
         ss -ltnp 'sport = :{}'", address.port().unwrap_or(0)
    )]
    InUse {
        /// The address.
        address: Address,
    },
    /// The operating system does not let us listen there.
    #[error("cannot listen on {address}: {source}; {}", elsewhere(address, source))]
    Listen {
        /// The address.
        address: Address,
        /// Its answer.
        source: io::Error,
    },
    /// The same for datagrams.
    #[error("cannot take datagrams on {address}: {source}; give another port (-U)")]
    ListenUdp {
        /// The address.
        address: SocketAddr,
        /// Its answer.
        source: io::Error,
    },
    /// There is no place for the metrics.
    #[error(
        "cannot serve metrics on {address}: {source}; give another address or port (--metrics)"
    )]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// Its answer.
        source: io::Error,
    },
    /// RoCEv2 cannot be taken there.
    #[error(
        "cannot take RoCEv2 on UDP {address}: {source}; give another address (--roce ADDR:PORT), \
         or do without it (--roce off)"
    )]
    Roce {
        /// Where it was tried.
        address: SocketAddr,
        /// The operating system's answer.
        source: io::Error,
    },
    /// No RDMA device can be used.
    #[error("cannot use an RDMA device: {0}; or do without one (--verbs off)")]
    Verbs(String),
    /// There is no place for the lease socket.
    #[error(
        "cannot make a lease socket below {directory}: {source}; give another directory \
         (--shm-dir), or do without shared memory (--shm off)"
    )]
    Leases {
        /// Where it was tried.
        directory: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The system shares no memory.
    #[error(
        "cannot share memory with clients: {0}; `herdwick doctor` says what is missing, or do \
         without shared memory (--shm off)"
    )]
    SharedMemory(io::Error),
    /// The users cannot be read.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The memory is too little for the largest items.
    #[error(
        "-m {given} is too little for {workers} workers and items of up to {item_bytes_max} bytes; \
         give at least -m {needed}, or fewer workers (-t), or smaller items (-I)"
    )]
    Memory {
        /// What was given, in MiB.
        given: usize,
        /// What would do, in MiB.
        needed: usize,
        /// How many the memory is split over.
        workers: usize,
        /// The largest item.
        item_bytes_max: usize,
    },
    /// The items cannot be kept in a file.
    #[error(transparent)]
    MemoryFile(#[from] MemoryFileError),
    /// A partition could not be made.
    #[error("{0}; give less memory (-m)")]
    Store(StoreError),
    /// Threads, polls or randomness were refused.
    #[error("the operating system refused {what}: {source}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        source: io::Error,
    },
}

/// What to give instead of an address that the operating system refuses.
fn elsewhere(address: &Address, source: &io::Error) -> &'static str {
    match (address, source.kind()) {
        (Address::Unix(_), _) => "give a path in a directory that this user may write to (-s)",
        (Address::Tcp(_), io::ErrorKind::AddrNotAvailable) => {
            "give an address of this host (-l); `ip addr` lists them"
        }
        (Address::Tcp(_), io::ErrorKind::PermissionDenied) => {
            "ports below 1024 take privileges, give another (-p)"
        }
        (Address::Tcp(_), _) => "give another address (-l) or port (-p)",
    }
}
