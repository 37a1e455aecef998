//! The fabric over shared memory, between processes of one host: the CPU that posts is the RNIC.
//!
//! **The file is the unit of protection.** A protection domain is a pair of sealed memory files
//! between one host port and one guest port: `up`, which the guest may write anywhere, and `down`,
//! which it can only read. The poster's own code checks rkeys, ranges and rights, so they catch
//! mistakes, not malice; malice is kept inside the pair, for the host believes nothing that it
//! finds in `up`, and no other domain's memory is mapped by that guest.
//!
//! **Nobody waits for anybody.** There is no lock in shared memory and nothing to repair: a peer
//! that dies at any instant leaves a ring that is not read, or not filled, any more.
//!
//! A WRITE is word stores, a READ word loads, an atomic the CPU's own; a SEND goes through the
//! message ring of the receiving queue pair, and is done when it lies there.
#![forbid(unsafe_code)]

mod area;
mod bell;
mod bytes;
mod control;
mod device;
mod discard;
mod drops;
mod file;
mod layout;
#[cfg(all(test, loom))]
mod model;
mod park;
mod pd;
mod port;
mod qp;
mod recv;
mod ring;
mod send;
mod ticket;

pub use device::{PdSize, ShmDevice};
pub use port::ShmPort;
pub use ticket::{AttachError, PdTicket};

/// Most bytes of one datagram.
pub const DATAGRAM_BYTES_MAX: usize = 4096;
/// Most bytes of one RC or UC message. The ring of a connected queue pair that takes RECVs has room
/// for one such, at least.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Most bytes of an inline payload.
pub const INLINE_BYTES_MAX: usize = 4096;

/// Bytes of its domain that a UD queue pair of `recvs` outstanding RECVs takes for good, each of them
/// for a datagram of [`DATAGRAM_BYTES_MAX`]: what
/// [`PdSize::guest_inbound`] must hold for each of a guest's, [`PdSize::host_inbound`] for each of
/// a host's.
#[must_use]
pub fn datagram_ring_bytes(recvs: usize) -> usize {
    ring::Shape::for_datagrams(recvs).bytes()
}
