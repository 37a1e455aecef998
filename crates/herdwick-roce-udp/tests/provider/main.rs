//! What every provider shows, over loopback sockets.

mod conformance;
mod shards;
