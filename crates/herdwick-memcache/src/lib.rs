//! memcached's protocols as bytes: commands in, replies out, and the other way round.
//!
//! No sockets and no clock: [`Decoder`] reads commands from a byte slice, each protocol by a parser
//! of its own; [`text`], [`meta`] and [`binary`] write the replies, and [`reply`] reads classic
//! text's again on the client's side. The reference is memcached 1.6.45; whatever differs from it has
//! a reason and a test (`herdwick-server/tests/differential/differences.rs`).
#![forbid(unsafe_code)]

pub mod binary;
mod classic;
mod command;
mod decode;
mod line;
pub mod meta;
mod number;
pub mod reply;
pub mod text;

pub use command::{
    Arith, Command, Delete, FlushAll, Get, Keys, Mode, Oversized, Put, Refusal, Refused, Touch,
    Verb,
};
pub use decode::{ANNOUNCED_BYTES, Decoded, Decoder, GET_LINE_BYTES_MAX, LINE_BYTES_MAX};
pub use line::is_noreply;

/// Most bytes of a key.
pub const KEY_BYTES_MAX: usize = 250;
