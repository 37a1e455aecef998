use core::{net::SocketAddr, time::Duration};

use herdwick_fabric::{PortLimits, Psn, Qpn, Transport};

use crate::Secret;

/// Most payload bytes of one packet on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes: what an Ethernet of 1500 carries.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes: what jumbo frames and the loopback carry.
    B4096,
}

impl Mtu {
    /// All of them, the smallest first.
    pub const ALL: [Self; 5] = [
        Self::B256,
        Self::B512,
        Self::B1024,
        Self::B2048,
        Self::B4096,
    ];

    /// In bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> usize {
        256 << self as u32
    }

    /// The largest whose packets fit an IP packet of `link` bytes, with the longest headers a
    /// RoCE packet can have; at least [`Mtu::B256`].
    #[must_use]
    pub fn fitting(link: usize) -> Self {
        /// IPv6 40, UDP 8, BTH 12, RETH 16, immediate 4, a keyed trailer 16, ICRC 4.
        const HEADERS_MAX: usize = 100;
        let fits = |mtu: &&Self| mtu.bytes() + HEADERS_MAX <= link;
        Self::ALL.iter().rfind(fits).copied().unwrap_or(Self::B256)
    }
}

/// When RC gives up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How long to wait for an answer at first; it doubles with each retry without progress.
    pub ack_timeout: Duration,
    /// What the doubling ends at.
    pub ack_timeout_max: Duration,
    /// Retries without progress.
    pub count: u8,
    /// Retries while the peer has no RECV; [`RNR_FOR_EVER`] is no limit.
    pub rnr_count: u8,
    /// The RNR timer code that we ask our peers to wait for: 14 is 1.28 ms.
    pub rnr_timer: u8,
}

/// READs and atomics of one peer that a queue pair serves at a time.
pub const RD_ATOMIC_MAX: u8 = 64;

/// The RNR retry count that means no limit.
pub const RNR_FOR_EVER: u8 = 7;

impl Default for Retry {
    /// Gives up on a silent peer after 1 + 2 + 4 .. 256 ms, some half a second: an operating system
    /// may keep a process waiting for a while. On one without a RECV after 6 times 10 ms.
    fn default() -> Self {
        Self {
            ack_timeout: Duration::from_millis(1),
            ack_timeout_max: Duration::from_millis(256),
            count: 8,
            rnr_count: 6,
            rnr_timer: 20,
        }
    }
}

/// What an engine is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which of the [`Config::shards`] engines of one address this is: the low byte of its queue
    /// pair numbers is this modulo their count, so that a socket filter can steer by them.
    pub shard: u32,
    /// How many engines share the address: 1 to 256.
    pub shards: u32,
    /// What it holds at most.
    pub limits: PortLimits,
    /// The largest packet payload offered to peers; connections agree on one that their path has.
    pub mtu: Mtu,
    /// The largest datagram payload: what every path to a peer has room for.
    pub datagram: Mtu,
    /// Most payload bytes of an inline work request; each slot of a send queue keeps room for
    /// as many.
    pub inline_bytes_max: usize,
    /// Whether arriving packets are checked against their ICRC.
    pub check_icrc: bool,
    /// The MigReq bit of packets sent: hardware sets it, `rdma_rxe` does not, and none has been
    /// seen to mind.
    pub migration: bool,
    /// When RC gives up.
    pub retry: Retry,
    /// Whether connections slow down when RC loses packets or a peer tells of congestion.
    pub pace: bool,
    /// Whether what leaves is marked as of a transport that heeds ECN, which is the driver's to do.
    /// If not, no router marks it, and who tells of congestion is not believed.
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

/// The other end of a flow; what differs in any field is another flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Where its packets go.
    pub addr: SocketAddr,
    /// Which of the engines behind that address they are for. One train goes to one engine, so
    /// packets for several never share a flow.
    pub lane: u16,
}

/// What a peer's queue pair says of itself, for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peering {
    /// Where it is.
    pub peer: Peer,
    /// Its number.
    pub qpn: Qpn,
    /// Its first packet's sequence number.
    pub psn: Psn,
    /// The path's, the same on both sides.
    pub mtu: Mtu,
    /// READs and atomics that it takes at a time, none if 0; our end takes
    /// [`crate::RD_ATOMIC_MAX`].
    pub rd_atomic: u8,
    /// Whether a refused request (bad rkey, bad length) fails our queue pair, as the specification
    /// says. Without, the requester is told all the same, and whoever forges one such packet does
    /// not end the connection.
    pub refusals_are_fatal: bool,
    /// The key that both ends have ([`crate::agree`]); `None`: packets as the specification has
    /// them.
    pub key: Option<Secret>,
}

/// What a peer's UD queue pair says of itself, for an address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Where it is.
    pub peer: Peer,
    /// Its number.
    pub qpn: Qpn,
    /// The key its datagrams must carry.
    pub qkey: u32,
    /// The key that both ends have ([`crate::agree`]). A queue pair with one keyed destination
    /// takes datagrams from its keyed destinations alone.
    pub key: Option<Secret>,
}

/// What a queue pair of ours tells its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its transport.
    pub transport: Transport,
    /// Its number.
    pub qpn: Qpn,
    /// Its first packet's sequence number.
    pub psn: Psn,
    /// UD: the key its datagrams must carry.
    pub qkey: u32,
    /// The largest packet payload this engine takes.
    pub mtu: Mtu,
    /// What it brings to a key; to be told to its peer alone.
    pub secret: Secret,
}
