//! The flags of `herdwick serve`: memcached's, and a few of its own. The doc comments of the fields
//! are the text of `--help`.

use std::{net::SocketAddr, path::PathBuf};

use clap::{ArgAction, Args};
use herdwick_providers::{DeviceSelector, ROCE_PORT, Verbs, VerbsOptions};
use herdwick_server::{
    Engine, Growth, Limits, OneSidedReads, PORT, Pin, Policy, Protocol, RequestPath,
};

use crate::units;

use super::{
    etcd::EtcdArgs,
    extended::{self, Extended},
    listen::{self, ListenAddresses},
    log::LogFormat,
};

/// Serve memcached clients. The flags are memcached's.
///
/// A flag of memcached that this server does not support is refused with the reason, or, if it would
/// change nothing here, ignored with a warning.
#[derive(Args, Clone, Debug)]
#[command(args_override_self = true, before_help = BANNER, display_name = "memcached", version = VERSION)]
pub(crate) struct ServeArgs {
    /// TCP port; 0 or -1: a free one. The port is written to the file that the environment variable
    /// MEMCACHED_PORT_FILENAME names
    #[arg(short = 'p', long = "port", value_name = "NUM", default_value_t = PORT.into(), allow_negative_numbers = true, value_parser = units::port)]
    pub(super) port: i32,
    /// UDP port; 0: none, -1: a free one. The reply to an address that is not trusted
    /// (-o udp_trusted) is at most three times as long as its request
    #[arg(short = 'U', long = "udp-port", value_name = "NUM", default_value_t = 0, allow_negative_numbers = true, value_parser = units::port)]
    pub(super) udp_port: i32,
    /// Unix socket to listen on, instead of TCP
    #[arg(short = 's', long = "unix-socket", value_name = "FILE")]
    pub(super) unix_socket: Option<PathBuf>,
    /// Mode of the unix socket, in octal
    #[arg(short = 'a', long = "unix-mask", value_name = "MODE", default_value = "0700", value_parser = octal)]
    pub(super) unix_mode: u32,
    /// Allow clients to end the server by the command "shutdown"
    #[arg(short = 'A', long = "enable-shutdown")]
    pub(super) enable_shutdown: bool,
    /// Addresses to listen on, ADDR or ADDR:PORT, separated by commas or in several -l [default:
    /// 127.0.0.1]
    #[arg(short = 'l', long = "listen", value_name = "ADDR", action = ArgAction::Append, value_parser = listen::parse)]
    pub(super) listen: Vec<ListenAddresses>,
    /// Run in the background; the command returns when the server is ready
    #[arg(short = 'd', long = "daemon")]
    pub(super) daemon: bool,
    /// The process that -d starts
    #[arg(long = "in-background", hide = true)]
    pub(super) in_background: bool,
    /// Allow core dumps of any size
    #[arg(short = 'r', long = "enable-coredumps")]
    pub(super) core_dumps: bool,
    /// Run as this user, if started by root; without this option root gets a warning
    #[arg(short = 'u', long = "user", value_name = "NAME")]
    pub(super) user: Option<String>,
    /// Memory for items, their index and leases, in megabytes, or with a unit, such as 2g. If it is
    /// too little for -t and -I, the server uses fewer workers or smaller items, and logs that
    #[arg(short = 'm', long = "memory-limit", alias = "memory", value_name = "MB", default_value_t = 64, allow_negative_numbers = true, value_parser = units::megabytes)]
    pub(super) memory: usize,
    /// Maximum number of connections at a time
    #[arg(
        short = 'c',
        long = "conn-limit",
        value_name = "NUM",
        default_value_t = 1024,
        allow_negative_numbers = true,
        value_parser = units::count::<usize>
    )]
    pub(super) connections: usize,
    /// Keep all memory out of swap, from its first use on
    #[arg(short = 'k', long = "lock-memory")]
    pub(super) lock_memory: bool,
    /// Workers, each a thread with a partition of the data [default: allowed CPUs, at most 4]
    #[arg(short = 't', long = "threads", alias = "workers", value_name = "NUM", allow_negative_numbers = true, value_parser = units::count::<usize>)]
    pub(super) workers: Option<usize>,
    /// Maximum number of requests that one connection executes before the next connection is
    /// served, rounded up to a multiple of 128
    #[arg(
        short = 'R',
        long = "max-reqs-per-event",
        value_name = "NUM",
        default_value_t = 512,
        allow_negative_numbers = true,
        value_parser = turn
    )]
    pub(super) turn_requests: usize,
    /// Maximum number of connections that wait to be accepted; -1: as many as the kernel allows
    #[arg(
        short = 'b',
        long = "listen-backlog",
        value_name = "NUM",
        default_value_t = 1024,
        allow_negative_numbers = true,
        value_parser = backlog
    )]
    pub(super) backlog: i32,
    /// Largest item, in bytes, or with a unit, such as 512k or 2m
    #[arg(short = 'I', long = "max-item-size", value_name = "SIZE", default_value = "1m", value_parser = size)]
    pub(super) item_bytes_max: usize,
    /// Evict nothing: refuse to store further items when they take 85 % of their memory
    #[arg(short = 'M', long = "disable-evictions")]
    pub(super) no_evictions: bool,
    /// Protocols to accept: auto (text and binary), ascii, or binary, which excludes Herdwick's own
    /// clients [default: auto; with -S: binary]
    #[arg(short = 'B', long = "protocol", value_name = "NAME", value_parser = protocol)]
    pub(super) protocol: Option<Protocol>,
    /// Refuse the command "flush_all"
    #[arg(short = 'F', long = "disable-flush-all")]
    pub(super) no_flush: bool,
    /// Refuse the commands that show keys
    #[arg(short = 'X', long = "disable-dumping")]
    pub(super) no_dump: bool,
    /// Refuse the command "watch"
    #[arg(short = 'W', long = "disable-watch")]
    pub(super) no_watch: bool,
    /// File of users, one "user:password" per line: clients have to authenticate
    #[arg(short = 'Y', long = "auth-file", value_name = "FILE")]
    pub(super) auth: Option<PathBuf>,
    /// Clients have to authenticate by SASL, PLAIN or SCRAM-SHA-256, which only the binary protocol
    /// has: others are closed, Herdwick's own clients too. The users are those of -Y, or in the file
    /// that the environment variable MEMCACHED_SASL_PWDB names
    #[arg(short = 'S', long = "enable-sasl")]
    pub(super) sasl: bool,
    /// Use TLS on the TCP ports, with the certificate that -o ssl_chain_cert names
    #[arg(short = 'Z', long = "enable-ssl")]
    pub(super) tls: bool,
    /// File that keeps the items across restarts and crashes, on tmpfs or disk; start with the same
    /// -e, -m, -t, --shm, --roce and --verbs
    #[arg(short = 'e', long = "memory-file", value_name = "FILE")]
    pub(super) memory_file: Option<PathBuf>,
    /// File to write the process ID to when the server is ready, as the user that -u names
    #[arg(short = 'P', long = "pidfile", value_name = "FILE")]
    pub(super) pid_file: Option<PathBuf>,
    /// Extended options, NAME or NAME=VALUE, separated by commas; see below
    #[arg(short = 'o', long = "extended", value_name = "OPTION", value_delimiter = ',', action = ArgAction::Append, value_parser = extended::parse, long_help = extended::HELP)]
    pub(super) extended: Vec<Extended>,
    /// Log also what is reloaded and the signal that ends the server. -vv and -vvv are accepted, and
    /// log no more than -v
    #[arg(short = 'v', long = "verbose", action = ArgAction::Count)]
    pub(super) verbosity: u8,
    /// TOML file of long flags, such as port = 11211; the command line overrides it, and adds to
    /// its lists
    #[arg(long = "config", value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Microseconds that a worker polls for work before it sleeps; up to 320 while HERD's clients
    /// keep waking it soon after it fell asleep, if there are more CPUs than workers
    #[arg(long = "spin", value_name = "US", default_value_t = 20, value_parser = units::microseconds)]
    pub(super) spin: u64,
    /// Pin each worker to one CPU: the first ones that the process may use (auto), or these, such
    /// as 0-3,8
    #[arg(long = "pin", value_name = "auto|off|CPUS", default_value = "off")]
    pub(super) pin: Pin,
    /// What stores the data: herd, a cache for memcached's clients and Herdwick's; slab, the same with a
    /// store in slabs as memcached's (without -e); or clover, for Herdwick clients alone, which read and write its memory themselves, over the fabric that --roce or
    /// --verbs names, else over shared memory
    #[arg(long = "engine", value_name = "herd|slab|clover", default_value = "herd", value_parser = engine)]
    pub(super) engine: Engine,
    /// With --engine slab: the chunks of a class are so many times as large as those of the one before it
    /// [default: 1.25]
    #[arg(
        short = 'f',
        long = "slab-growth-factor",
        value_name = "NUM",
        allow_negative_numbers = true,
        value_parser = growth
    )]
    growth: Option<f64>,
    /// With --engine slab: bytes for key and value in the smallest chunks [default: 48]
    #[arg(
        short = 'n',
        long = "slab-min-size",
        value_name = "BYTES",
        allow_negative_numbers = true,
        value_parser = chunk
    )]
    chunk: Option<u32>,
    /// Be the secondary store of another server: the engine clover, whose clients may only read, but for
    /// the server that knows the secret in --offload-secret
    #[arg(long = "secondary", requires = "offload_secret", conflicts_with_all = ["offload", "engine"])]
    pub(super) secondary: bool,
    /// Replicate the keys that are read most to the secondary store at HOST:PORT, where Herdwick clients
    /// read them by themselves; they use this address too
    #[arg(long = "offload", value_name = "HOST:PORT", requires = "offload_secret", value_parser = one_address)]
    pub(super) offload: Option<String>,
    /// File with the secret of --offload and --secondary, 32 hex digits, as by openssl rand -hex 16
    #[arg(long = "offload-secret", value_name = "FILE")]
    pub(super) offload_secret: Option<PathBuf>,
    /// Which keys to replicate: combined (read often and lately), lru, frequency, or small (items)
    #[arg(
        long = "offload-policy",
        value_name = "POLICY",
        default_value = "combined",
        requires = "offload"
    )]
    pub(super) offload_policy: Policy,
    /// Most keys to replicate
    #[arg(long = "offload-keys", value_name = "N", default_value_t = Limits::default().keys, requires = "offload")]
    pub(super) offload_keys: usize,
    /// Replicate a key only after so many reads in the last --offload-window requests
    #[arg(long = "offload-reads", value_name = "K", default_value_t = Limits::default().reads, requires = "offload")]
    pub(super) offload_reads: u8,
    /// The requests, of all workers together, among which reads of a key are counted
    #[arg(long = "offload-window", value_name = "N", default_value_t = Limits::default().window, requires = "offload")]
    pub(super) offload_window: usize,
    /// Offer shared memory to clients on this host
    #[arg(long = "shm", value_name = "auto|off", default_value = "auto", action = ArgAction::Set, value_parser = on_or_off)]
    pub(super) shm: bool,
    /// Where to create the private directory of the lease socket [default: the directory for
    /// temporary files]
    #[arg(long = "shm-dir", value_name = "DIR")]
    pub(super) shm_directory: Option<PathBuf>,
    /// Mode of the lease socket, in octal: which users of this host may use shared memory [default:
    /// -a with -s, else 0700]
    #[arg(long = "shm-mode", value_name = "MODE", value_parser = octal)]
    pub(super) shm_mode: Option<u32>,
    /// Let Herdwick clients on this host read items in the server's memory, without the server: those of the
    /// server's user (owner, which is meant without a value), or each that may use shared memory (all). Such a
    /// client can read all items. Not with -e
    #[arg(long = "one-sided-reads", value_name = "off|owner|all", default_value = "off", num_args = 0..=1, default_missing_value = "owner", value_parser = readers)]
    pub(super) one_sided_reads: OneSidedReads,
    /// Find the keys requested most, and show this many by "stats hotkeys": 1 to 64, or off
    #[arg(long = "hot-keys", value_name = "N|off", default_value = "16", value_parser = hot_keys)]
    pub(super) hot_keys: usize,
    /// Measure how long requests take, for "stats latency", metrics and "herdwick top"
    #[arg(long = "latency")]
    pub(super) latency: bool,
    /// Count the requests that take this many microseconds or more, and show them by "watch slow"
    #[arg(long = "slow-log", value_name = "US")]
    pub(super) slow_log: Option<u64>,
    /// Format of the log on standard error
    #[arg(
        long = "log-format",
        value_name = "FORMAT",
        value_enum,
        default_value_t
    )]
    pub(super) log_format: LogFormat,
    /// Serve metrics to Prometheus over HTTP; a port alone is on 127.0.0.1, an address alone has
    /// port 9150
    #[arg(long = "metrics", value_name = "ADDR[:PORT]", value_parser = listen::metrics)]
    pub(super) metrics: Option<SocketAddr>,
    /// Include the ten hottest keys in the metrics: each key that is ever among them makes a
    /// series, and every reader of the metrics sees it
    #[arg(long = "metrics-hot-keys", requires = "metrics")]
    pub(super) metrics_hot_keys: bool,
    /// RoCEv2 over UDP for Herdwick clients on any host, at this address; port 4791 if none is
    /// given
    #[arg(long = "roce", value_name = "ADDR[:PORT]|off", default_value = "off", value_parser = roce)]
    pub(super) roce: Roce,
    /// Authenticate every RoCEv2 packet by a key that is sent over the client's TCP connection: an
    /// attacker who did not see that connection cannot forge packets. Costs some 700 instructions
    /// per packet
    #[arg(long = "roce-keyed", requires = "roce")]
    pub(super) roce_keyed: bool,
    /// Write the RoCEv2 packets of the first worker to FILE, of the others to FILE.1, FILE.2 and so
    /// on, for Wireshark or tcpdump
    #[arg(long = "roce-pcap", value_name = "FILE", requires = "roce")]
    pub(super) roce_pcap: Option<PathBuf>,
    /// RDMA device for Herdwick clients on any host: the best one, if there is any (auto), or this
    /// one, such as mlx5_0 or mlx5_0:1:3
    #[arg(long = "verbs", value_name = "auto|off|DEVICE[:PORT[:GID]][,pkey=P_KEY][,sl=N][,tclass=N]", default_value = "auto", value_parser = verbs)]
    pub(super) verbs: Verbs,
    /// How clients' requests are sent over a fabric: uc-write, rc-write or ud-send [default: what
    /// each client requests, else what suits the fabric]
    #[arg(long = "request-path", value_name = "PATH")]
    pub(super) request_path: Option<RequestPath>,
    /// Print the license
    #[arg(short = 'i', long = "license")]
    pub(super) license: bool,
    /// Accept the command "debugtime", which moves the clock: for tests
    #[arg(long = "debug-commands", hide = true)]
    pub(super) debug: bool,
    #[command(flatten)]
    pub(super) etcd: EtcdArgs,
    #[command(flatten)]
    pub(super) missing: Missing,
}

