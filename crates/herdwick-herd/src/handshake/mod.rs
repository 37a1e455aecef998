//! The handshake of a lease, both sides, without I/O: bytes and descriptors in, events out. The owner of
//! the socket moves the bytes: the server's lease manager, a client, a benchmark, a test.
//!
//! ```text
//! client                                server
//!     --- claim ------------------------>   ServerEvent::Claim
//!     <------- grant, descriptors -------   granted()
//! ClientEvent::Granted
//!     --- accept ----------------------->   ServerEvent::Accept
//!     <------------------------- go -----   connected()
//! ClientEvent::Go
//!     --- heartbeats ------------------->
//! ```
//!
//! In place of each frame the server may refuse, and hangs up. The frames are those of
//! [`hello`](crate::hello).

mod client;
mod server;

pub use client::{ClientEvent, ClientHandshake, HandshakeError, WorkerTickets};
pub use server::{ServerEvent, ServerHandshake};
