//! The providers, one row each: what a fabric is called, which is preferred, and how a device of it
//! is opened for a server, for a client, and for both ends in one process, and what it needs of a host.
//!
//! A system names no provider. It takes a [`Fabric`] from this table, opens an [`AnyDevice`], and
//! either has its own code compiled for each device behind it ([`Visit`]), as a server's worker
//! does, or goes on with an [`AnyPort`], one branch a call, as a client does.
//!
//! To add a provider: its crate, its file here and one in `doctor`, and its line in each list of
//! `fabric.rs`, `any.rs` and `table.rs`.
#![forbid(unsafe_code)]

mod any;
mod check;
mod doctor;
mod fabric;
mod options;
mod roce;
mod row;
mod shm;
mod table;
mod verbs;

pub use any::{AnyDevice, AnyPort, Visit, VisitAll};
pub use check::{Check, Checks, Fact, Status};
pub use fabric::Fabric;
pub use herdwick_roce_udp::UDP_PORT as ROCE_PORT;
pub use herdwick_verbs::{DeviceSelector, VerbsOptions};
pub use options::{DialOptions, ListenOptions, Verbs, Wanted};
pub use row::{ClientDeviceError, Description, Dial, End, ListenError, ListenHost};
