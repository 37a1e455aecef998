//! Parameters of an engine and of its connections: path MTU, retries, limits, peers.

use core::{net::SocketAddr, time::Duration};

use herdwick_fabric::{PortLimits, Psn, Qpn, Transport};

use crate::Secret;

/// The path MTU: maximum payload bytes of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes: the largest that fits an Ethernet MTU of 1500.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes: fits jumbo frames and the loopback.
    B4096,
}

impl Mtu {
    /// All values, in ascending order.
    pub const ALL: [Self; 5] = [
        Self::B256,
        Self::B512,
        Self::B1024,
        Self::B2048,
        Self::B4096,
    ];

    /// Returns the value in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> usize {
        256 << self as u32
    }

    /// Returns the largest value whose packets fit an IP packet of `link` bytes with the longest
    /// headers of a RoCE packet; at least [`Mtu::B256`].
    #[must_use]
    pub fn fitting(link: usize) -> Self {
        /// IPv6 40, UDP 8, BTH 12, RETH 16, immediate 4, a keyed trailer 16, ICRC 4.
        const HEADERS_MAX: usize = 100;
        let fits = |mtu: &&Self| mtu.bytes() + HEADERS_MAX <= link;
        Self::ALL.iter().rfind(fits).copied().unwrap_or(Self::B256)
    }
}

/// Timeouts and retries of RC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The first timeout for an answer; it doubles with each retry without progress.
    pub ack_timeout: Duration,
    /// The upper bound of the doubling.
    pub ack_timeout_max: Duration,
    /// Retries without progress before the queue pair fails.
    pub count: u8,
    /// Retries while the peer has no RECV; [`RNR_FOR_EVER`] means no limit.
    pub rnr_count: u8,
    /// The RNR timer code that peers are sent in RNR NAKs, encoding how long they wait: 14 is 1.28
    /// ms.
    pub rnr_timer: u8,
}

/// READs and atomics of one peer that a queue pair serves at a time.
pub const RD_ATOMIC_MAX: u8 = 64;

/// The RNR retry count that means no limit.
pub const RNR_FOR_EVER: u8 = 7;

impl Default for Retry {
    /// A silent peer times out after 1 + 2 + 4 .. 256 ms, about half a second, because an operating
    /// system may suspend a process for a while. A peer without a RECV fails after 6 retries of 10
    /// ms.
    fn default() -> Self {
        Self {
            ack_timeout: Duration::from_millis(1),
            ack_timeout_max: Duration::from_millis(256),
            count: 8,
            rnr_count: 6,
            // Code 20 is 10.24 ms (IBTA table 45).
            rnr_timer: 20,
        }
    }
}

/// The parameters of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Index of this engine among the [`Config::shards`] engines of one address. The low byte of
    /// its queue pair numbers, modulo their count, is this index, so that a socket filter can steer
    /// by it.
    pub shard: u32,
    /// Number of engines that share the address: 1 to 256.
    pub shards: u32,
    /// Maximum number of objects.
    pub limits: PortLimits,
    /// The largest packet payload offered to peers; connections agree on one that fits their path.
    pub mtu: Mtu,
    /// The largest datagram payload; it must fit the path to every peer.
    pub datagram: Mtu,
    /// Maximum payload bytes of an inline work request; each slot of a send queue reserves as much.
    pub inline_bytes_max: usize,
    /// Whether the ICRC of arriving packets is checked.
    pub check_icrc: bool,
    /// The MigReq bit of sent packets: hardware sets it, `rdma_rxe` does not; no receiver is known
    /// to check it.
    pub migration: bool,
    /// Timeouts and retries of RC.
    pub retry: Retry,
    /// Whether connections slow down when RC loses packets or a peer reports congestion.
    pub pace: bool,
    /// Whether the driver marks sent packets as ECN-capable. If not, no router can have marked
    /// them, so congestion notifications are ignored as forged.
    pub ecn: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            shard: 0,
            shards: 1,
            limits: PortLimits::default(),
            mtu: Mtu::B1024,
            datagram: Mtu::B1024,
            inline_bytes_max: 256,
            check_icrc: true,
            migration: false,
            retry: Retry::default(),
            pace: true,
            ecn: false,
        }
    }
}

/// The other end of a flow. Peers that differ in any field have different flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// The destination address of its packets.
    pub addr: SocketAddr,
    /// Index of the engine behind that address. A GSO batch goes to one engine, so packets for
    /// several engines never share a flow.
    pub channel: u16,
}

/// A peer's queue pair as its endpoint describes it, for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peering {
    /// Its address.
    pub peer: Peer,
    /// Its number.
    pub qpn: Qpn,
    /// The sequence number of its first packet.
    pub psn: Psn,
    /// The path MTU, the same on both sides.
    pub mtu: Mtu,
    /// READs and atomics that it serves at a time, 0 for none; this end serves
    /// [`crate::RD_ATOMIC_MAX`].
    pub rd_atomic: u8,
    /// Whether a refused request (bad rkey, bad length) fails the local queue pair, as the
    /// specification demands. If not, the requester still gets the NAK, and an attacker who forges
    /// one such packet does not end the connection.
    pub refusals_are_fatal: bool,
    /// The key of both ends ([`crate::agree`]); `None`: packets without a trailer, as specified.
    pub key: Option<Secret>,
}

/// A peer's UD queue pair as its endpoint describes it, for an address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Its address.
    pub peer: Peer,
    /// Its number.
    pub qpn: Qpn,
    /// The Q_Key that datagrams to it must carry.
    pub qkey: u32,
    /// The key of both ends ([`crate::agree`]). A queue pair with one keyed destination accepts
    /// datagrams from its keyed destinations only.
    pub key: Option<Secret>,
}

/// A local queue pair as its endpoint describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalEndpoint {
    /// Its transport.
    pub transport: Transport,
    /// Its number.
    pub qpn: Qpn,
    /// The sequence number of its first packet.
    pub psn: Psn,
    /// UD: the Q_Key that datagrams to it must carry.
    pub qkey: u32,
    /// The largest packet payload that this engine accepts.
    pub mtu: Mtu,
    /// Its contribution to a key; reveal it to its peer only.
    pub secret: Secret,
}
