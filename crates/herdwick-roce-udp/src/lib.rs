//! The software RNIC on UDP sockets: the engine of `herdwick-roce` as a provider of the fabric.
//!
//! [`RoceDevice`] binds one UDP port for all its ports. Each has a socket of its own and runs its
//! engine in the caller's poll loop, or in a thread ([`Attended`]). Packets are sent in GSO batches
//! and received as GRO batches: see `docs/roce.md`. Start with `port`; folder `socket` has the UDP
//! sockets and their four system calls.

mod attended;
pub mod bare;
mod capabilities;
mod capture;
mod counters;
mod device;
mod endpoint;
mod gso;
mod memory;
mod misrouted;
mod options;
mod path;
mod port;
mod probe;
mod socket;

pub use attended::Attended;
pub use herdwick_roce::Mtu;

pub use counters::counters;
pub use device::{RoceDevice, SHARDS_MAX, UDP_PORT};
pub use options::RoceOptions;
pub use port::RocePort;
pub use probe::{GsoSupport, UdpProbe, probe};
