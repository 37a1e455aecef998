//! Why a system's objects could not be made on a port: one error for all systems.

use std::convert::Infallible;

use crate::{ConnectError, ControlError, ImportError, OpenError, PostError};

/// An end of a system could not be set up. `S` is what the system itself refuses; a system that
/// refuses nothing has none.
#[derive(Debug, thiserror::Error)]
pub enum SetupError<S = Infallible> {
    /// The port cannot be opened.
    #[error("opening a port: {0}")]
    Open(#[from] OpenError),
    /// The provider refused an object.
    #[error("setting up a port: {0}")]
    Control(#[from] ControlError),
    /// A ticket of the server was not accepted.
    #[error("the server's ticket: {0}")]
    Import(#[from] ImportError),
    /// The peer's endpoints make no sense.
    #[error("connecting: {0}")]
    Connect(#[from] ConnectError),
    /// RECVs cannot be posted.
    #[error("posting RECVs: {0}")]
    Post(#[from] PostError),
    /// The system refuses its options, its peer or the fabric.
    #[error(transparent)]
    Refused(S),
}