/// The first line of the help: test suites of memcached read the version from it.
pub(super) const BANNER: &str = concat!(
    "memcached 1.6.45 (herdwick ",
    env!("CARGO_PKG_VERSION"),
    ")"
);

/// What `-V` prints after `memcached `: the same.
const VERSION: &str = concat!("1.6.45 (herdwick ", env!("CARGO_PKG_VERSION"), ")");

/// Flags of memcached without a function here: accepted by the parser so that they can be refused
/// with a reason, or ignored.
#[derive(Args, Clone, Debug)]
pub(crate) struct Missing {
    #[arg(short = 'N', long = "napi_ids", value_name = "NUM", hide = true)]
    napi_ids: Option<String>,
    #[arg(short = 'D', value_name = "CHAR", hide = true)]
    delimiter: Option<String>,
    #[arg(short = 'L', long = "enable-largepages", hide = true)]
    large_pages: bool,
    #[arg(short = 'C', long = "disable-cas", hide = true)]
    no_cas: bool,
}

impl ServeArgs {
    /// Returns how the chunks of slabs grow.
    pub(super) fn growth(&self) -> Growth {
        let usual = Growth::default();
        Growth {
            factor: self.growth.unwrap_or(usual.factor),
            smallest: self.chunk.map_or(usual.smallest, |bytes| bytes as usize),
        }
    }

