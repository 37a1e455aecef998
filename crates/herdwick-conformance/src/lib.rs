//! The conformance suite of fabric providers.
//!
//! A provider tests itself with one [`Fixture`], which makes two parties that reach each other, and
//! one macro call, which expands to one `#[test]` per behaviour:
//!
//! ```
//! use herdwick_conformance::{Fixture, LocalParty, Party, conformance, seeded::SeededNetwork};
//! use herdwick_fabric::PortLimits;
//!
//! struct Calm;
//!
//! impl Fixture for Calm {
//!     fn pair(&self) -> [Box<dyn Party>; 2] {
//!         let network = SeededNetwork::new(1);
//!         let devices = [(); 2].map(|()| network.device());
//!         let parties = LocalParty::linked(devices, &PortLimits::default());
//!         parties.map(|party| Box::new(party) as Box<dyn Party>)
//!     }
//! }
//!
//! conformance!(Calm);
//! # fn main() {}
//! ```
//!
//! Behaviours use only [`Party`], so a party may be in another process: implement the trait over a
//! stream, or use [`far`].
//!
//! [`seeded`] is a whole provider inside one process, under virtual time, with every fault drawn
//! from a seed: the place to test a protocol against loss, reordering and dead peers. [`StoreLog`] is memory
//! that logs stores, for tests of READs between two of them. [`document`]
//! reads the tables in which pages draw layouts, for the tests that compare them with the code.
#![forbid(unsafe_code)]

mod behaviours;
pub mod document;
pub mod far;
mod party;
pub mod shared;
mod stage;
mod store_log;
mod suite;

/// The fabric under virtual time, for the tests of systems.
pub use herdwick_sim as seeded;
pub use party::{LocalParty, Party};
pub use store_log::StoreLog;
pub use suite::{BEHAVIOURS, Behaviour, Fixture, Skip, run};
