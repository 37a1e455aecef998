//! The server's configuration ([`Config`]), its defaults, and the checks that need no operating
//! system.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use super::{
    WORKERS_MAX, error::StartError, latency::Latency, listen_address::Listen, offload::Offload,
    pin::Pin, tls::Tls, udp::Udp,
};
use herdwick_clover::Secret;
use herdwick_herd::{RequestPath, hello::WORKERS_MAX as LEASE_WORKERS_MAX};
use herdwick_memcache::binary::REQUEST;
use herdwick_providers::{Fabric, ListenOptions, Wanted};
use herdwick_request::ITEM_BYTES_MAX;
use herdwick_slab::Growth;

/// memcached's port.
pub const PORT: u16 = 11211;
/// Default limit on workers; more have to be configured.
const WORKERS_DEFAULT_MAX: usize = 4;

/// The configuration of a server.
#[derive(Clone)]
pub struct Config {
    /// What stores the data.
    pub engine: Engine,
    /// How the chunks of [`Engine::Slab`] grow from class to class.
    pub growth: Growth,
    /// Of the engine Clover: only the client that knows this secret may store, the others may only read
    /// (docs/hkvs.md); `None`: all may.
    pub secondary: Option<Secret>,
    /// Where to listen.
    pub listen: Listen,
    /// Memory for items, their index and leases; that for items is split evenly over the workers.
    pub memory_bytes: usize,
    /// Largest number of connections at a time.
    pub connections_max: usize,
    /// Number of workers; `None`: one per allowed CPU, at most 4.
    pub workers: Option<usize>,
    /// Largest item in bytes: key, value and header.
    pub item_bytes_max: usize,
    /// Shortest time that a worker polls after its last request before it sleeps.
    pub spin: Duration,
    /// The CPUs that workers are pinned to.
    pub pin: Pin,
    /// memcached's `-v`, shown by `stats settings`.
    pub verbosity: u8,
    /// Shared memory for clients on this host; `None`: not offered.
    pub leases: Option<Leases>,
    /// Which clients on this host read items in the server's memory themselves; not with `memory_file`.
    pub one_sided_reads: OneSidedReads,
    /// The other fabrics.
    pub fabrics: ListenOptions,
    /// The request path of every lease; `None`: the client's choice, or the fabric's default.
    pub request_path: Option<RequestPath>,
    /// The listen backlog (memcached's `-b`); the kernel takes a negative one as the largest.
    pub backlog: i32,
    /// Beyond `connections_max`: `true` refuses a connection with an error line and closes it
    /// (memcached's `maxconns_fast`), `false` leaves it in the backlog.
    pub refuse_at_once: bool,
    /// Requests executed for one connection before the worker serves the next (memcached's `-R`),
    /// rounded up to whole batches of 128.
    pub turn_requests: usize,
    /// Timeouts for connections that stall.
    pub timeout: Timeouts,
    /// The administrative commands that clients may use.
    pub offers: Offers,
    /// The protocols that connections may speak (memcached's `-B`).
    pub protocol: Protocol,
    /// A file of users and passwords for the text protocol (memcached's `-Y`); `None`: no
    /// authentication there.
    pub auth: Option<PathBuf>,
    /// The users of SASL (memcached's `-S`), which takes the binary protocol alone; `None`: no SASL.
    /// Excludes `auth`.
    pub sasl: Option<SaslUsers>,
    /// TLS on the TCP ports (memcached's `-Z`).
    pub tls: Option<Tls>,
    /// memcached over UDP (memcached's `-U`), unencrypted even with `tls`. Excludes `auth` and
    /// `sasl`; ignored for a unix socket.
    pub udp: Option<Udp>,
    /// What is measured of how long requests take.
    pub latency: Latency,
    /// How many of the most requested keys to report, at most 64; 0: hot keys are not tracked.
    pub hot_keys: usize,
    /// The HTTP address for metrics; `None`: not served.
    pub metrics: Option<SocketAddr>,
    /// Whether metrics contain the ten hottest keys, one series each. Every reader of the metrics
    /// sees these keys.
    pub metrics_hot_keys: bool,
    /// Store without eviction: a store without room fails (memcached's `-M`).
    pub lossless: bool,
    /// A file that keeps the items across restarts (memcached's `-e`).
    pub memory_file: Option<PathBuf>,
    /// The crawler that removes expired items on request (memcached's `lru_crawler`).
    pub crawler: CrawlerConfig,
    /// The action of the command `shutdown` (memcached's `-A`); `None`: the command is refused.
    pub shutdown: Option<ShutdownHook>,
    /// The secondary store that popular keys are replicated to; `None`: there is none.
    pub offload: Option<Offload>,
}

