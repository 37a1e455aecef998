//! The handshake of a lease without I/O: bytes in, events out. Whoever owns the socket moves the
//! bytes. The frames are those of [`hello`](crate::hello).

mod server;

pub use server::{ServerEvent, ServerHandshake};
