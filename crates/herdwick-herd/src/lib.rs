//! HERD: requests are written into the server's memory, replies are sent back.
//!
//! The request path of the HERD paper (SIGCOMM'14) with the batching of the ATC'16 guidelines. A
//! client WRITEs a request line into its window of slots at the worker that owns the key; the
//! worker finds it by polling, executes a batch, and answers with UD SENDs. Where connections are
//! unavailable or scarce, the client SENDs the line instead ([`RequestPath`]).
//!
//! [`wire`] defines the bytes. [`ServerSide`] and [`ClientSide`] are state machines over a
//! [`herdwick_fabric::Port`]: they read no clock, allocate nothing after set-up, and name no
//! provider.
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("lines and replies are little-endian words, and are used as such in memory");

mod client;
mod counters;
mod echo;
pub mod handshake;
pub mod hello;
mod path;
mod server;
mod setup;
mod signals;
pub mod wire;

pub use client::{
    Answer, ClientOptions, ClientSetupError, ClientSide, Destination, Outcome, Refused,
    WorkerChannel,
};
pub use counters::{ClientCounters, ServerCounters};
pub use echo::Echo;
pub use path::{Announce, RequestPath, UnknownPath};
pub use server::{
    AttachError, BATCH, Chunk, ClientId, RECV_BYTES_MIN, REPLY_BYTES_MIN, REPLY_QPS_MAX,
    ServerOptions, ServerOptionsError, ServerSide, UdQueue, WriteNotify,
};
pub use setup::{
    Admitted, ClientEnd, ClientSetup, ClientTerms, LeaseResources, RECV_SLACK, ServerEnd,
    ServerTerms, SetupError,
};
pub use signals::SEND_DEPTH_MIN;
