//! Newtypes for the ids of a port's objects and for the numbers that appear in packets.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $inner);
    };
}

id!(
    /// A queue pair of one port. Peers know it by its [`Qpn`] instead.
    QpId(u32)
);
id!(
    /// A completion queue of one port.
    CqId(u32)
);
id!(
    /// A protection domain of one port.
    PdId(u32)
);
id!(
    /// A memory region of one port.
    RegionId(u32)
);
id!(
    /// An address handle of one port: a destination of UD SENDs.
    AddressHandle(u32)
);
id!(
    /// The key that opens a region to a peer: 32 bits. A provider in software draws them at random; an
    /// RNIC chooses as it likes, and may use one again when its region is freed.
    Rkey(u32)
);
id!(
    /// A queue pair number as peers see it: 24 bits.
    Qpn(u32)
);
id!(
    /// A packet sequence number: 24 bits.
    Psn(u32)
);
