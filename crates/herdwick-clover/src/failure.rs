//! Why a client's connections have failed.

use herdwick_fabric::Status;

/// Why a client cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The queue pair to the metadata server failed.
    #[error(
        "the connection to the metadata server failed ({0:?}): it has stopped, or has ended the \
         connection; connect again"
    )]
    Server(Status),
    /// A queue pair to a data node failed.
    #[error(
        "the connection to a data node failed ({0:?}): it has stopped, or has ended the connection; \
         connect again"
    )]
    Node(Status),
    /// Metadata server or data node do not answer.
    #[error(
        "the metadata server or a data node does not answer: it has stopped or hangs; connect again"
    )]
    Silent,
    /// The data nodes have different links behind an entry: only this request failed.
    #[error(
        "the data nodes' replicas differ, since one was overwritten; start the metadata server without it"
    )]
    Divided,
    /// A reply makes no sense.
    #[error("the metadata server's reply makes no sense: it is of another version")]
    Protocol,
}
