//! HERD as the paper describes it (Kalia, Kaminsky, Andersen: "Using RDMA Efficiently for Key-Value
//! Services", SIGCOMM'14, section 4), beside [`crate::ServerSide`], which executes batches and has a request
//! format that survives lost messages.
//!
//! A request is WRITTEN to the right end of a 1 KB slot, the keyhash last (section 4.2): 16 bytes for a GET,
//! 18 and the value for a PUT. The server process takes requests through a [`Pipeline`] that hides memory
//! latency behind the posts of replies (section 4.1.1), and answers each by one SEND of the bare value. A
//! reply's immediate has the number of its request, which the paper leaves to the order of replies.
//!
//! [`PaperServerEnd`] and [`PaperClientEnd`] are both ends, each a port and a machine over it. Nothing is
//! retransmitted: as in the paper, a lost message costs the client its connection, and every request in
//! flight ends as [`PaperAnswer::Lost`].

mod client;
mod pipeline;
mod server;
mod setup;
mod slot;

pub use client::{PaperAnswer, PaperClient, PaperClientCounters, PaperLoss, PaperRefused};
pub use pipeline::{NO_OP_AFTER, Pipeline};
pub use server::{PaperClientId, PaperCounters, PaperServer, STAGES};
pub use setup::{
    INLINE_BELOW, PaperAccept, PaperClientEnd, PaperClientSetup, PaperClientTerms, PaperGrant,
    PaperLease, PaperServerEnd, PaperServerTerms, PaperSetupError, PaperUnfit, pd_room,
};
pub use slot::{KEYHASH_BYTES, Keyhash, LEN_BYTES, SLOT_BYTES, SLOT_FIELDS, VALUE_BYTES_MAX};
