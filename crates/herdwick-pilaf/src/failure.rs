//! Why a client's connection has failed.

use herdwick_fabric::Status;

/// Why a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A queue pair failed.
    #[error(
        "the connection to the server failed ({0:?}): it has stopped, or has ended the connection; \
         connect again"
    )]
    Link(Status),
    /// The server does not answer.
    #[error("the server does not answer: it has stopped or hangs; connect again")]
    Silent,
    /// A reply makes no sense.
    #[error("the server's reply makes no sense: it is of another version")]
    Protocol,
}
