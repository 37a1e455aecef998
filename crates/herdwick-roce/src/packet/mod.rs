//! Packets as bytes, from the BTH to the ICRC: opcodes, headers, parsing and writing.

mod headers;
mod opcode;
mod parse;
mod psn;
mod syndrome;
mod write;

pub use headers::{
    Aeth, AtomicAckEth, AtomicEth, BTH_BYTES, Bth, BthFlags, Deth, ICRC_BYTES, Immediate, PKEY,
    Reth,
};
pub use opcode::{CONGESTION, CONGESTION_BYTES, Class, Operation, PacketOp, Place};
pub use parse::{Malformed, Packet};
pub use psn::Psn24;
pub use syndrome::{Nak, Syndrome, rnr_delay};
pub use write::{Head, pad_of};

pub(crate) use psn::LOW_24;
