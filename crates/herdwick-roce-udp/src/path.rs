use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
};

use herdwick_roce::Mtu;
use rustix::net::{AddressFamily, SocketType, bind, connect, getsockname, ipproto, socket};

use crate::socket;

/// The way from here to a peer, as routing has it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// The address that packets leave from.
    pub(crate) from: IpAddr,
    /// Most payload in a packet.
    pub(crate) mtu: Mtu,
}

impl Path {
    /// Asks routing for the way to `to`, from `local` unless that is unspecified.
    pub(crate) fn find(local: IpAddr, to: SocketAddr) -> io::Result<Self> {
        let family = match to {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let probe = socket(family, SocketType::DGRAM, Some(ipproto::UDP))?;
        bind(&probe, &SocketAddr::new(local, 0))?;
        connect(&probe, &to)?;
        let from = SocketAddr::try_from(getsockname(&probe)?)?.ip();
        let link = socket::path_mtu(probe.as_fd(), to.is_ipv6())?;
        Ok(Self {
            from,
            mtu: Mtu::fitting(link),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_takes_the_largest_packets() {
        let to = "127.0.0.1:4791".parse().expect("an address");
        let path = Path::find([0, 0, 0, 0].into(), to).expect("a path");
        assert_eq!((path.from, path.mtu), ([127, 0, 0, 1].into(), Mtu::B4096));
    }
}
