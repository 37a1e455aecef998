//! How a client and a server find a fabric they share: two exchanges, both pure bytes here.
//!
//! 1. **The hello**, one text line each way on the memcached port ([`Hello`], [`Offer`]). A stock
//!    memcached answers it with `ERROR`; whatever is not an offer means plain memcached.
//! 2. **The lease**, binary frames ([`Claim`], [`Grant`], [`Accept`], [`Go`]): on the unix socket
//!    that an offer names, for file descriptors cannot cross TCP, or where none have to cross, on
//!    a new connection to the memcached port. The socket is the lease; when it closes, or no
//!    heartbeat comes for [`LEASE_DEADLINE`], the server takes the memory back.
//!
//! Everything parsed here comes from a peer: no length is believed before it is bounded, and no
//! input panics. `docs/wire.md` draws the bytes.

mod frame;
mod line;

pub use frame::{
    Accept, Claim, FRAME_BYTES_MAX, FrameError, Go, Grant, HEADER_BYTES, Header, Kind, MAGIC,
    Refusal, TICKET_BYTES_MAX, TICKET_FDS_MAX, WorkerAccept, WorkerGrant,
};
pub use line::{
    BootId, HELLO_BYTES_MAX, Hello, LineError, Offer, ShmOffer, Token, VERSION, VerbsOffer,
    path_word,
};

use std::time::Duration;

/// How often a client with a lease sends a heartbeat byte.
pub const HEARTBEAT: Duration = Duration::from_secs(2);
/// Most bytes that a client may send in such a time: what gathers while a server stands still for
/// two hours.
pub const BEATS_MAX: usize = 4096;
/// A lease without a heartbeat for this long ends: five beats.
pub const LEASE_DEADLINE: Duration = Duration::from_secs(10);
/// A lease handshake that takes longer than this is cut off.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);
/// Most workers that a grant can name, so that it fits one frame, and their descriptors one message.
pub const WORKERS_MAX: usize = 32;
