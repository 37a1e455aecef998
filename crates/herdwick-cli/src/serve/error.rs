//! Why `serve` did not start a server, and the exit code of each reason.

use std::{io, path::PathBuf};

use herdwick::etcd::EtcdUsage;
use herdwick_server::StartError;

use super::{file::FileError, process::ProcessError};
use crate::exit::Exit;

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("{0}")]
    Refused(&'static str),
    #[error("{path} is given twice, by {first} and by {second}; give each a file of its own")]
    SameFile {
        path: PathBuf,
        first: &'static str,
        second: &'static str,
    },
    #[error("{path}: {reason}")]
    Flags { path: PathBuf, reason: String },
    /// Any other, about a flag that is set in the file of `--config`.
    #[error("{path}:{line}: {error}")]
    Flag {
        path: PathBuf,
        line: usize,
        error: Box<Self>,
    },
    #[error(
        "cannot make sense of the address {host:?} (-l): {source}; give for example 127.0.0.1, or \
         [::1]:11211 for IPv6 with a port"
    )]
    Listen { host: String, source: io::Error },
    #[error("cannot read the secret (--offload-secret) in {path}: {source}")]
    OffloadSecret { path: PathBuf, source: io::Error },
    #[error(
        "{path} holds no secret (--offload-secret): it is 32 hex digits, as by openssl rand -hex 16"
    )]
    OffloadDigits { path: PathBuf },
    #[error("--etcd, --cluster: {0}")]
    Etcd(#[from] EtcdUsage),
    #[error("cannot start the thread that registers in etcd: {0}")]
    EtcdThread(io::Error),
    #[error("cannot watch for signals: {0}")]
    Signals(io::Error),
}

impl From<&ServeError> for Exit {
    fn from(error: &ServeError) -> Self {
        match error {
            ServeError::Flag { error, .. } => Self::from(&**error),
            ServeError::Start(error) if error.is_usage() => Self::Usage,
            // It has found the same command line wrong.
            ServeError::Process(ProcessError::Background { code })
                if *code == Some(Self::Usage as i32) =>
            {
                Self::Usage
            }
            ServeError::File(_)
            | ServeError::Refused(_)
            | ServeError::SameFile { .. }
            | ServeError::Flags { .. }
            | ServeError::Listen { .. }
            | ServeError::OffloadSecret { .. }
            | ServeError::OffloadDigits { .. }
            | ServeError::Etcd(_)
            | ServeError::Process(ProcessError::NoUser { .. }) => Self::Usage,
            ServeError::Start(_)
            | ServeError::Process(_)
            | ServeError::Signals(_)
            | ServeError::EtcdThread(_) => Self::Failed,
        }
    }
}
