//! Tests of the provider over loopback sockets: conformance, threads, captures, paths, shards,
//! timers.

mod attended;
mod capture;
mod conformance;
mod paths;
mod shards;
mod timers;
