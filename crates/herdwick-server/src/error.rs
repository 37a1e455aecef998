//! Why a server did not start.

use std::{io, net::SocketAddr, path::PathBuf};

use herdwick_herd::hello::WORKERS_MAX as LEASE_WORKERS_MAX;
use herdwick_mica::StoreError;

use crate::{
    auth::AuthError,
    config::{Address, WORKERS_MAX},
    memory_file::MemoryFileError,
    tls::TlsError,
};

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
    /// Datagrams carry no password.
    #[error("UDP (-U) has no authentication: leave it out, or -Y")]
    UdpWithUsers,
    /// Passwords are shown in the text protocol.
    #[error("the binary protocol (-B binary) has no users and passwords here: leave it out, or -Y")]
    BinaryWithUsers,
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
    /// The memory is too little for any server.
    #[error("-m {given} is too little for one worker and small items; give at least -m {needed}")]
    Memory {
        /// What was given, in MiB.
        given: usize,
        /// What would do, in MiB.
        needed: usize,
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

impl StartError {
    /// Whether the configuration is wrong by itself: on no system would it start.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Workers { .. }
                | Self::LeaseWorkers { .. }
                | Self::Pinned { .. }
                | Self::PinnedTo { .. }
                | Self::NoConnections
                | Self::UdpWithUsers
                | Self::BinaryWithUsers
                | Self::NoAddress
                | Self::Memory { .. }
                | Self::Auth(_)
                | Self::Tls(_)
        )
    }
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
