//! The objects of HERD's two ends on a port: which queue pairs, queues and memory each makes, and
//! how large.
//!
//! ```text
//!             client, at each worker                    worker
//! requests    UC queue pair, sends               ->     UC queue pair of each client
//!             overflow bodies, staged                   lines and overflow areas of each client
//! replies     UD queue pair, window + slack RECVs <-    UD queue pairs, each for some clients
//!             memory for large replies                  memory for large replies
//! ```
//!
//! That is [`RequestPath::UcWrite`](crate::RequestPath); with `RcWrite` RC stands for UC. With
//! `UdSend` a client has one queue pair at each worker, the one for replies, and the worker has a
//! UD queue pair for each client, with window + slack RECVs.
//!
//! The caller and the provider decide how a client obtains its domain.

mod client;
mod server;

pub use client::{ClientEnd, ClientSetup, ClientTerms, RECV_SLACK};
pub use server::{Admitted, LeaseResources, ServerEnd, ServerTerms};

use herdwick_fabric::Transport;

use crate::{AttachError, ClientSetupError, RequestPath, ServerOptionsError};

/// Why an end cannot be set up.
pub type SetupError = herdwick_fabric::SetupError<MachineError>;

/// A state machine refuses its options or its peer.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The worker's options.
    #[error("setting up HERD's server: {0}")]
    Server(#[from] ServerOptionsError),
    /// This client, at a worker.
    #[error("attaching a client: {0}")]
    Attach(#[from] AttachError),
    /// The client's options.
    #[error("setting up HERD's client: {0}")]
    Client(#[from] ClientSetupError),
}

impl From<MachineError> for SetupError {
    fn from(error: MachineError) -> Self {
        Self::Refused(error)
    }
}

impl RequestPath {
    /// The transport of the queue pairs that carry requests.
    fn transport(self) -> Transport {
        match self {
            Self::UcWrite => Transport::Uc,
            Self::RcWrite => Transport::Rc,
            Self::UdSend => Transport::Ud,
        }
    }
}
