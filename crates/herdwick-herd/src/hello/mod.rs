//! How a client and a server agree on a fabric: two exchanges, here as pure bytes. Their order is
//! [`handshake`](crate::handshake)'s matter.
//!
//! 1. **The hello**, one text line each way on the memcached port ([`Hello`], [`Offer`]). A stock
//!    memcached answers `ERROR`; any answer but an offer means plain memcached.
//! 2. **The lease**, binary frames ([`Claim`], [`Grant`], [`Accept`], [`Go`]): on the unix socket
//!    that the offer names, because file descriptors cannot cross TCP, or, where no descriptors are
//!    needed, on a new connection to the memcached port. An engine other than HERD has [`Parts`] in
//!    the place of grant and accept. The socket is the lease: when it closes,
//!    or no heartbeat arrives for [`LEASE_DEADLINE`], the server takes the memory back.
//!
//! All input here comes from a peer: every length is bounded before use, and no input panics.
//! `docs/wire.md` draws the bytes.

mod frame;
mod line;
mod part;
mod refusal;
mod token;

pub use frame::{
    Accept, Claim, FRAME_BYTES_MAX, FrameError, Go, Grant, HEADER_BYTES, Header, Kind, MAGIC,
    STORE_FDS_MAX, StoreGrant, TICKET_BYTES_MAX, TICKET_FDS_MAX, WorkerAccept, WorkerGrant,
};
pub use line::{
    ANOTHER_MEMBER, BootId, FabricOffer, FabricWords, HELLO_BYTES_MAX, Hello, LineError, Offer,
    OneSidedOffer, SecondaryOffer, StoreId, StoreName, VERSION, path_word,
};

pub(crate) use part::PARTS_BODY_MAX;
pub use part::{PART_BYTES_MAX, PART_FDS_MAX, PARTS_MAX, Part, Parts};
pub use refusal::Refusal;
pub use token::Token;

use std::time::Duration;

/// Interval at which a client with a lease sends a heartbeat byte.
pub const HEARTBEAT: Duration = Duration::from_secs(2);
/// Most bytes that a client may send in one such interval: the heartbeats that accumulate while a
/// server is stopped for two hours.
pub const BEATS_MAX: usize = 4096;
/// A lease ends after this long without a heartbeat: five intervals.
pub const LEASE_DEADLINE: Duration = Duration::from_secs(10);
/// A lease handshake is aborted after this long.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);
/// Most workers that a grant can name, so that it fits one frame, and their descriptors one message.
pub const WORKERS_MAX: usize = 32;
