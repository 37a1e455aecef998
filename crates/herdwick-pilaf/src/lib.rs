//! Pilaf (section 2.3 of the HERD paper): a key-value store whose clients look keys up by RDMA READs
//! alone, in a 3-1 cuckoo hash table of self-verifying entries, and store them by SEND to its server.
//!
//! [`layout`] is the table as clients READ it, [`Store`] keeps it. [`ServerEnd`] and [`ClientEnd`] are
//! the two ends on a port; their machines, [`Server`] and [`Client`], are poll-driven and know no
//! clock. `docs/pilaf.md` draws every layout.
#![forbid(unsafe_code)]

mod arena;
mod calls;
mod client;
mod counters;
mod failure;
mod growth;
mod judge;
pub mod layout;
pub mod message;
mod server;
mod setup;
mod store;
mod table;

pub use client::{Answer, Client, Refused};
pub use counters::{ClientCounters, ServerCounters};
pub use failure::Failure;
pub use herdwick_read::ClientId;
pub use judge::{ExtentsView, TableView};
pub use server::Server;
pub use setup::{
    Accept, CLIENTS_MAX, ClientEnd, ClientOptions, Grant, OptionsError, ServerEnd, ServerOptions,
    SetupError, TableGrant, pd_room,
};
pub use store::{PutError, Store};
