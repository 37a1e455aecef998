//! The provider for RNICs: libibverbs, loaded at run time.
//!
//! A host without libibverbs runs the same binary, and gets an error that names what to install.
//! Building needs neither headers nor a C compiler: [`sys`] is the used part of
//! `<infiniband/verbs.h>`, written by hand and compared with the header by a test. The data path
//! calls the function tables of the device's driver, as the inline functions of that header do.
//!
//! **A port is a device context of its own.** Ports share nothing but the library, so a port's
//! thread contends for no locks of another, and a failed port affects no other.
//!
//! Regions are addressed from 0: peers get a key and offsets, which reveal no virtual address.
//!
//! Start with `device` and `port`; folder `raw` has libibverbs' objects, each with an owner that
//! destroys it.
#![deny(unsafe_code)]

mod complete;
mod control;
mod data;
mod device;
mod endpoint;
mod events;
mod faults;
mod library;
mod measure;
mod objects;
mod place;
mod port;
mod probe;
mod query;
mod raw;
mod selector;
mod send;
mod state;
pub mod sys;

pub use device::{Inlining, VerbsDevice, VerbsError, VerbsOptions, survey};
pub use faults::counters;
pub use library::{LIBRARY_NAMES, Library, LibraryError};
pub use measure::TrialError;
pub use place::{DeviceInfo, Gid, GidKind, LinkLayer, NoPlace, Place, PortInfo};
pub use port::{Health, VerbsPort};
pub use selector::{DeviceSelector, SelectorError};

/// Bytes in front of a received datagram's payload: the GRH.
pub const DATAGRAM_HEADER_BYTES: usize = 40;
/// Maximum work requests in one post.
pub const POSTLIST_MAX: usize = 256;
/// Inline bytes requested of a device, which may grant less.
pub const INLINE_BYTES_WANTED: usize = 256;
