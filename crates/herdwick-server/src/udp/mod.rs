//! memcached over UDP: a datagram is a conversation of its own, a frame header and some commands,
//! answered by one message of as many datagrams as it takes.
//!
//! The source of a datagram may be forged, so that its answer goes to a victim. Sources that cannot
//! be (loopback), or that the operator trusts, get whole answers; others, as in QUIC before an
//! address is validated (RFC 9000, section 8.1), at most three times what they have sent, or
//! nothing.

mod exchange;
mod network;
mod socket;

use std::sync::atomic::AtomicU64;

pub(crate) use exchange::{Exchange, Sent};
pub use network::Network;
pub(crate) use socket::UdpListener;

/// memcached over UDP (memcached's `-U`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Udp {
    /// The port, on each address that the server listens on; 0 takes a free one.
    pub port: u16,
    /// Networks whose addresses nobody forges: they get whole answers, as loopback does.
    pub trusted: Vec<Network>,
}

/// Datagrams that were not taken in.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    /// For their frame headers: too short, or a part of a longer request; or because they are
    /// answers.
    pub(crate) malformed: AtomicU64,
    /// For those that were already being answered.
    pub(crate) crowded: AtomicU64,
}

/// Bytes of a frame header, big-endian: request id, sequence number, datagrams in the message,
/// and two that are reserved.
const HEADER_BYTES: usize = 8;
/// Bytes of a reply in one datagram (memcached's `UDP_MAX_PAYLOAD_SIZE`, without the header).
const FRAME_BYTES: usize = 1392;
