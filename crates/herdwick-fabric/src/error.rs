use crate::{QpState, Transport};

/// A port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A limit asked for is beyond the device's.
    #[error("{what}: asked for {asked}, the device allows {allowed}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// What was asked for.
        asked: usize,
        /// What there is.
        allowed: usize,
    },
    /// The operating system or driver refused.
    #[cfg(feature = "std")]
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
}

/// A control call failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The id names nothing on this port.
    #[error("no such {0} on this port")]
    Unknown(&'static str),
    /// Other objects still use it.
    #[error("the {0} is still in use")]
    InUse(&'static str),
    /// A bound of the port or device is reached.
    #[error("{what}: the limit is {limit}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// Its value.
        limit: usize,
    },
    /// The provider lacks this.
    #[error("this provider has no {0}")]
    Unsupported(&'static str),
    /// The operating system or driver refused.
    #[cfg(feature = "std")]
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
}

/// A queue pair could not be connected, or a peer not addressed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The call needs another state.
    #[error("queue pair is in state {0:?}")]
    State(QpState),
    /// The call needs another transport.
    #[error("not possible on a {0:?} queue pair")]
    Transport(Transport),
    /// The peer's endpoint is malformed or of another world.
    #[error("the peer's endpoint makes no sense: {0}")]
    Endpoint(&'static str),
    /// As [`ControlError`].
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// A post was refused whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue has no room for the batch now; poll completions, then post again.
    #[error("the queue is full")]
    Full,
    /// The id names no queue pair of this port.
    #[error("no such queue pair")]
    UnknownQp,
    /// The queue pair is not in a state that sends.
    #[error("queue pair is in state {0:?}")]
    State(QpState),
    /// The verb does not exist on this transport (HERD Table 1), or an address handle is missing
    /// or out of place.
    #[error("not possible on a {0:?} queue pair")]
    Transport(Transport),
    /// A local range leaves its region, or the payload exceeds what this transport carries.
    #[error("payload or local range is out of bounds")]
    Bounds,
}
