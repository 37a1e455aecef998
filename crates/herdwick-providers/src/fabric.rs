//! The fabrics: one for each provider, the best first.

/// A fabric, by its provider; the least is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fabric {
    /// Shared memory, on the same host.
    Shm,
    /// An RDMA device, to any host that has one.
    Verbs,
    /// RoCEv2 over UDP, from any host.
    Roce,
}

impl Fabric {
    /// Every fabric, the best first.
    pub const ALL: [Self; 3] = [Self::Shm, Self::Verbs, Self::Roce];

    /// Returns its rank, 0 for the best: its place in [`Fabric::ALL`].
    #[must_use]
    pub const fn rank(self) -> usize {
        self as usize
    }
}
