//! memcached's protocols: decoding of commands and encoding of replies for a server, decoding of
//! classic text replies for a client.
//!
//! No sockets and no clock. Start with [`Decoder`], which decodes commands from a byte slice, with a
//! parser for each protocol; [`text`], [`meta`] and [`binary`] encode the replies, and [`reply`]
//! decodes the replies of classic text. The reference is memcached 1.6.45; every difference from it
//! has a reason and a test (`herdwick-server/tests/differential/differences.rs`).
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
    Arith, Command, Delete, Extent, FlushAll, Get, Keys, Mode, Oversized, Put, Refusal, Refused,
    Touch, Verb,
};
pub use decode::{ANNOUNCED_BYTES, Decoded, Decoder, GET_LINE_BYTES_MAX, LINE_BYTES_MAX};
pub use line::is_noreply;

/// Maximum length of a key, in bytes.
pub const KEY_BYTES_MAX: usize = 250;