    /// Returns the flags of slab classes that were given for an engine without slabs, with the reason why
    /// they have no effect.
    pub(super) fn without_slabs(&self) -> impl Iterator<Item = &'static str> {
        let has_slabs = self.engine == Engine::Slab;
        [
            (
                self.growth.is_some(),
                "-f: there are no slab classes, but with --engine slab",
            ),
            (
                self.chunk.is_some(),
                "-n: there are no slab classes, but with --engine slab",
            ),
        ]
        .into_iter()
        .filter_map(move |(given, reason)| (given && !has_slabs).then_some(reason))
    }
}

impl Missing {
    /// Returns the reason and advice for the first given flag that cannot be ignored without loss.
    pub(super) fn refused(&self) -> Option<&'static str> {
        [
            (
                self.napi_ids.is_some(),
                "-N: connections are dealt out in turn, not by NAPI id; leave -N out",
            ),
            (
                self.delimiter.as_deref().is_some_and(|text| text != ":"),
                "-D: prefixes end at a colon; leave -D out",
            ),
        ]
        .into_iter()
        .find_map(|(given, reason)| given.then_some(reason))
    }

    /// Returns the given flags that have no effect here and whose absence loses nothing, with the
    /// reason.
    pub(super) fn passed_over(&self) -> impl Iterator<Item = &'static str> {
        [
            (
                self.large_pages,
                "-L: large pages are asked for in any case",
            ),
            (
                self.no_cas,
                "-C: versions take no room of their own, and stay",
            ),
        ]
        .into_iter()
        .filter_map(|(given, reason)| given.then_some(reason))
    }
}

