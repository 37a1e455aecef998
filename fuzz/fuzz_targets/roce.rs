//! Fuzz target: runs of packets at a RoCE port, with the checks of `packets.rs`.
#![no_main]

#[path = "../packets.rs"]
mod packets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| packets::check(input));
