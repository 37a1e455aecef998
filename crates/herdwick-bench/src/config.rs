//! The configuration of a benchmark, its defaults and its checks, and the parsers of counts, sizes
//! and fabric names.

use std::{ffi::OsString, fmt, io, path::PathBuf, str::FromStr};

use herdwick::RequestPath;
use herdwick_clover::NODES_MAX;
use herdwick_providers::{AnyDevice, End};

use crate::{
    System,
    host::{Placement, allowed_cpus},
    report::{FigureClass, Knobs},
    workload::{Dist, KeySpace, KeySpaceError, Mix, TRACE_STEPS, Workload},
};

/// What to measure and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// Systems to measure; their runs are interleaved.
    pub systems: Vec<System>,
    /// Fabrics to measure, interleaved too. Empty: for [`System::Herd`] those that the server
    /// offers, for the other systems the best one.
    pub fabrics: Vec<Fabric>,
    /// A running server, `HOST:PORT` or the path of a unix socket; if `None`, the benchmark starts its
    /// own.
    pub server: Option<String>,
    /// TLS and login for [`Config::server`]; its other fields are not used.
    pub access: herdwick::Options,
    /// The same as arguments of [`Config::program`], for processes that the benchmark starts.
    pub access_flags: Vec<OsString>,
    /// The program that is started with `serve` as the own server.
    pub program: PathBuf,
    /// The mix of reads and writes.
    pub mix: Mix,
    /// The distribution of the keys requested.
    pub dist: Dist,
    /// Number of keys.
    pub keys: u64,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// Measured seconds of each run, warm-up not included.
    pub seconds: f64,
    /// Client threads.
    pub clients: usize,
    /// Workers of the own server; `None`: half of the CPUs, at most 4.
    pub workers: Option<usize>,
    /// Memory of the own server or store, MiB; `None`: ample for the keys.
    pub memory_mb: Option<u64>,
    /// HERD requests in flight, of each client at each worker.
    pub window: usize,
    /// HERD as in the paper: replies of fewer bytes are inlined.
    pub inline_below: usize,
    /// Data nodes of Clover, each of which holds everything.
    pub replicas: usize,
    /// The request path of HERD; `None`: the one that the server chooses.
    pub request_path: Option<RequestPath>,
    /// TCP connections, of all clients together.
    pub connections: usize,
    /// Additional idle TCP connections: the system is measured without them and with them.
    pub idle_connections: usize,
    /// Requests in flight on a connection.
    pub pipeline: usize,
    /// Keys in a TCP `get`.
    pub multiget: usize,
    /// Requests in a batch of the bare store.
    pub batch: usize,
    /// The bare store lies in published memory, and is read from there, too.
    pub published: bool,
    /// Open loop: operations per second, of all clients together. `None`: closed loop.
    pub rate: Option<f64>,
    /// Runs; the report contains their medians.
    pub runs: usize,
    /// Traces for the cache benchmark: names, files, or `all`. Empty: three patterns of small
    /// items.
    pub traces: Vec<String>,
    /// Run the traces with fewer requests and one size of memory only.
    pub quick: bool,
}

/// The transport between the clients and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// HERD over this fabric.
    Herd(herdwick::Fabric),
    /// memcached's text protocol.
    Tcp,
}

/// The name of no known fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no fabric: give {names}, or several such as {best},tcp", names = names(), best = Fabric::BEST)]
pub struct FabricError(String);

/// Returns the names of all fabrics.
fn names() -> String {
    let fabrics = herdwick::Fabric::ALL.map(herdwick::Fabric::name);
    [&fabrics[..], &[Fabric::Tcp.name()]].concat().join(", ")
}

/// Returns the names of the fabrics that stay on the host.
fn local() -> String {
    let local = herdwick::Fabric::local().map(herdwick::Fabric::name);
    local.collect::<Vec<_>>().join(", ")
}

