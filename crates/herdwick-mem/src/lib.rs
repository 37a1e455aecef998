//! Four separate kinds of memory, and other operations that need `unsafe`. Start with [`Span`]:
//!
//! - [`Span`]: memory that a peer (another process, a NIC) may write at any instant. It hands out
//!   neither references nor atomics, only word loads, word stores and copies built from them.
//! - [`Arena`]: memory that one thread owns, huge-paged where the kernel allows. Plain slices.
//! - [`PublishedFile`]: memory that this process writes and others map to read: an [`Arena`] here, and
//!   there a [`Span`].
//! - [`spsc`]: bounded queues between two threads of one process.
//!
//! The other operations, with safe interfaces: prefetch, checksums, short copies, the process that a
//! value belongs to after a `fork` ([`ForkMark`]), the bytes of a socket that the peer has not read
//! ([`unread_bytes`]), a signal to one thread ([`Interruptible`]), and threads that take none
//! ([`without_signals`]).
//!
//! This crate is one of the few that may contain `unsafe`; each block states why it is sound.

mod arena;
mod checksum;
mod crc64;
mod fork;
mod interrupt;
mod mapping;
mod prefetch;
mod published;
mod short;
mod signals;
mod span;
pub mod spsc;
pub mod sync;
mod unread;
mod words;

pub use arena::Arena;
pub use checksum::{crc32, crc32_interleaved, crc32c, crc32c_shift};
pub use crc64::crc64;
pub use fork::{ForkMark, OwnProcess};
pub use interrupt::Interruptible;
pub use mapping::{Access, Mapping};
pub use prefetch::{prefetch_read, prefetch_write};
pub use published::{Published, PublishedFile};
pub use short::{append, copy, same};
pub use signals::without_signals;
pub use span::{OutOfSpan, Span};
pub use unread::unread_bytes;
pub use words::{LINE, WORD, Words};
