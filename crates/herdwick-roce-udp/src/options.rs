//! The options of the provider `roce`.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use herdwick_roce::Mtu;

/// Options of a device.
#[derive(Clone, Debug)]
pub struct RoceOptions {
    /// The address to bind; port 0 takes any free port, an unspecified address all of the host's.
    pub address: SocketAddr,
    /// Number of ports that will be opened, at most [`SHARDS_MAX`](crate::SHARDS_MAX).
    pub shards: usize,
    /// The host with which hellos are exchanged: the address of an endpoint that leaves it open.
    pub peer_host: Option<IpAddr>,
    /// Maximum payload of a packet of a connection. `None`: what the path to `peer_host` has room
    /// for, or, if that is unknown, 1024 bytes, 4096 on the loopback. The two ends use the smaller
    /// of their values, so that neither sends packets too long for the other's path.
    pub mtu: Option<Mtu>,
    /// Whether packets are marked ECT(0), so that routers with ECN mark them instead of dropping
    /// them. A connection then slows down when its peer reports marks (CNP). An attacker who knows
    /// the peer's address and a queue pair number can forge CNPs and slow it down as well.
    pub ecn: bool,
    /// Whether every packet is authenticated with the key of its two ends. Both ends must agree.
    pub keyed: bool,
    /// The file to write every packet to, in a format that tcpdump and Wireshark read. Further
    /// ports append their number to the name.
    pub capture: Option<PathBuf>,
    /// Whether packets are added to a capture file that is there, rather than to an empty one.
    pub capture_appends: bool,
    /// The time of day, since 1970, at which `now` is zero, for the capture.
    pub origin: Duration,
}

impl RoceOptions {
    /// Returns options for one port on `address`.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            shards: 1,
            peer_host: None,
            mtu: None,
            ecn: false,
            keyed: false,
            capture: None,
            capture_appends: false,
            origin: Duration::ZERO,
        }
    }
}
