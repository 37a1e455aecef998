//! What every provider shows, over loopback sockets.

mod attended;
mod conformance;
mod shards;
mod timers;
