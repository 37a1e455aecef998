//! A software RNIC for RoCEv2, without sockets, clocks or threads.
//!
//! [`Engine`] implements the verbs of `herdwick-fabric` on packets: queue pairs, regions,
//! completion queues, timers. Its driver passes in arriving packets with the time ([`Arrival`]),
//! buffers for packets to send ([`Wire`]), and the registered memory ([`Memory`]). [`packet`] is
//! the wire format from the BTH to the pad. [`icrc`] is the checksum that follows it; it covers the
//! IP and UDP headers too, so the driver computes it. Folder `engine` has the received packets and
//! the control verbs, `qp` the queue pairs, one file per event.
//!
//! The rules are those of the InfiniBand architecture, chapter 9, as `rdma_rxe` and hardware
//! implement them. Comments cite it as "IBTA".
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
mod shared;
mod slab;
mod table;
mod timers;
mod watch;

pub use config::{
    Config, Destination, LocalEndpoint, Mtu, Peer, Peering, RD_ATOMIC_MAX, RNR_FOR_EVER, Retry,
};
pub use counters::{ConnectionCounters, Counters, Drop, Drops};
pub use engine::Engine;
pub use io::{Arrival, FlowId, Memory, Wire, region_index};
pub use keyed::{Secret, TRAILER_BYTES, agree};
pub use qp::{DATAGRAM_HEADER_BYTES, MESSAGE_BYTES_MAX, READ_BYTES_MAX};
