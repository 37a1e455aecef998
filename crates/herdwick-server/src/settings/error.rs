//! [`StartError`]: why a server did not start.

use std::{io, net::SocketAddr, path::PathBuf};

use herdwick_herd::hello::WORKERS_MAX as LEASE_WORKERS_MAX;
use herdwick_mica::StoreError;
use herdwick_providers::{Fabric, ListenError};

use super::{
    WORKERS_MAX, auth_error::AuthError, file_error::MemoryFileError, listen_address::Address,
    tls::TlsError,
};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Fewer than 1 or more than [`WORKERS_MAX`] workers.
    #[error("{workers} workers: give between 1 and {WORKERS_MAX} (-t)")]
    Workers {
        /// The configured number.
        workers: usize,
    },
    /// More workers than a lease can name.
    #[error(
        "{workers} workers: fabrics ({}) are for at most {LEASE_WORKERS_MAX} (-t); do without them \
         ({}) for more",
        Fabric::list(Fabric::title, ", "),
        Fabric::list(Fabric::off, " ")
    )]
    LeaseWorkers {
        /// The configured number.
        workers: usize,
    },
    /// Fewer CPUs than pinned workers.
    #[error(
        "{workers} workers cannot stay on {cpus} CPUs (--pin); give fewer workers (-t), more CPUs, \
         or leave --pin out"
    )]
    Pinned {
        /// How many CPUs there are.
        cpus: usize,
        /// The configured number of workers.
        workers: usize,
    },
    /// A CPU that does not exist, or that this process may not use.
    #[error("CPU {cpu} (--pin) is not one that this process may use; `taskset -cp $$` lists those")]
    PinnedTo {
        /// The CPU's number.
        cpu: usize,
    },
    /// No connections are allowed.
    #[error("a server needs at least one connection (-c)")]
    NoConnections,
    /// The engine does not have what is configured.
    #[error("the engine {engine} (--engine) has not {what}: leave one of them out")]
    EngineWithout {
        /// The engine.
        engine: &'static str,
        /// What it does not have.
        what: &'static str,
    },
    /// One-sided reads beside what they exclude.
    #[error("one-sided reads (--one-sided-reads) do not go with {other}: leave one of them out")]
    OneSided {
        /// What they exclude.
        other: &'static str,
    },
    /// A secondary store of the engine HERD.
    #[error("a secondary store (--secondary) is of the engine clover: leave --engine herd out")]
    SecondaryEngine,
    /// Popular keys cannot be replicated so.
    #[error("--offload: {what}")]
    Offload {
        /// What is wrong.
        what: &'static str,
    },
    /// The engine Clover without a fabric, or whose data node or metadata server cannot be made.
    #[error("cannot start the engine clover: {0}")]
    Clover(String),
    /// UDP with authentication: datagrams carry no password.
    #[error("UDP (-U) has no authentication: remove -U, or remove -Y and -S")]
    UdpWithUsers,
    /// The binary protocol with the users of the text protocol.
    #[error("-Y is of the text protocol: remove -B binary, or give -S beside it for SASL")]
    BinaryWithUsers,
    /// Another protocol than the binary one with SASL, which only that has.
    #[error("SASL (-S) is of the binary protocol: remove -B or -S")]
    TextWithSasl,
    /// A host name without an address.
    #[error("there is no address to listen on; give one (-l)")]
    NoAddress,
    /// An address that the server already listens on, by an earlier one of its interfaces.
    #[error(
        "{address} is named twice (-l){}; leave one out",
        by_all(address, earlier)
    )]
    Twice {
        /// The address.
        address: SocketAddr,
        /// The earlier one: the same, or all addresses (`0.0.0.0`).
        earlier: SocketAddr,
    },
    /// Another process listens there.
    #[error("{address} is in use by another process; {}", in_use(address))]
    InUse {
        /// The address.
        address: Address,
    },
    /// The operating system refuses to listen there.
    #[error("cannot listen on {address}: {source}; {}", elsewhere(address, source))]
    Listen {
        /// The address.
        address: Address,
        /// The operating system's error.
        source: io::Error,
    },
    /// As [`Listen`](Self::Listen), for datagrams.
    #[error("cannot take datagrams on {address}: {source}; give another port (-U)")]
    ListenUdp {
        /// The address.
        address: SocketAddr,
        /// The operating system's error.
        source: io::Error,
    },
    /// The address for metrics cannot be bound.
    #[error(
        "cannot serve metrics on {address}: {source}; give another address or port (--metrics)"
    )]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// The operating system's error.
        source: io::Error,
    },
    /// The device of a configured fabric cannot be used.
    #[error(transparent)]
    Fabric(#[from] ListenError),
    /// The lease socket cannot be created.
    #[error(
        "cannot make a lease socket below {directory}: {source}; give another directory \
         (--shm-dir), or {}",
        without_local()
    )]
    Leases {
        /// The directory.
        directory: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The users' file cannot be used.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The TLS files cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Too little memory for any server.
    #[error("-m {given} is too little for one worker and small items; give at least -m {needed}")]
    Memory {
        /// The configured memory, in MiB.
        given: usize,
        /// Memory that suffices, in MiB.
        needed: usize,
    },
    /// The file for items cannot be used.
    #[error(transparent)]
    MemoryFile(#[from] MemoryFileError),
    /// A partition cannot be created.
    #[error("{0}; give less memory (-m)")]
    Store(StoreError),
    /// The operating system refused threads, polls or random bytes.
    #[error("the operating system refused {what}: {source}")]
    System {
        /// The resource.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

impl StartError {
    /// Returns whether the configuration itself is wrong, so that the server would start on no
    /// system.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Workers { .. }
                | Self::LeaseWorkers { .. }
                | Self::Pinned { .. }
                | Self::PinnedTo { .. }
                | Self::NoConnections
                | Self::SecondaryEngine
                | Self::Offload { .. }
                | Self::UdpWithUsers
                | Self::BinaryWithUsers
                | Self::TextWithSasl
                | Self::NoAddress
                | Self::Twice { .. }
                | Self::Memory { .. }
                | Self::Auth(_)
                | Self::Tls(_)
        )
    }
}

/// Returns the conversion of a system call's error into [`StartError::System`].
pub(crate) fn refused(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::System { what, source }
}

/// Returns how to do without the fabrics whose leases pass descriptors.
fn without_local() -> String {
    let without = |fabric: Fabric| format!("do without {} ({})", fabric.title(), fabric.off());
    Fabric::local().map(without).collect::<Vec<_>>().join(", ")
}

/// Returns in which other address the first one is contained, if they differ.
fn by_all(address: &SocketAddr, earlier: &SocketAddr) -> String {
    match address == earlier {
        true => String::new(),
        false => format!(": {earlier} includes it"),
    }
}

/// Returns how to find the process that listens on an address.
fn in_use(address: &Address) -> String {
    match address {
        Address::Tcp(address) => format!(
            "give another port (-p), or find it with: ss -ltnp 'sport = :{}'",
            address.port()
        ),
        Address::Unix(path) => {
            let path = path.display();
            format!("give another path (-s), or find it with: ss -lxp src {path}")
        }
    }
}

/// Returns a hint for an address that the operating system refuses.
fn elsewhere(address: &Address, source: &io::Error) -> &'static str {
    match (address, source.kind()) {
        // Beyond `sun_path` (unix(7)), as the library or the system refuses it.
        (Address::Unix(_), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename) => {
            "give a shorter path (-s)"
        }
        (Address::Unix(_), io::ErrorKind::AlreadyExists) => "remove it, or give another path (-s)",
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
