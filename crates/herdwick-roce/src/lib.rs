//! A software RNIC that speaks RoCEv2, without sockets, clocks or threads.
//!
//! [`Engine`] stands between the verbs of `herdwick-fabric` and packets: queue pairs, regions,
//! completion queues, timers. Its driver gives it what arrives and the time ([`Arrival`]), room
//! for what leaves ([`Wire`]), and the registered memory ([`Memory`]). [`packet`] is the wire
//! format from the BTH to the pad, [`icrc`] the checksum behind it, which covers the IP and UDP
//! headers too and so is the driver's to seal.
//!
//! Rules are those of the InfiniBand architecture, chapter 9, as `rdma_rxe` and hardware keep
//! them; where a comment cites "IBTA", it is that.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod completions;
mod config;
mod counters;
mod draw;
mod engine;
mod flows;
pub mod icrc;
mod io;
mod keyed;
mod pace;
pub mod packet;
mod qp;
mod regions;
mod slab;
mod table;
mod timers;

pub use config::{
    Config, Destination, Facts, Mtu, Peer, Peering, RD_ATOMIC_MAX, RNR_FOR_EVER, Retry,
};
pub use counters::{Counters, Drop};
pub use engine::Engine;
pub use io::{Arrival, FlowId, Memory, Wire, region_index};
pub use keyed::{Secret, TRAILER_BYTES, agree};
pub use qp::{DATAGRAM_HEADER_BYTES, MESSAGE_BYTES_MAX};
