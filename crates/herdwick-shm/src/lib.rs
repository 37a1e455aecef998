//! The fabric over shared memory, between processes of one host: the posting CPU executes the verb.
//!
//! Start with [`ShmDevice`]. `layout` has the bytes of a domain, `ring` the message ring (with its
//! loom models), `send` and `recv` the data path, `park` and `wakeup` the sleeping.
//!
//! **The file is the unit of protection.** A protection domain is a pair of sealed memory files
//! between a host's port and a client's (`client`) port: `up`, which the client may write anywhere,
//! and `down`, which it can only read. The poster's own code checks rkeys, ranges and rights, so
//! they catch mistakes, not attacks; an attack is confined to the pair, because the host trusts
//! nothing that it reads in `up`, and a client maps no other domain's memory.
//!
//! **No side waits for another.** There is no lock in shared memory and nothing to repair: a peer
//! that dies at any instant leaves a ring that is no longer read, or no longer filled. A client looks
//! every 1,024 passes, and when it wakes, whether its host's process still runs; if not, its RC queue
//! pairs fail, with [`RetryExceeded`](herdwick_fabric::Status::RetryExceeded) for the oldest READ.
//!
//! A WRITE is stores of words, an atomic is the CPU's own; a SEND is copied into the message ring of
//! the receiving queue pair, and is complete when it is there. A READ is loads of words by the poll
//! that completes it; its post only prefetches, so that a window of READs overlaps its cache misses.
//!
//! Circular import with `ring` and `layout`: they take the sizes of the largest message and datagram from this
//! page, which exports what others use of them.
#![forbid(unsafe_code)]

mod area;
mod bytes;
mod control;
mod data;
mod device;
mod discard;
mod drops;
mod entry;
mod file;
mod files;
mod imported;
mod layout;
#[cfg(all(test, loom))]
mod model;
mod outbound;
mod park;
mod pd;
mod port;
mod qp;
mod read;
mod recv;
mod region;
mod ring;
mod send;
mod senders;
mod shared;
mod ticket;
mod wakeup;

pub use device::{PdSize, ShmDevice};
pub use drops::counters;
pub use layout::TICKET_BYTES;
pub use port::ShmPort;
pub use shared::REGION_TICKET_BYTES;
pub use ticket::TICKET_FDS;

/// Most bytes of one datagram.
pub const DATAGRAM_BYTES_MAX: usize = 4096;
/// Most bytes of one RC or UC message. The ring of a connected queue pair that takes RECVs has room
/// for one such, at least.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Most bytes of one READ.
pub const READ_BYTES_MAX: usize = 1 << 31;
/// Most bytes of an inline payload.
pub const INLINE_BYTES_MAX: usize = 4096;

/// Bytes of its domain that a UD queue pair with `recvs` outstanding RECVs occupies for good, each
/// RECV for a datagram of [`DATAGRAM_BYTES_MAX`]. [`PdSize::client_inbound`] must hold them for
/// each of a client's queue pairs, [`PdSize::host_inbound`] for each of a host's.
#[must_use]
pub fn datagram_ring_bytes(recvs: usize) -> usize {
    ring::Shape::for_datagrams(recvs).bytes()
}