/// The crawler that removes expired items on request (memcached's `lru_crawler`). The commands
/// `lru_crawler enable`, `disable`, `sleep` and `tocrawl` change it while the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrawlerConfig {
    /// Whether crawls and dumps of keys may be started.
    pub enabled: bool,
    /// A worker's pause after each 1,000 items that it checks; at most a second.
    pub sleep: Duration,
    /// Most items that a crawl checks; 0: all.
    pub items_max: u32,
}

impl Default for CrawlerConfig {
    /// memcached's.
    fn default() -> Self {
        Self {
            enabled: true,
            sleep: Duration::from_micros(100),
            items_max: 0,
        }
    }
}

/// A file of users and passwords for SASL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaslUsers {
    /// Lines `user:password`, as in the file of memcached's `-Y`.
    AuthFile(PathBuf),
    /// Lines `user[@realm]:password[:...]`, as in the file that MEMCACHED_SASL_PWDB names. A user
    /// whose realm is the name of this host may also leave it out.
    Pwdb(PathBuf),
}

/// Ends the process that a server runs in.
#[derive(Clone)]
pub struct ShutdownHook(Arc<dyn Fn() + Send + Sync>);

impl ShutdownHook {
    /// Wraps `end`. A worker calls it, so it must not block.
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

/// Timeouts for connections that stall, in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Longest time without a command (memcached's `idle_timeout`); `None`: unlimited.
    pub idle: Option<Duration>,
    /// Longest time from the first byte of a command to its last, plus one second for each 64 KiB
    /// received of it.
    pub request: Duration,
}

impl Default for Timeouts {
    /// No idle timeout, as in memcached; 30 seconds for a command.
    fn default() -> Self {
        Self {
            idle: None,
            request: Duration::from_secs(30),
        }
    }
}

/// The administrative commands that clients may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    /// `flush_all` (not with memcached's `-F`).
    pub flush: bool,
    /// Commands that show keys: `stats cachedump`, `stats detail`, `lru_crawler metadump` (not
    /// with memcached's `-X`).
    pub dump: bool,
    /// `watch` (not with memcached's `-W`).
    pub watch: bool,
    /// `debugtime`, as in memcached's debug build, for tests.
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
/// selects its protocol; a connection that selects another one is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Text and binary.
    #[default]
    Any,
    /// Text, classic and meta. Herdwick clients begin with text too.
    Text,
    /// The binary protocol only.
    Binary,
}

impl Protocol {
    /// Returns whether a connection may begin with this byte.
    pub(crate) fn may_begin_with(self, byte: u8) -> bool {
        match self {
            Self::Any => true,
            Self::Text => byte != REQUEST,
            Self::Binary => byte == REQUEST,
        }
    }

    /// Returns the name in `stats settings`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Any => "auto-negotiate",
            Self::Text => "ascii",
            Self::Binary => "binary",
        }
    }
}

/// What stores the data, and how clients reach it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// A cache in partitions, each with a worker: over memcached's protocols, and by HERD.
    #[default]
    Herd,
    /// The same, with a store in slabs, as in memcached.
    Slab,
    /// Clover's data node and metadata server, for Herdwick clients over one fabric.
    Clover,
}

