//! Why `herdwick bench` printed no report, and its exit code for that.

use std::{io, path::PathBuf};

use herdwick_bench::{BenchError, DriveError, EndpointError, ServerError};

use crate::{client, exit::Exit};

/// Why a benchmark printed no report.
#[derive(Debug, thiserror::Error)]
pub(super) enum BenchFailure {
    #[error("{0} is measured alone: `herdwick bench {0}`")]
    Alone(String),
    #[error(
        "{option} is for a server that runs already: name it with --server, or leave {option} out"
    )]
    NoServer { option: &'static str },
    #[error("{option} has no effect on {systems}, only on {readers}; leave it out")]
    Unread {
        option: String,
        systems: String,
        readers: String,
    },
    #[error(
        "{option} is for a server that the benchmark starts, and --server names one that runs; leave \
         one of them out"
    )]
    ForeignServer { option: String },
    #[error("{option}: keys and values are those of the traces (--trace); leave one of them out")]
    OfTrace { option: String },
    #[error(
        "{option} is for {fabric}, which --fabric does not name; leave {option} out, or add {fabric}"
    )]
    OtherFabric {
        option: String,
        fabric: &'static str,
    },
    #[error("{} cannot be read: {source}; give another (--against)", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "{} is no report that --json has written: {source}; give another (--against)",
        path.display()
    )]
    Baseline {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{} cannot be written: {source}; give another file ({option})", path.display())]
    Unwritable {
        option: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("cannot write to standard output: {0}")]
    Unshown(io::Error),
    #[error("--hdr: no latencies are measured here; leave it out")]
    NoLatencies,
    #[error("{}", client::complaint(server, source))]
    Access {
        server: String,
        source: client::ClientFailure,
    },
    #[error("{}", client::error_text(server, source))]
    Server {
        server: String,
        source: herdwick::Error,
    },
    #[error(transparent)]
    Bench(BenchError),
}

impl BenchFailure {
    /// An error of the benchmark; one of the connection to `server` gets the client's words and code.
    pub(super) fn of(server: Option<&str>, error: BenchError) -> Self {
        let server = |address: &str| server.unwrap_or(address).to_owned();
        match error {
            BenchError::Server(ServerError::Client {
                server: address,
                source,
            }) => Self::Server {
                server: server(&address.to_string()),
                source,
            },
            BenchError::Drive(DriveError::Unreachable(source)) => Self::Server {
                server: server("the server"),
                source,
            },
            error => Self::Bench(error),
        }
    }
}

impl From<&BenchFailure> for Exit {
    fn from(failure: &BenchFailure) -> Self {
        match failure {
            BenchFailure::Alone(_)
            | BenchFailure::NoServer { .. }
            | BenchFailure::Unread { .. }
            | BenchFailure::ForeignServer { .. }
            | BenchFailure::OfTrace { .. }
            | BenchFailure::OtherFabric { .. }
            | BenchFailure::Unreadable { .. }
            | BenchFailure::Baseline { .. }
            | BenchFailure::NoLatencies => Self::Usage,
            BenchFailure::Unwritable { .. } | BenchFailure::Unshown(_) => Self::Failed,
            BenchFailure::Access { source, .. } => source.into(),
            BenchFailure::Server { source, .. } => source.into(),
            BenchFailure::Bench(error) => error.into(),
        }
    }
}

impl From<&BenchError> for Exit {
    fn from(error: &BenchError) -> Self {
        match error {
            BenchError::Config(_)
            | BenchError::Verb(_)
            | BenchError::Design(_)
            | BenchError::Trace(_)
            | BenchError::Server(ServerError::Address { .. })
            | BenchError::Endpoints(
                EndpointError::Window(_)
                | EndpointError::Value
                | EndpointError::PilafValue
                | EndpointError::PaperItem
                | EndpointError::CloverValue,
            )
            | BenchError::Drive(DriveError::TooLarge(_)) => Self::Usage,
            BenchError::Server(ServerError::Client { source, .. })
            | BenchError::Drive(DriveError::Unreachable(source)) => source.into(),
            BenchError::Drive(
                DriveError::Io(_)
                | DriveError::Closed
                | DriveError::Reply(_)
                | DriveError::Paper(_),
            )
            | BenchError::Stalled { .. } => Self::Unreachable,
            BenchError::Server(ServerError::NotStarted { .. })
            | BenchError::Drive(
                DriveError::ForeignValue(_)
                | DriveError::Operation
                | DriveError::Verb(_)
                | DriveError::Post(_),
            )
            | BenchError::Descriptors { .. }
            | BenchError::Fill { .. }
            | BenchError::Store(_)
            | BenchError::Endpoints(_)
            | BenchError::NoTransport { .. }
            | BenchError::Panicked => Self::Failed,
        }
    }
}
