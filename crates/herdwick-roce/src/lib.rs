//! A software RNIC that speaks RoCEv2, without sockets, clocks or threads.
//!
//! [`packet`] is the wire format from the BTH to the pad, [`icrc`] the checksum behind it, which
//! covers the IP and UDP headers too.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod icrc;
pub mod packet;
