//! Errors of control calls and posts. Errors of posted work are completion statuses instead.

use crate::{QpState, Transport};

/// A port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A requested limit exceeds that of the device.
    #[error("{what}: asked for {asked}, the device allows {allowed}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// The requested value.
        asked: usize,
        /// The device's limit.
        allowed: usize,
    },
    /// The operating system or driver refused.
    #[cfg(feature = "std")]
    #[error("{what}: {source}")]
    System {
        /// The call that failed.
        what: &'static str,
        /// Its error.
        source: std::io::Error,
    },
}

/// A control call failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The id names no such object of this port.
    #[error("no such {0} on this port")]
    Unknown(&'static str),
    /// Other objects still use the object.
    #[error("the {0} is still in use")]
    InUse(&'static str),
    /// A limit of the port or device is reached.
    #[error("{what}: the limit is {limit}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// Its value.
        limit: usize,
    },
    /// The provider does not support this.
    #[error("this provider has no {0}")]
    Unsupported(&'static str),
    /// The operating system or driver refused.
    #[cfg(feature = "std")]
    #[error("{what}: {source}")]
    System {
        /// The call that failed.
        what: &'static str,
        /// Its error.
        source: std::io::Error,
    },
}

/// A queue pair could not be connected, or a peer could not be addressed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The queue pair is in the wrong state for the call.
    #[error("queue pair is in state {0:?}")]
    State(QpState),
    /// The queue pair has the wrong transport for the call.
    #[error("not possible on a {0:?} queue pair")]
    Transport(Transport),
    /// The peer's endpoint is malformed, or was made by another provider.
    #[error("the peer's endpoint makes no sense: {0}")]
    Endpoint(&'static str),
    /// A control call failed.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// A post was refused. Nothing of the batch was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue has no room for the batch. Poll completions, then post again.
    #[error("the queue is full")]
    Full,
    /// The id names no queue pair of this port.
    #[error("no such queue pair")]
    UnknownQp,
    /// The queue pair is not in a state that sends.
    #[error("queue pair is in state {0:?}")]
    State(QpState),
    /// The transport does not carry the verb (HERD paper, Table 1), or an address handle is missing
    /// or not allowed.
    #[error("not possible on a {0:?} queue pair")]
    Transport(Transport),
    /// A local range leaves its region, or the payload exceeds what the transport carries.
    #[error("payload or local range is out of bounds")]
    Bounds,
}
