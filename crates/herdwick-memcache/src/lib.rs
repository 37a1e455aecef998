//! memcached's protocols: decoding of commands to requests and encoding of replies for a server,
//! decoding of classic text replies for a client.
//!
//! No sockets and no clock. Start with [`Decoder`], which decodes the requests of a byte slice, with
//! a parser for each protocol, and with each the [`Answer`] that encodes its reply; [`text`],
//! [`meta`] and [`binary`] encode what needs no store, and [`reply`] decodes the replies of classic
//! text. The reference is memcached 1.6.45; every difference from it
//! has a reason and a test (`herdwick-server/tests/differential/differences.rs`).
#![forbid(unsafe_code)]

mod answer;
mod awaited;
pub mod binary;
mod block;
mod classic;
mod command;
#[cfg(test)]
mod counting;
mod decode;
mod find;
mod line;
pub mod meta;
mod number;
mod refusal;
pub mod reply;
pub mod text;
mod words;

pub use answer::Answer;
pub use block::ANNOUNCED_BYTES;
pub use command::{Admits, Asked, Command, Decoded, FlushAll, Get, Refused};
pub use decode::{Decoder, GET_LINE_BYTES_MAX, LINE_BYTES_MAX};
pub use herdwick_request::KEY_BYTES_MAX;
pub use line::is_noreply;
pub use refusal::Refusal;
pub use words::{InputRange, Keys};
