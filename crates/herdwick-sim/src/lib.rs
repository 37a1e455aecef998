//! A fabric inside one process, under virtual time: faults from a seed, costs from a profile.
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
//! A [`Profile`] defines what messages cost: ports of a host ([`SeededNetwork::host`]) share its RNIC,
//! and each is a core of its own. A [`Scheduler`] steps the processes on those cores. Ports of
//! [`SeededNetwork::device`] cost nothing. [`verbs`] measures the verbs alone.
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

mod completing;
mod contexts;
mod device;
mod event;
mod faults;
mod host;
mod ids;
mod load;
mod maps;
mod network;
mod party;
mod port;
mod profile;
mod queue;
mod receive;
mod rng;
mod scheduler;
mod send;
mod send_entry;
pub mod verbs;
mod world;

pub use device::SeededDevice;
pub use faults::{FaultCounts, Faults, RETRY_DEADLINE};
pub use network::{HostId, SeededNetwork};
pub use party::PartyId;
pub use port::SeededPort;
pub use profile::{Cpu, Link, Pcie, Profile, ProfileError, Rnic};
pub use scheduler::{Process, Scheduler, Step};