/// The address on which RoCEv2 is served, or `None`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Roce(pub(super) Option<SocketAddr>);

fn roce(text: &str) -> Result<Roce, String> {
    if text == "off" {
        return Ok(Roce(None));
    }
    let address = text.parse().ok();
    let address = address.or_else(|| Some(SocketAddr::new(text.parse().ok()?, ROCE_PORT)));
    match address {
        Some(address) => Ok(Roce(Some(address))),
        None => Err("give an address of this host, with a port or without, or off".into()),
    }
}

fn verbs(text: &str) -> Result<Verbs, String> {
    if text == "off" {
        return Ok(Verbs::Off);
    }
    let selector = text
        .parse::<DeviceSelector>()
        .map_err(|error| error.to_string())?;
    let is_named = selector.device.is_some();
    let options = VerbsOptions {
        selector,
        ..VerbsOptions::default()
    };
    Ok(match is_named {
        true => Verbs::Needed(options),
        false => Verbs::IfThere(options),
    })
}

fn one_address(text: &str) -> Result<String, String> {
    match text.contains(',') {
        true => Err("there is one secondary store".into()),
        false => Ok(text.to_owned()),
    }
}

fn engine(text: &str) -> Result<Engine, String> {
    match text {
        "herd" => Ok(Engine::Herd),
        "slab" => Ok(Engine::Slab),
        "clover" => Ok(Engine::Clover),
        _ => Err("give herd, slab or clover".into()),
    }
}