impl Engine {
    /// Returns the name in hellos; `None`: clients use HERD, which they do not name.
    pub(crate) fn word(self, is_secondary: bool) -> Option<&'static str> {
        match self {
            Self::Herd | Self::Slab => None,
            Self::Clover if is_secondary => Some("secondary"),
            Self::Clover => Some("clover"),
        }
    }

    /// Returns whether each worker has a partition, which memcached's protocols and HERD reach.
    pub(crate) fn has_partitions(self) -> bool {
        match self {
            Self::Herd | Self::Slab => true,
            Self::Clover => false,
        }
    }
}

/// Which clients get the memory of the stores to read, beside their lease: with it they read all items, and
/// what is left of those that are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OneSidedReads {
    /// None. The memory is private.
    #[default]
    Off,
    /// Those of the server's user, and root.
    Owner,
    /// Each that gets a lease of shared memory.
    All,
}

impl OneSidedReads {
    /// Returns the name, as in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Owner => "owner",
            Self::All => "all",
        }
    }
}

/// Leases: shared memory for clients on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases {
    /// The server creates a private directory for the lease socket below this one.
    pub directory: PathBuf,
    /// Mode of the socket and its directory; `None`: 0700.
    pub mode: Option<u32>,
    /// Largest number of leases at a time.
    pub clients_max: usize,
    /// `true`: the server does not start without the lease socket. `false`: it starts without
    /// shared memory and reports why ([`crate::Server::left_out`]).
    pub needed: bool,
}

impl Default for Leases {
    /// Optional: 512 clients of this user, by a socket below the directory for temporary files.
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
            engine: Engine::default(),
            growth: Growth::default(),
            secondary: None,
            listen: Listen::Tcp(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)).into()]),
            memory_bytes: 64 << 20,
            connections_max: 1024,
            workers: None,
            item_bytes_max: ITEM_BYTES_MAX,
            spin: Duration::from_micros(20),
            pin: Pin::Off,
            verbosity: 0,
            leases: Some(Leases::default()),
            one_sided_reads: OneSidedReads::default(),
            fabrics: ListenOptions::default(),
            request_path: None,
            backlog: 1024,
            refuse_at_once: true,
            turn_requests: 512,
            timeout: Timeouts::default(),
            offers: Offers::default(),
            protocol: Protocol::Any,
            auth: None,
            sasl: None,
            tls: None,
            udp: None,
            latency: Latency::default(),
            hot_keys: 16,
            metrics: None,
            metrics_hot_keys: false,
            lossless: false,
            memory_file: None,
            crawler: CrawlerConfig::default(),
            shutdown: None,
            offload: None,
        }
    }
}

/// Refuses the first that is asked of what the engine has not.
fn refuse_asked(engine: &'static str, has_not: &[(bool, &'static str)]) -> Result<(), StartError> {
    match has_not.iter().find(|(asked, _)| *asked) {
        Some(&(_, what)) => Err(StartError::EngineWithout { engine, what }),
        None => Ok(()),
    }
}

