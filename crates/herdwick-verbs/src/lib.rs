//! The fabric over RNICs: libibverbs, loaded when the program runs.
//!
//! A host without libibverbs runs the same binary, and is told what is missing. Building needs
//! neither headers nor a C compiler: [`sys`] is the part of `<infiniband/verbs.h>` that is used,
//! written by hand and compared with the header by a test. The data path jumps through the tables
//! of the device's own driver, as the inline functions of that header do.
//!
//! **A port is a context of its own.** Ports share nothing but the library, so a port's thread
//! meets no other's locks, and a failed one takes no other along.
//!
//! Regions are addressed from 0: a key and an offset, which tell a peer nothing of where memory
//! lies.
#![deny(unsafe_code)]

mod complete;
mod control;
mod device;
mod endpoint;
mod events;
mod library;
mod measure;
mod objects;
mod place;
mod port;
mod probe;
mod raw;
mod send;
pub mod sys;
mod wish;

pub use device::{Inlining, VerbsDevice, VerbsError, VerbsOptions, survey};
pub use library::{LIBRARY_NAMES, Library, LibraryError};
pub use measure::TrialError;
pub use place::{DeviceFacts, Gid, GidKind, Link, NoPlace, Place, PortFacts};
pub use port::{Health, VerbsPort};
pub use wish::{Wish, WishError};

/// Bytes in front of a received datagram's payload: the GRH.
pub const DATAGRAM_HEADER_BYTES: usize = 40;
/// Most work requests in one post.
pub const POSTLIST_MAX: usize = 256;
/// Inline bytes asked for; a device may give less.
pub const INLINE_BYTES_WANTED: usize = 256;
