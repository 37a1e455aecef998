//! State that all workers share: settings, limits, users and certificates.
//! `Settings` is fixed at the start; all else is atomic, or locked only outside the data path.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use herdwick_request::{Clock, Second};
use herdwick_slab::Growth;

use crate::{
    net::{
        auth::Auth,
        listeners::{ListenerInfo, Opened},
        tls::Certificates,
        udp,
    },
    settings::{
        config::{Config, Engine, Offers, OneSidedReads, Protocol, ShutdownHook},
        connections::Limits,
        error::StartError,
        latency::Latency,
        listen_address::Listen,
        member_fence::MemberFence,
        tuning::{MemoryLimit, Tunables},
    },
    telemetry::{leases::LeaseCounters, offload::OffloadCounters, watch},
};

/// The memcached version whose protocols the server implements. Clients select features by it, and
/// some parse the last three numbers, so nothing may follow them.
pub(crate) const VERSION: &str = "1.6.45";
/// The version of this server.
pub(crate) const HERDWICK_VERSION: &str = env!("CARGO_PKG_VERSION");

/// What all workers share.
pub(crate) struct Context {
    /// The store's second at the start.
    started: Second,
    pub(crate) settings: Settings,
    /// The settings that may change while the server runs.
    pub(crate) tunables: Tunables,
    pub(crate) limits: Limits,
    /// Users and passwords; `None`: no authentication.
    pub(crate) auth: Option<Auth>,
    /// Certificates for TLS; `None`: no TLS.
    pub(crate) certificates: Option<Certificates>,
    /// The listeners.
    pub(crate) sources: Vec<ListenerInfo>,
    /// Counters of datagrams that were dropped.
    pub(crate) udp: udp::Refused,
    /// The topics and counters of `watch`.
    pub(crate) watch: Arc<watch::Shared>,
    /// The lease manager's counters, if there is one.
    pub(crate) leases: Option<Arc<LeaseCounters>>,
    /// Which clients that know the server by its registration in etcd may use it.
    pub(crate) fence: Arc<MemberFence>,
    /// What the thread counts that keeps the secondary store up to date, if there is one.
    pub(crate) offload: Option<Arc<OffloadCounters>>,
}

/// What the context has of hellos and leases: the lease manager's counters, if there is one, and the fence.
pub(crate) type LeasesShared = (Option<Arc<LeaseCounters>>, Arc<MemberFence>);

/// The settings that are fixed at the start: of the configuration those that do not change while the
/// server runs, and what the server made of it. [`Tunables`] and [`Limits`] have the others.
pub(crate) struct Settings {
    pub(crate) engine: Engine,
    pub(crate) growth: Growth,
    pub(crate) listen: Listen,
    pub(crate) item_bytes_max: usize,
    /// The memory that is reserved at the start; `cache_memlimit` may have lowered the limit since.
    pub(crate) memory_bytes: usize,
    pub(crate) spin: Duration,
    pub(crate) backlog: i32,
    pub(crate) refuse_at_once: bool,
    pub(crate) turn_requests: usize,
    pub(crate) offers: Offers,
    pub(crate) protocol: Protocol,
    pub(crate) latency: Latency,
    pub(crate) hot_keys: usize,
    pub(crate) metrics_hot_keys: bool,
    pub(crate) lossless: bool,
    pub(crate) memory_file: Option<PathBuf>,
    pub(crate) one_sided_reads: OneSidedReads,
    pub(crate) shutdown: Option<ShutdownHook>,
    pub(crate) workers: usize,
    pub(crate) port: u16,
    /// 0: no UDP.
    pub(crate) udp_port: u16,
}

impl Settings {
    fn new(config: &Config, workers: usize, (port, udp_port): (u16, u16)) -> Self {
        Self {
            engine: config.engine,
            growth: config.growth,
            listen: config.listen.clone(),
            item_bytes_max: config.item_bytes_max,
            memory_bytes: config.memory_bytes,
            spin: config.spin,
            backlog: config.backlog,
            refuse_at_once: config.refuse_at_once,
            turn_requests: config.turn_requests,
            offers: config.offers,
            protocol: config.protocol,
            latency: config.latency,
            hot_keys: config.hot_keys,
            metrics_hot_keys: config.metrics_hot_keys,
            lossless: config.lossless,
            memory_file: config.memory_file.clone(),
            one_sided_reads: config.one_sided_reads,
            shutdown: config.shutdown.clone(),
            workers,
            port,
            udp_port,
        }
    }
}

/// What clients are admitted by, read from the files that the configuration names. Each file is read
/// once: it may be a pipe.
pub(crate) struct Credentials {
    auth: Option<Auth>,
    certificates: Option<Certificates>,
}

impl Credentials {
    /// Reads users, certificates and keys.
    ///
    /// # Errors
    /// [`StartError::Auth`], [`StartError::Tls`].
    pub(crate) fn read(config: &Config) -> Result<Self, StartError> {
        let is_tcp = matches!(config.listen, Listen::Tcp(_));
        // A unix socket has no TLS, as in memcached.
        let tls = config.tls.as_ref().filter(|_| is_tcp);
        Ok(Self {
            auth: Auth::open(config)?,
            certificates: tls.map(Certificates::open).transpose()?,
        })
    }
}

impl Context {
    /// Returns the seconds since the start.
    pub(crate) fn uptime(&self, clock: Clock) -> u32 {
        clock.second.0.saturating_sub(self.started.0)
    }

    pub(crate) fn new(
        config: &Config,
        (workers, memory): (usize, MemoryLimit),
        opened: &Opened,
        credentials: Credentials,
        ((leases, fence), offload): (LeasesShared, Option<Arc<OffloadCounters>>),
        clock: Clock,
    ) -> Self {
        let Credentials { auth, certificates } = credentials;
        if let Some(certificates) = &certificates {
            certificates.read_at.store(clock.second.0, Relaxed);
        }
        Self {
            started: clock.second,
            settings: Settings::new(config, workers, opened.ports()),
            tunables: Tunables::new(config, memory),
            limits: Limits::new(config.connections_max),
            auth,
            certificates,
            sources: opened.sources(),
            udp: udp::Refused::default(),
            watch: Arc::default(),
            leases,
            fence,
            offload,
        }
    }

    /// Zeroes the counters that no worker counts alone, except those of unix sockets, fabrics and
    /// leases.
    pub(crate) fn reset_counters(&self) {
        self.limits.reset();
        self.udp.reset();
        self.watch.reset();
        if let Some(certificates) = &self.certificates {
            certificates.counters.reset();
        }
    }
}