/// Invalid options.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// Invalid sizes of keys or values.
    #[error(transparent)]
    Keys(#[from] KeySpaceError),
    /// A count of zero; the option is named.
    #[error("--{0} must be at least 1")]
    Zero(&'static str),
    /// More replicas than Clover has.
    #[error("--replicas is 1 to {NODES_MAX}, not {0}")]
    Replicas(usize),
    /// A share of reads outside of 0 to 1.
    #[error("--get-share is a share, 0 to 1, not {0}")]
    GetShare(f64),
    /// `--bare` without the fabric that it is compared with.
    #[error(
        "--bare is measured beside --fabric {}, which is not asked for",
        Fabric::BARE
    )]
    Bare,
    /// A fabric that leaves the host, with TLS.
    #[error(
        "--fabric {0}: with --tls only {local} and tcp are used, since nothing else is encrypted or \
         stays on the host; leave one of them out",
        local = local()
    )]
    Unencrypted(Fabric),
    /// A time or rate that is not positive and finite; the option is named.
    #[error("--{0} must be above 0")]
    NotPositive(&'static str),
}

impl Default for Config {
    /// Returns options for a first run, about a minute on a laptop.
    fn default() -> Self {
        Self {
            systems: vec![System::Herd],
            fabrics: Vec::new(),
            server: None,
            access: herdwick::Options::default(),
            access_flags: Vec::new(),
            program: PathBuf::from("herdwick"),
            mix: Mix::Ycsb(Workload::B),
            dist: Dist::Zipf(0.99),
            keys: 1_000_000,
            key_size: 16,
            value_size: 32,
            seconds: 5.0,
            clients: 1,
            workers: None,
            memory_mb: None,
            window: 128,
            inline_below: herdwick_herd::paper::INLINE_BELOW,
            replicas: 1,
            request_path: None,
            connections: 50,
            idle_connections: 0,
            pipeline: 1,
            multiget: 1,
            batch: 16,
            published: false,
            rate: None,
            runs: 3,
            traces: Vec::new(),
            quick: false,
        }
    }
}

/// Seed of the first client's trace; client `i` uses `SEED + i`.
pub const SEED: u64 = 1;
/// Approximate bytes of an item besides its key and value: the store's header and the item's share
/// of the index.
const ITEM_OVERHEAD: u64 = 48;
/// Ample memory is 5/2 of the items, so that the store stays below half full and nothing is evicted
/// by chance.
const AMPLE: u64 = 5;
const AMPLE_OF: u64 = 2;
/// MiB added for buffers, connections and small stores.
const MEMORY_FLOOR_MB: u64 = 64;

/// Spare connections, for statistics, sessions, and connections that the server has not closed yet.
const CONNECTIONS_TO_SPARE: usize = 1024;

impl Config {
    /// Checks the options and returns the sizes of keys and values.
    ///
    /// # Errors
    /// Returns the first invalid option.
    pub fn checked(&self) -> Result<KeySpace, ConfigError> {
        let counts = [
            ("clients", self.clients),
            ("window", self.window),
            ("connections", self.connections),
            ("pipeline", self.pipeline),
            ("multiget", self.multiget),
            ("batch", self.batch),
            ("runs", self.runs),
            ("workers", self.workers.unwrap_or(1)),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(ConfigError::Zero(name));
        }
        if !(1..=NODES_MAX).contains(&self.replicas) {
            return Err(ConfigError::Replicas(self.replicas));
        }
        if self.systems.contains(&System::Bare) && !self.fabrics.contains(&Fabric::BARE) {
            return Err(ConfigError::Bare);
        }
        let leaves_host = |fabric: &&Fabric| matches!(fabric, Fabric::Herd(by) if !by.is_local());
        if let (Some(fabric), true) = (
            self.fabrics.iter().find(leaves_host),
            self.access.tls.is_some(),
        ) {
            return Err(ConfigError::Unencrypted(*fabric));
        }
        let share = self.mix.get_share();
        if !(0.0..=1.0).contains(&share) {
            return Err(ConfigError::GetShare(share));
        }
        let amounts = [
            // No rate is a closed loop, which is valid.
            ("seconds", self.seconds),
            ("rate", self.rate.unwrap_or(1.0)),
        ];
        let positive = |amount: f64| amount > 0.0 && amount.is_finite();
        if let Some((name, _)) = amounts.iter().find(|(_, amount)| !positive(*amount)) {
            return Err(ConfigError::NotPositive(name));
        }
        Ok(KeySpace::new(self.keys, self.key_size, self.value_size)?)
    }

    /// Returns the fabrics to measure the echo on: those configured that can carry it, or else
    /// the best one.
    pub(crate) fn echo_fabrics(&self) -> Vec<Fabric> {
        let asked = self.fabrics.iter().filter(|fabric| fabric.is_herd());
        match asked.copied().collect::<Vec<_>>() {
            none if none.is_empty() => vec![Fabric::BEST],
            asked => asked,
        }
    }

