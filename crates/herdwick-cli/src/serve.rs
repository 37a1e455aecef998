use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{ArgAction, Args};
use herdwick_server::{Config, Leases, Listen, PORT, Server, StartError};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

/// Serve memcached clients. The flags are memcached's.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// TCP port; 0 takes a free one
    #[arg(short = 'p', long = "port", value_name = "NUM", default_value_t = PORT)]
    port: u16,
    /// Addresses to listen on, ADDR or ADDR:PORT, separated by commas
    #[arg(
        short = 'l',
        long = "listen",
        value_name = "ADDR",
        default_value = "127.0.0.1"
    )]
    listen: String,
    /// Unix socket to listen on, instead of TCP
    #[arg(short = 's', long = "unix-socket", value_name = "FILE")]
    unix_socket: Option<PathBuf>,
    /// Mode of the unix socket, in octal
    #[arg(short = 'a', long = "unix-mask", value_name = "MODE", default_value = "0700", value_parser = octal)]
    unix_mode: u32,
    /// Memory for items, in megabytes
    #[arg(
        short = 'm',
        long = "memory-limit",
        value_name = "MB",
        default_value_t = 64
    )]
    memory: usize,
    /// Most connections at a time
    #[arg(
        short = 'c',
        long = "conn-limit",
        value_name = "NUM",
        default_value_t = 1024
    )]
    connections: usize,
    /// Workers, each a thread with a partition of the data [default: allowed CPUs, at most 4]
    #[arg(short = 't', long = "threads", alias = "workers", value_name = "NUM")]
    workers: Option<usize>,
    /// Largest item, in bytes, or with k or m behind it
    #[arg(short = 'I', long = "max-item-size", value_name = "SIZE", default_value = "1m", value_parser = size)]
    item_bytes_max: usize,
    /// Microseconds that a worker looks for work before it sleeps
    #[arg(long = "spin", value_name = "US", default_value_t = 20)]
    spin: u64,
    /// Shared memory for clients on this host
    #[arg(long = "shm", value_name = "auto|off", default_value = "auto", value_parser = on_or_off)]
    shm: bool,
    /// Where to make the private directory of the lease socket [default: the one for temporary
    /// files]
    #[arg(long = "shm-dir", value_name = "DIR")]
    shm_directory: Option<PathBuf>,
    /// Say more; as often as you like
    #[arg(short = 'v', long = "verbose", action = ArgAction::Count)]
    verbosity: u8,
}

/// Serves until a signal ends it.
pub(crate) fn run(args: &ServeArgs) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("herdwick: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Why there is nothing to serve.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("cannot make sense of the address {text:?} (-l): {source}; give for example 127.0.0.1")]
    Listen { text: String, source: io::Error },
    #[error("cannot watch for signals: {0}")]
    Signals(io::Error),
}

fn serve(args: &ServeArgs) -> Result<(), ServeError> {
    // Before the server starts, so that no signal is missed.
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(ServeError::Signals)?;
    let server = herdwick_server::spawn(config(args)?)?;
    println!("{}", ready(&server, args.memory));
    if let Some(signal) = signals.forever().next()
        && args.verbosity > 0
    {
        eprintln!("herdwick: signal {signal}, draining");
    }
    server.shutdown();
    Ok(())
}

/// The one line on stdout.
fn ready(server: &Server, memory: usize) -> String {
    let addresses: Vec<String> = server.addresses().iter().map(ToString::to_string).collect();
    let workers = server.workers();
    format!(
        "herdwick {} ready on {} ({workers} {}, {memory} MiB)",
        env!("CARGO_PKG_VERSION"),
        addresses.join(", "),
        if workers == 1 { "worker" } else { "workers" },
    )
}

fn config(args: &ServeArgs) -> Result<Config, ServeError> {
    let listen = match &args.unix_socket {
        Some(path) => Listen::Unix {
            path: path.clone(),
            mode: args.unix_mode,
        },
        None => Listen::Tcp(addresses(&args.listen, args.port)?),
    };
    Ok(Config {
        listen,
        memory_bytes: args.memory.saturating_mul(1 << 20),
        connections_max: args.connections,
        workers: args.workers,
        item_bytes_max: args.item_bytes_max,
        spin: Duration::from_micros(args.spin),
        verbosity: args.verbosity,
        leases: args.shm.then(|| leases(args)),
        ..Config::default()
    })
}

fn leases(args: &ServeArgs) -> Leases {
    let default = Leases::default();
    Leases {
        directory: args.shm_directory.clone().unwrap_or(default.directory),
        // Whoever may open the one socket may open the other.
        mode: args.unix_socket.as_ref().map(|_| args.unix_mode),
        clients_max: default.clients_max,
    }
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "auto" => Ok(true),
        "off" => Ok(false),
        _ => Err("give auto or off".into()),
    }
}

/// `ADDR[:PORT]`, separated by commas.
fn addresses(text: &str, port: u16) -> Result<Vec<SocketAddr>, ServeError> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let bare = part.trim().trim_start_matches('[').trim_end_matches(']');
        // An IPv6 address has colons of its own, so the form without port is tried first.
        let found = (bare, port)
            .to_socket_addrs()
            .or_else(|_| part.trim().to_socket_addrs());
        let found = found.map_err(|source| ServeError::Listen {
            text: part.to_owned(),
            source,
        })?;
        all.extend(found);
    }
    Ok(all)
}

fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("give a mode in octal, for example 0700".into()),
    }
}

/// Bounds of memcached's `-I`.
const ITEM_BYTES: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 30;

fn size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    digits
        .parse::<usize>()
        .ok()
        .and_then(|count| count.checked_mul(unit))
        .filter(|size| ITEM_BYTES.contains(size))
        .ok_or_else(|| "give a size between 1k and 1024m".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_carry_ports() {
        let text = "127.0.0.1,127.0.0.2:7,::1,[::1]:8,[::1]";
        let all = addresses(text, 9).unwrap();
        let said: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "127.0.0.1:9",
                "127.0.0.2:7",
                "[::1]:9",
                "[::1]:8",
                "[::1]:9"
            ]
        );
    }

    #[test]
    fn sizes_read_as_memcached_reads_them() {
        assert_eq!(size("1m"), Ok(1 << 20));
        assert_eq!(size("512k"), Ok(512 << 10));
        assert_eq!(size("1024"), Ok(1024));
        for wrong in ["", "m", "1023", "1025m", "x", "1g", "99999999999999999999m"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