fn readers(text: &str) -> Result<OneSidedReads, String> {
    let all = [OneSidedReads::Off, OneSidedReads::Owner, OneSidedReads::All];
    let named = all.into_iter().find(|readers| readers.name() == text);
    named.ok_or_else(|| "give off, owner or all".into())
}

fn protocol(text: &str) -> Result<Protocol, String> {
    match text {
        "auto" | "auto-negotiate" => Ok(Protocol::Any),
        "ascii" => Ok(Protocol::Text),
        "binary" => Ok(Protocol::Binary),
        _ => Err("give auto, ascii or binary".into()),
    }
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "auto" => Ok(true),
        "off" => Ok(false),
        _ => Err("give auto or off".into()),
    }
}

fn hot_keys(text: &str) -> Result<usize, String> {
    match (text, text.parse()) {
        ("off", _) => Ok(0),
        (_, Ok(count @ 1..=64)) => Ok(count),
        _ => Err("give a number from 1 to 64, or off".into()),
    }
}

/// Parses `-R`, which memcached too refuses below 1.
fn turn(text: &str) -> Result<usize, String> {
    match units::count(text) {
        Ok(count @ 1..) => Ok(count),
        Err(reason) if !text.starts_with('-') => Err(reason),
        _ => Err("give at least 1".into()),
    }
}

/// Parses `-b`, any number in memcached.
fn backlog(text: &str) -> Result<i32, String> {
    text.parse()
        .map_err(|_| "not a number: give 1024, for example, or -1 for the kernel's limit".into())
}

/// Parses `-f`, which is refused where memcached refuses it, with an engine without slabs too.
fn growth(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok();
    factor
        .filter(|factor| *factor > 1.0)
        .ok_or_else(|| "give a factor above 1, such as memcached's 1.25".into())
}

/// Parses `-n`, as [`growth`] does `-f`.
fn chunk(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ 1..) => Ok(bytes),
        _ => Err("give at least 1 byte, such as memcached's 48".into()),
    }
}

fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("give a mode in octal, for example 0700".into()),
    }
}

/// Bounds of memcached's `-I`, in bytes.
const ITEM_BYTES: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 30;

fn size(text: &str) -> Result<usize, String> {
    units::bytes(text, 1)
        .filter(|size| ITEM_BYTES.contains(size))
        .ok_or_else(|| "give a size between 1k and 1024m".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_as_memcached_parses_them() {
        assert_eq!(size("1m"), Ok(1 << 20));
        assert_eq!(size("512k"), Ok(512 << 10));
        assert_eq!(size("1024"), Ok(1024));
        assert_eq!(size("1g"), Ok(1 << 30));
        for wrong in ["", "m", "1023", "1025m", "x", "2g", "99999999999999999999m"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
