//! Why a measurement returned no report.

use crate::{
    cache::TraceError,
    config::{ConfigError, Fabric},
    design::DesignError,
    lines::EndpointError,
    server::ServerError,
    target::DriveError,
    verb::VerbError,
};

/// Why a measurement returned no report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Invalid options.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server did not start or did not answer.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// More idle connections than this process may have descriptors.
    #[error(
        "--idle-connections needs {needed} descriptors, and this process may have {limit}: raise \
         it (ulimit -Hn), or ask for fewer"
    )]
    Descriptors {
        /// Descriptors needed.
        needed: u64,
        /// Hard limit of descriptors.
        limit: u64,
    },
    /// A trace could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The connection to the server failed during the load.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// The server refused to store some of the keys.
    #[error(
        "the server refused to store {refused} of {keys} keys: give it more memory (-m), or ask for fewer --keys"
    )]
    Fill {
        /// Keys refused.
        refused: u64,
        /// Keys in total.
        keys: u64,
    },
    /// The server stopped answering while the keys were stored.
    #[error("the server stopped answering after it had stored {answered} keys")]
    Stalled {
        /// Keys stored until then.
        answered: u64,
    },
    /// The bare store does not fit into its memory.
    #[error(transparent)]
    Store(#[from] herdwick_mica::StoreError),
    /// The HERD endpoints of the echo or of a lease could not be created.
    #[error(transparent)]
    Endpoints(#[from] EndpointError),
    /// The verbs asked for cannot be measured.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// The designs asked for cannot be measured.
    #[error(transparent)]
    Design(#[from] DesignError),
    /// The server does not offer that fabric.
    #[error(
        "no {fabric} to this server: {reason}; `herdwick doctor` shows what works on this host"
    )]
    NoTransport {
        /// The fabric.
        fabric: Fabric,
        /// Why not.
        reason: String,
    },
    /// A client thread panicked; its message is on standard error.
    #[error("a client thread panicked; its message is on standard error")]
    Panicked,
}
