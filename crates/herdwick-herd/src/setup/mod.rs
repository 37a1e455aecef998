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

use herdwick_fabric::{
    Access, ConnectError, ControlError, CqId, Device, ImportError, OpenError, PdId, QpId, QpSpec,
    RegionId, RegionSpec, Scope, Transport,
};

use crate::{AttachError, ClientSetupError, RequestPath, ServerOptionsError};

/// Why an end cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The port cannot be opened.
    #[error("opening a port: {0}")]
    Open(#[from] OpenError),
    /// The provider refused an object.
    #[error("setting up a port: {0}")]
    Control(#[from] ControlError),
    /// The ticket to a worker's domain was not accepted.
    #[error("the server's ticket: {0}")]
    Import(#[from] ImportError),
    /// The peer's endpoints make no sense.
    #[error("connecting: {0}")]
    Connect(#[from] ConnectError),
    /// The worker's state machine refuses its options.
    #[error("setting up HERD's server: {0}")]
    Server(#[from] ServerOptionsError),
    /// The worker's state machine refuses this client.
    #[error("attaching a client: {0}")]
    Attach(#[from] AttachError),
    /// The client's state machine refuses its options.
    #[error("setting up HERD's client: {0}")]
    Client(#[from] ClientSetupError),
}

/// A queue pair to be made.
struct QueuePair {
    pd: PdId,
    transport: Transport,
    send_cq: CqId,
    recv_cq: CqId,
    send_depth: usize,
    recv_depth: usize,
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

impl QueuePair {
    fn create<D: Device>(&self, device: &D, port: &mut D::Port) -> Result<QpId, ControlError> {
        let spec = QpSpec {
            pd: self.pd,
            transport: self.transport,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            send_depth: self.send_depth,
            recv_depth: self.recv_depth,
        };
        device.create_qp(port, &spec)
    }
}

/// Allocates memory in `pd` without remote rights.
fn local_memory<D: Device>(
    device: &D,
    port: &mut D::Port,
    pd: PdId,
    len: usize,
) -> Result<RegionId, ControlError> {
    let (access, scope) = (Access::LOCAL, Scope::Pd);
    device.allocate_region(port, pd, &RegionSpec { len, access, scope })
}