    /// Returns whether any of the systems needs a server.
    pub(crate) fn needs_server(&self) -> bool {
        let serves = |system: &System| !system.is_in_process();
        self.systems.iter().any(serves)
    }

    /// Returns the number of workers of the own server: half of the CPUs, 1 to 4, if not
    /// configured.
    #[must_use]
    pub fn workers(&self) -> usize {
        let half = allowed_cpus().len() / 2;
        self.workers.unwrap_or_else(|| half.clamp(1, 4))
    }

    /// Returns the CPUs of the server and of the clients.
    #[must_use]
    pub fn placement(&self) -> Placement {
        Placement::new(&allowed_cpus(), self.workers())
    }

    /// Returns the connection limit (`-c`) of the own server: the connections configured, and some
    /// spare ones.
    #[must_use]
    pub(crate) fn connections_max(&self) -> usize {
        self.connections + self.clients + self.idle_connections + CONNECTIONS_TO_SPARE
    }

    /// Returns the memory of the own server or store, MiB.
    #[must_use]
    pub fn memory_mb(&self) -> u64 {
        let item = (self.key_size + self.value_size) as u64 + ITEM_OVERHEAD;
        let ample = (self.keys * item * AMPLE / AMPLE_OF) >> 20;
        self.memory_mb.unwrap_or(ample + MEMORY_FLOOR_MB)
    }

    /// Returns the number of requests in a client's trace, which repeats. With few keys the trace
    /// is shorter, since every cache then learns the sequence anyway.
    #[must_use]
    pub(crate) fn trace_steps(&self) -> usize {
        let several =
            usize::try_from(self.keys).map_or(TRACE_STEPS, |keys| keys.saturating_mul(16));
        several.clamp(TRACE_STEPS / 64, TRACE_STEPS)
    }

    /// Returns the seconds of warm-up, in which caches fill and windows open.
    #[must_use]
    pub fn warmup_seconds(&self) -> f64 {
        (self.seconds / 5.0).min(1.0)
    }

    /// Returns every option for the manifest. Options that apply only to an own server, or only to
    /// some fabrics, are `None` where they do not apply.
    #[must_use]
    pub(crate) fn knobs(&self, placement: &Placement, fabrics: &[Fabric]) -> Knobs {
        let own = self.server.is_none() && self.needs_server();
        let tcp = |value| fabrics.contains(&Fabric::Tcp).then_some(value);
        let herd = fabrics.iter().any(|fabric| fabric.is_herd());
        Knobs {
            server: self.server.clone(),
            workload: self.mix.name().to_owned(),
            get_share: self.mix.get_share(),
            dist: self.dist.to_string(),
            keys: self.keys,
            key_size: self.key_size,
            value_size: self.value_size,
            seconds: self.seconds,
            warmup_seconds: self.warmup_seconds(),
            clients: Some(self.clients),
            workers: own.then(|| self.workers()),
            window: herd.then_some(self.window),
            inline_below: self
                .systems
                .contains(&System::HerdPaper)
                .then_some(self.inline_below),
            replicas: self
                .systems
                .contains(&System::Clover)
                .then_some(self.replicas),
            request_path: self.request_path.map(|path| path.name().to_owned()),
            connections: tcp(self.connections),
            idle_connections: (self.idle_connections > 0).then_some(self.idle_connections),
            pipeline: tcp(self.pipeline),
            multiget: tcp(self.multiget),
            batch: None,
            published: None,
            rate: self.rate,
            runs: self.runs,
            memory_mb: own.then(|| self.memory_mb()),
            trace_steps: self.trace_steps(),
            seed: SEED,
            server_cpus: placement.server.clone(),
            client_cpus: placement.clients.clone(),
        }
    }
}

