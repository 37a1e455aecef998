//! What a caller specifies when it opens a port or makes a domain, region, queue or queue pair.

use crate::{CqId, PdId, QpId};

/// How many objects of each kind one port can hold; allocated when it is opened, never grown.
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

/// The three transports of Table 1 of the HERD paper.
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
    /// WRITE alone: the right that HERD grants on its request memory.
    pub const WRITE: Self = Self {
        remote_write: true,
        ..Self::LOCAL
    };
    /// READ alone.
    pub const READ: Self = Self {
        remote_read: true,
        ..Self::LOCAL
    };
    /// All remote rights.
    pub const ALL: Self = Self {
        remote_read: true,
        remote_write: true,
        remote_atomic: true,
    };
}

/// The queue pairs through which the rkey of a region is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of its protection domain.
    Pd,
    /// This one alone (as with a type-2 memory window).
    Qp(QpId),
}

/// A region to allocate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Length in bytes; rounded up to whole 8-byte words.
    pub len: usize,
    /// Remote rights.
    pub access: Access,
    /// The queue pairs that accept its rkey.
    pub scope: Scope,
}

impl RegionSpec {
    /// Memory without remote rights.
    #[must_use]
    pub const fn local(len: usize) -> Self {
        Self {
            len,
            access: Access::LOCAL,
            scope: Scope::Pd,
        }
    }
}

/// A completion queue to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CqSpec {
    /// Number of entries. Must be at least the sum of the depths of the queues that complete into
    /// it.
    pub depth: usize,
}

/// A queue pair to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpSpec {
    /// Its protection domain.
    pub pd: PdId,
    /// Its transport.
    pub transport: Transport,
    /// The completion queue of its sends.
    pub send_cq: CqId,
    /// The completion queue of its receives.
    pub recv_cq: CqId,
    /// Maximum outstanding sends.
    pub send_depth: usize,
    /// Maximum outstanding RECVs; 0 for a queue pair that only sends, or receives WRITEs alone.
    pub recv_depth: usize,
}

/// The states of a queue pair that callers can distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Made, not connected: accepts RECVs.
    Init,
    /// Sends and receives.
    ReadyToSend,
    /// Failed: everything posted completes as flushed.
    Error,
}
