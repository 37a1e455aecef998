//! memcached over UDP: each datagram is served like a connection of its own. It holds a frame
//! header and commands, and is answered by one message of as many datagrams as it takes.
//!
//! The source of a datagram may be forged, so that the reply hits a victim. Sources that cannot be
//! forged (loopback), or that the operator trusts, get complete replies. Others get a reply only if
//! it is at most three times as long as their datagram, as in QUIC before an address is validated
//! (RFC 9000, section 8.1).

mod exchange;
mod socket;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(crate) use exchange::{Sent, UdpExchange};
pub(crate) use socket::UdpListener;

/// Counts of refused datagrams.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    /// Refused because they are too short, a part of a longer request, or a reply.
    pub(crate) malformed: AtomicU64,
    /// Refused because too many requests were being answered.
    pub(crate) over_limit: AtomicU64,
}

impl Refused {
    /// Zeroes the counts.
    pub(crate) fn reset(&self) {
        self.malformed.store(0, Relaxed);
        self.over_limit.store(0, Relaxed);
    }
}

/// Bytes of a frame header: request id, sequence number, count of datagrams in the message, and a
/// reserved field, each of 16 bits, big-endian.
const HEADER_BYTES: usize = 8;
/// Maximum bytes of a reply in one datagram (memcached's `UDP_MAX_PAYLOAD_SIZE`, without the
/// header).
const FRAME_BYTES: usize = 1392;