impl Fabric {
    /// The best fabric, which a server on this host offers by default.
    pub const BEST: Self = Self::Herd(herdwick::Fabric::BEST);
    /// The fabric that [`System::Bare`] is the baseline of.
    pub const BARE: Self = Self::Herd(herdwick::Fabric::Roce);

    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Herd(fabric) => fabric.name(),
            Self::Tcp => "tcp",
        }
    }

    /// Returns whether HERD runs over this fabric.
    #[must_use]
    pub fn is_herd(self) -> bool {
        self.session().is_some()
    }

    /// Returns the fabric in `herdwick`, or `None` for TCP.
    pub(crate) fn session(self) -> Option<herdwick::Fabric> {
        match self {
            Self::Herd(fabric) => Some(fabric),
            Self::Tcp => None,
        }
    }

    /// Opens a device for one end, where both are in one process; of the best fabric for TCP, which has
    /// no verbs.
    pub(crate) fn open(self, end: End) -> io::Result<AnyDevice> {
        self.session()
            .unwrap_or(herdwick::Fabric::BEST)
            .loopback(end)
    }

    /// Returns the class of figures that its figures can be compared with.
    #[must_use]
    pub fn word(self) -> FigureClass {
        match self {
            Self::Herd(fabric) if fabric.is_local() => FigureClass::Shm,
            Self::Herd(fabric) if fabric.is_hardware() => FigureClass::Hardware,
            Self::Herd(_) | Self::Tcp => FigureClass::Soft,
        }
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fabric {
    type Err = FabricError;

    fn from_str(text: &str) -> Result<Self, FabricError> {
        if text == Self::Tcp.name() {
            return Ok(Self::Tcp);
        }
        let named = herdwick::Fabric::named(text).map(Self::Herd);
        named.ok_or_else(|| FabricError(text.to_owned()))
    }
}

/// A text that is no count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no count: give a number such as 1000000, 1M or 16K")]
pub struct CountError(String);

/// Parses `1000`, `16K`, `8M`, `1.5M` or `1G`; the suffixes are powers of 1,000.
///
/// # Errors
/// [`CountError`].
pub fn parse_count(text: &str) -> Result<u64, CountError> {
    scaled(text, 1000).ok_or_else(|| CountError(text.to_owned()))
}

/// Parses `32`, `1K` or `1M`; the suffixes are powers of 1,024, as in memcached's sizes.
///
/// # Errors
/// [`CountError`].
pub fn parse_size(text: &str) -> Result<usize, CountError> {
    let size = scaled(text, 1024).and_then(|size| usize::try_from(size).ok());
    size.ok_or_else(|| CountError(text.to_owned()))
}

fn scaled(text: &str, unit: u64) -> Option<u64> {
    let exponent = match text.bytes().last()?.to_ascii_lowercase() {
        b'k' => 1,
        b'm' => 2,
        b'g' => 3,
        _ => return text.parse().ok(),
    };
    let number: f64 = text[..text.len() - 1].parse().ok()?;
    let value = number * unit.pow(exponent) as f64;
    // A part of a key or of a byte is refused, as in 1.2345K.
    let whole = value.fract() == 0.0 && (0.0..=u64::MAX as f64).contains(&value);
    whole.then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_suffixes_are_decimal_and_size_suffixes_binary() {
        assert_eq!(parse_count("8M"), Ok(8_000_000));
        assert_eq!(parse_count("1.5k"), Ok(1500));
        assert_eq!(parse_count("17"), Ok(17));
        assert_eq!(parse_size("1K"), Ok(1024));
        assert_eq!(parse_size("32"), Ok(32));
        for wrong in [
            "", "K", "-1", "1.5", "0.0001K", "1T", "x", "1e3", "é", "-1M", "nanK",
        ] {
            assert_eq!(parse_count(wrong), Err(CountError(wrong.to_owned())));
        }
    }

    #[test]
    fn defaults_are_valid_and_zero_values_are_refused_by_name() {
        assert!(Config::default().checked().is_ok());
        let zero = Config {
            pipeline: 0,
            ..Config::default()
        };
        assert_eq!(zero.checked().unwrap_err(), ConfigError::Zero("pipeline"));
        let share = Config {
            mix: Mix::GetShare(1.5),
            ..Config::default()
        };
        assert_eq!(share.checked().unwrap_err(), ConfigError::GetShare(1.5));
        let rate = Config {
            rate: Some(f64::NAN),
            ..Config::default()
        };
        assert_eq!(
            rate.checked().unwrap_err(),
            ConfigError::NotPositive("rate")
        );
    }

    #[test]
    fn default_memory_holds_all_keys() {
        let config = Config {
            keys: 8_000_000,
            ..Config::default()
        };
        assert!(config.memory_mb() << 20 > 8_000_000 * 80 * 2);
        assert_eq!(
            Config {
                memory_mb: Some(5),
                ..config
            }
            .memory_mb(),
            5
        );
    }
}
