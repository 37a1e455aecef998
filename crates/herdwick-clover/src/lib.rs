//! Clover (Tsai, Shan and Zhang, ATC 2020): a key-value store whose data nodes are memory alone.
//!
//! Each key has a chain of entries, one for each version of its value. A client reads the last one by RDMA
//! READs, from the entry that it knows (its *cursor*) or the one that a *shortcut* names. It stores a
//! value by a WRITE of a new entry and a CAS that links it behind the last one. A *metadata server* knows
//! the keys, hands out free entries, takes superseded ones out of the chains, and frees them when no
//! client can use them any more.
//!
//! [`layout`] is the memory of a data node, [`NodeEnd`] has it. [`ServerEnd`] and [`ClientEnd`] are the
//! other two on a port; their machines, [`Server`] and [`Client`], are poll-driven and know no clock.
//! `docs/clover.md` draws every layout, and describes the failure of each party.
#![forbid(unsafe_code)]

mod answer;
mod append;
mod calls;
mod client;
mod counters;
mod cursors;
mod epochs;
mod failure;
mod free_list;
mod judge;
pub mod layout;
pub mod message;
mod mutations;
mod nodes;
mod server;
mod setup;

pub use answer::{Answer, Refused};
pub use client::Client;
pub use counters::{ClientCounters, ServerCounters};
pub use failure::Failure;
pub use herdwick_read::ClientId;
pub use nodes::NODES_MAX;
pub use server::Server;
pub use setup::{
    Accept, Accepts, BadPart, CLIENTS_MAX, ClientEnd, ClientOptions, Grant, Grants, Hosts,
    Invitation, Joined, NodeAccept, NodeClientId, NodeEnd, NodeGrant, NodeOptions, OptionsError,
    Right, Secret, ServerEnd, ServerOptions, SetupError,
};
