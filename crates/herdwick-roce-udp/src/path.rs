//! Route lookup: the source address and the MTU that the kernel would use to reach a peer.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    os::fd::AsFd,
};

use herdwick_roce::Mtu;
use rustix::net::{AddressFamily, SocketType, bind, connect, getsockname, ipproto, socket};

use crate::socket;

/// The path from here to a peer, as routed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NetworkPath {
    /// The source address of packets.
    pub(crate) from: IpAddr,
    /// Maximum payload of a packet.
    pub(crate) mtu: Mtu,
}

impl NetworkPath {
    /// Looks up the route to `to`, from `local` unless that is unspecified: a socket bound to every
    /// IPv6 address also receives on every IPv4 address.
    pub(crate) fn find(local: SocketAddr, to: SocketAddr) -> io::Result<Self> {
        let (family, any) = match to {
            SocketAddr::V4(_) => (AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into()),
            SocketAddr::V6(_) => (AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()),
        };
        // Then the kernel chooses, as it will for the packets.
        let from = if local.ip().is_unspecified() {
            SocketAddr::new(any, 0)
        } else {
            any_port(local)
        };
        let probe = socket(family, SocketType::DGRAM, Some(ipproto::UDP))?;
        bind(&probe, &from)?;
        // Connecting a UDP socket sends nothing; it only looks up the route.
        connect(&probe, &to)?;
        // Connecting has chosen the source address.
        let from = SocketAddr::try_from(getsockname(&probe)?)?.ip();
        let link = socket::path_mtu(probe.as_fd(), to.is_ipv6())?;
        Ok(Self {
            from,
            mtu: Mtu::fitting(link),
        })
    }
}

/// Returns `address` with port 0 (any free port), its scope kept: a link-local address is ambiguous
/// without it.
pub(crate) fn any_port(mut address: SocketAddr) -> SocketAddr {
    address.set_port(0);
    address
}

/// Returns `host` as a socket at `local` reaches it: over the same link, if the address is
/// link-local.
pub(crate) fn reached(local: SocketAddr, host: IpAddr, port: u16) -> SocketAddr {
    match (local, host) {
        (SocketAddr::V6(local), IpAddr::V6(host)) if host.is_unicast_link_local() => {
            SocketAddrV6::new(host, port, 0, local.scope_id()).into()
        }
        _ => SocketAddr::new(host, port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_ipv6_socket_finds_the_path_to_an_ipv4_peer() {
        let local = "[::]:4791".parse().expect("an address");
        let to = "127.0.0.1:4791".parse().expect("an address");
        let path = NetworkPath::find(local, to).expect("a path");
        assert_eq!(path.from, Ipv4Addr::LOCALHOST);
    }

    #[test]
    fn loopback_mtu_allows_the_largest_packets() {
        let to = "127.0.0.1:4791".parse().expect("an address");
        let path = NetworkPath::find("0.0.0.0:1".parse().expect("an address"), to).expect("a path");
        assert_eq!((path.from, path.mtu), ([127, 0, 0, 1].into(), Mtu::B4096));
    }
}
