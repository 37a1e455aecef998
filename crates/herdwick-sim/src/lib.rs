//! A fabric inside one process, under virtual time, with every fault drawn from a seed.
//!
//! It is a provider like any other: [`SeededDevice`] and [`SeededPort`] implement the fabric's
//! traits, regions are [`herdwick_mem::Span`]s, and a system cannot tell the difference. One test
//! thread drives all ports; events happen only in
//! [`Port::progress`](herdwick_fabric::Port::progress) of any port, [`SeededNetwork::run`] or
//! [`SeededNetwork::step`]. The same seed and the same calls give the same run, event by event
//! ([`SeededNetwork::trace`]).
//!
//! [`Faults`] define what happens to messages; a
//! [`Capabilities`](herdwick_fabric::Capabilities) value, which the test may change, defines what the
//! fabric promises, such as `ordered_write: false`.
//!
//! - **RC** retransmits: exactly once, in order. A peer that does not answer for [`RETRY_DEADLINE`]
//!   ends the queue pair with `RetryExceeded`; one that posts no RECV for as long, with
//!   `ReceiverNotReady`.
//! - **UC** and **UD** lose, duplicate and reorder as configured, silently.
//! - It is as strict as hardware about queues: a send slot is free again once the completion of its
//!   work request, or of a later one, was *polled*. A sender that never requests a completion gets
//!   [`PostError::Full`](herdwick_fabric::PostError::Full) after `send_depth` requests.
//! - A payload in a region is read at transmission, not at posting.
#![forbid(unsafe_code)]

mod device;
mod event;
mod faults;
mod load;
mod network;
mod party;
mod port;
mod receive;
mod rng;
mod send;
mod send_entry;
mod world;

pub use device::SeededDevice;
pub use faults::{Faults, RETRY_DEADLINE};
pub use network::SeededNetwork;
pub use party::PartyId;
pub use port::SeededPort;
