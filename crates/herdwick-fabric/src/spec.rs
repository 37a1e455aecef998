use crate::{CqId, PdId, QpId};

/// What one port will hold at most; sized at opening, never grown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortLimits {
    /// Protection domains.
    pub pds: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Regions.
    pub regions: usize,
    /// Address handles.
    pub addresses: usize,
}

impl Default for PortLimits {
    fn default() -> Self {
        Self {
            pds: 64,
            qps: 256,
            cqs: 16,
            regions: 256,
            addresses: 256,
        }
    }
}

/// The three transports of Table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// Rights on a region. The owner's CPU may always load and store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Peers may READ.
    pub remote_read: bool,
    /// Peers may WRITE.
    pub remote_write: bool,
    /// Peers may use atomics.
    pub remote_atomic: bool,
}

impl Access {
    /// No remote right.
    pub const LOCAL: Self = Self {
        remote_read: false,
        remote_write: false,
        remote_atomic: false,
    };
    /// WRITE alone: what HERD grants on its request memory.
    pub const WRITE: Self = Self {
        remote_write: true,
        ..Self::LOCAL
    };
    /// READ alone.
    pub const READ: Self = Self {
        remote_read: true,
        ..Self::LOCAL
    };
    /// Everything.
    pub const ALL: Self = Self {
        remote_read: true,
        remote_write: true,
        remote_atomic: true,
    };
}

/// Through which queue pairs a region's rkey works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Any of its protection domain.
    Pd,
    /// This one alone (a type-2 memory window's rule).
    Qp(QpId),
}

/// A region to be allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Length in bytes; rounded up to whole words.
    pub len: usize,
    /// Remote rights.
    pub access: Access,
    /// Where its rkey works.
    pub scope: Scope,
}

/// A completion queue to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CqSpec {
    /// Entries it holds. The sum of the queue depths that feed it must fit.
    pub depth: usize,
}

/// A queue pair to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpSpec {
    /// Its protection domain.
    pub pd: PdId,
    /// Its transport.
    pub transport: Transport,
    /// Where its sends complete.
    pub send_cq: CqId,
    /// Where its receives complete.
    pub recv_cq: CqId,
    /// Outstanding sends.
    pub send_depth: usize,
    /// Outstanding RECVs; 0 for one that only sends, or is only written to.
    pub recv_depth: usize,
}

/// The states of a queue pair that callers can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Made, not connected: takes RECVs.
    Init,
    /// Sends and receives.
    ReadyToSend,
    /// Failed: everything posted completes as flushed.
    Error,
}