impl Config {
    /// A server on a free port of the loopback interface, for tests and examples.
    #[must_use]
    pub fn local() -> Self {
        Self {
            listen: Listen::Tcp(vec![
                SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0).into(),
            ]),
            ..Self::default()
        }
    }

    /// Returns how many fabrics the configuration may offer.
    pub(crate) fn fabrics(&self) -> usize {
        let others = [Wanted::IfThere, Wanted::Needed];
        let others = others.map(|wanted| self.fabrics.all(wanted).count());
        usize::from(self.leases.is_some()) + others.iter().sum::<usize>()
    }

    /// Returns how many ports are opened on each device by `workers` workers.
    pub(crate) fn ports(&self, workers: usize) -> usize {
        match self.engine {
            Engine::Herd | Engine::Slab => workers,
            // The data node's, and the metadata server's.
            Engine::Clover => 2,
        }
    }

    /// Checks everything that needs no operating system. Returns the number of workers.
    pub(crate) fn settle(&self, cpus: usize) -> Result<usize, StartError> {
        let workers = self
            .workers
            .unwrap_or_else(|| cpus.clamp(1, WORKERS_DEFAULT_MAX));
        if !(1..=WORKERS_MAX).contains(&workers) {
            return Err(StartError::Workers { workers });
        }
        let leases = self.leases.as_ref().is_some_and(|leases| leases.needed);
        let fabrics = self.fabrics.all(Wanted::Needed).count() > 0;
        if workers > LEASE_WORKERS_MAX && (leases || fabrics) {
            return Err(StartError::LeaseWorkers { workers });
        }
        if self.connections_max == 0 {
            return Err(StartError::NoConnections);
        }
        self.settle_users()?;
        self.settle_readers()?;
        self.settle_engine(workers)
    }

    /// Checks that the stores can be published, and that there are leases for their readers.
    fn settle_readers(&self) -> Result<(), StartError> {
        let is_off = self.one_sided_reads == OneSidedReads::Off;
        let other = match self.engine {
            _ if is_off => return Ok(()),
            Engine::Clover => Some("the engine clover (--engine)"),
            _ if self.memory_file.is_some() => Some("a memory file (-e)"),
            // Those whose clients map memory are on where there are leases.
            _ if self.leases.is_none() => Fabric::local().map(Fabric::off).next(),
            Engine::Herd | Engine::Slab => None,
        };
        other.map_or(Ok(()), |other| Err(StartError::OneSided { other }))
    }

    /// Checks that the engine has what is configured. Returns the number of workers.
    fn settle_engine(&self, workers: usize) -> Result<usize, StartError> {
        let engine = match self.engine {
            Engine::Herd => return self.settle_offload().map(|()| workers),
            Engine::Slab => {
                self.settle_offload()?;
                let has_not = [
                    (self.memory_file.is_some(), "a memory file (-e)"),
                    (self.offload.is_some(), "a secondary store (--offload)"),
                ];
                return refuse_asked("slab", &has_not).map(|()| workers);
            }
            Engine::Clover => "clover",
        };
        let has_not = [
            (
                self.workers.is_some_and(|asked| asked > 1),
                "more than one worker (-t)",
            ),
            (self.memory_file.is_some(), "a memory file (-e)"),
            (
                self.protocol == Protocol::Binary,
                "the binary protocol (-B)",
            ),
            (self.udp.is_some(), "memcached's protocol over UDP (-U)"),
            (self.offload.is_some(), "a secondary store (--offload)"),
            (self.latency.histograms, "latency histograms (--latency)"),
            (self.latency.slow.is_some(), "a slow log (--slow-log)"),
        ];
        refuse_asked(engine, &has_not).map(|()| 1)
    }

    /// Checks what is configured of a secondary store, for an engine that is none.
    fn settle_offload(&self) -> Result<(), StartError> {
        if self.secondary.is_some() {
            return Err(StartError::SecondaryEngine);
        }
        let Some(offload) = &self.offload else {
            return Ok(());
        };
        offload.settle()?;
        if self.one_sided_reads != OneSidedReads::Off {
            let other = "a secondary store (--offload)";
            return Err(StartError::OneSided { other });
        }
        if self.fabrics() == 0 {
            let what = "no fabric is offered, and only clients over one use it";
            return Err(StartError::Offload { what });
        }
        Ok(())
    }

    /// Checks that each protocol that is spoken has the authentication that is configured.
    fn settle_users(&self) -> Result<(), StartError> {
        let users = self.auth.is_some() || self.sasl.is_some();
        if self.udp.is_some() && users {
            return Err(StartError::UdpWithUsers);
        }
        if self.protocol == Protocol::Binary && self.auth.is_some() {
            return Err(StartError::BinaryWithUsers);
        }
        if self.protocol != Protocol::Binary && self.sasl.is_some() {
            return Err(StartError::TextWithSasl);
        }
        Ok(())
    }
}
