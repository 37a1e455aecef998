//! The request language: what a cache is asked and what it answers, without a store, a protocol or
//! a fabric.
//!
//! A [`Request`] is an operation on one key, a [`Reply`] its result. They are the superset of
//! memcached's meta commands: memcached's protocols are one front end, the HERD request line is
//! another. An [`Execute`] executes batches of requests and passes the replies to a [`Sink`].
//!
//! ```
//! use herdwick_request::{Clock, Execute, HashKey, Op, Reply, Request, Second, Sink, Status};
//!
//! /// A cache that holds nothing.
//! struct Empty;
//!
//! impl Execute for Empty {
//!     fn execute(&mut self, _: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
//!         for (index, request) in batch.iter().enumerate() {
//!             let status = match request.op {
//!                 Op::Put(_) => Status::OutOfMemory,
//!                 Op::Get(_) | Op::Delete(_) | Op::Arith(_) => Status::NotFound,
//!             };
//!             sink.reply(index, &Reply::bare(status));
//!         }
//!     }
//! }
//!
//! let get = Request {
//!     hash: HashKey([1, 2]).hash(b"greeting"),
//!     key: b"greeting",
//!     op: Op::Get(Default::default()),
//! };
//! let clock = Clock { epoch_unix: 1_700_000_000, second: Second(100) };
//! let mut statuses = Vec::new();
//! Empty.execute(clock, &[get], &mut |_, reply: &Reply<'_>| statuses.push(reply.status));
//! assert_eq!(statuses, [Status::NotFound]);
//! ```
#![forbid(unsafe_code)]

mod clock;
mod hash;
pub mod number;
mod request;
mod staged;

pub use clock::{Clock, Deadline, EXPTIME_PAST, Second};
pub use hash::{HashKey, KeyHash};
pub use request::{
    Arith, Delete, Execute, Get, Item, Marks, Mode, Op, Prefetch, Put, ReadReport, Reply, Request,
    Sink, Status,
};
pub use staged::Staged;

/// Maximum length of a key, in bytes (memcached's limit).
pub const KEY_BYTES_MAX: usize = 250;
/// Values of at least this many bytes are passed to a [`Sink`] only after
/// [`Sink::has_room_for`] has accepted them.
pub const LARGE_BYTES: usize = 16 << 10;
/// Default maximum size of an item in bytes, header and key included (memcached's `-I`).
pub const ITEM_BYTES_MAX: usize = 1 << 20;
