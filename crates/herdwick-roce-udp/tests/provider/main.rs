//! What every provider shows, over loopback sockets.

mod attended;
mod capture;
mod conformance;
mod floods;
mod paths;
mod shards;
mod timers;
