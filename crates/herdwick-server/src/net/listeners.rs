//! Listeners: opens every TCP, UDP and unix socket of the configuration. An interface fails only if
//! none of its addresses can be bound; the addresses that failed are reported.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, RawFd},
};

use mio::net::TcpListener;

use crate::{
    net::{
        udp::UdpListener,
        unix::{self, SocketFile},
    },
    settings::{
        config::Config,
        error::StartError,
        listen_address::{Address, Interface, Listen},
        udp::Udp,
    },
};

/// A listening socket for connections.
pub(crate) enum StreamListener {
    Tcp(TcpListener),
    /// Its connections begin with a TLS handshake.
    Tls(TcpListener),
    Unix(unix::Listener),
}

impl StreamListener {
    fn number(&self) -> RawFd {
        match self {
            Self::Tcp(tcp) | Self::Tls(tcp) => tcp.as_raw_fd(),
            Self::Unix(unix) => unix.as_raw_fd(),
        }
    }
}

/// The open listeners, the addresses they are bound to, and the addresses that could not be bound.
#[derive(Default)]
pub(crate) struct Opened {
    pub(crate) listeners: Vec<StreamListener>,
    pub(crate) udp: Vec<UdpListener>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) socket_file: Option<SocketFile>,
    pub(crate) udp_addresses: Vec<SocketAddr>,
    pub(crate) left_out: Vec<StartError>,
}

/// A listener, as `stats conns` shows it.
#[derive(Debug)]
pub(crate) struct ListenerInfo {
    /// The listener's descriptor.
    pub(crate) number: RawFd,
    pub(crate) udp: bool,
    pub(crate) address: String,
}

/// Opens every listener that `config` names.
pub(crate) fn open(config: &Config) -> Result<Opened, StartError> {
    let mut opened = Opened::default();
    match &config.listen {
        Listen::Tcp(interfaces) => {
            for interface in interfaces {
                opened.open_interface(interface, config)?;
                if let Some(udp) = &config.udp {
                    opened.open_udp(interface, udp, config)?;
                }
            }
        }
        Listen::Unix { path, mode } => {
            let address = Address::Unix(path.clone());
            let (listener, file) = unix::open(path, *mode, config.backlog)
                .map_err(|error| refused(address.clone(), error))?;
            opened.listeners.push(StreamListener::Unix(listener));
            opened.socket_file = Some(file);
            opened.addresses.push(address);
        }
    }
    Ok(opened)
}

impl Opened {
    /// Returns the first TCP port and the first UDP port; 0 where there is no such listener.
    pub(crate) fn ports(&self) -> (u16, u16) {
        let tcp = self.addresses.iter().find_map(Address::port);
        let udp = self.udp_addresses.first().map(SocketAddr::port);
        (tcp.unwrap_or(0), udp.unwrap_or(0))
    }

    /// Returns every listener, streams first.
    pub(crate) fn sources(&self) -> Vec<ListenerInfo> {
        let streams = self.listeners.iter().zip(&self.addresses);
        let streams = streams.map(|(listener, address)| ListenerInfo {
            number: listener.number(),
            udp: false,
            address: match address {
                Address::Tcp(address) => format!("tcp:{address}"),
                Address::Unix(path) => format!("unix:{}", path.display()),
            },
        });
        let datagrams = self.udp.iter().zip(&self.udp_addresses);
        let datagrams = datagrams.map(|(listener, address)| ListenerInfo {
            number: listener.number(),
            udp: true,
            address: format!("udp:{address}"),
        });
        streams.chain(datagrams).collect()
    }

    /// Listens on every address of `interface` that can be bound, at least one.
    fn open_interface(&mut self, interface: &Interface, config: &Config) -> Result<(), StartError> {
        let before = self.listeners.len();
        let mut left_out = Vec::new();
        for &address in &interface.addresses {
            let opened = open_tcp(address, config.backlog)
                // Port 0 binds a free port: the socket knows which.
                .and_then(|listener| Ok((listener.local_addr()?, listener)));
            let (bound, listener) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    left_out.push(self.refused(address, error));
                    continue;
                }
            };
            self.addresses.push(Address::Tcp(bound));
            self.listeners.push(match config.tls {
                Some(_) if !interface.plain => StreamListener::Tls(listener),
                _ => StreamListener::Tcp(listener),
            });
        }
        if self.listeners.len() == before {
            return Err(left_out.pop().unwrap_or(StartError::NoAddress));
        }
        self.left_out.append(&mut left_out);
        Ok(())
    }

    /// Returns why `address` is not listened on.
    fn refused(&self, address: SocketAddr, source: io::Error) -> StartError {
        let overlaps = |earlier: &&SocketAddr| {
            // Addresses of one family only: IPv6 sockets take no IPv4 (`open_tcp`).
            let is_part = |ip: IpAddr| ip == address.ip() || ip.is_unspecified();
            earlier.port() == address.port()
                && earlier.is_ipv4() == address.is_ipv4()
                && (is_part(earlier.ip()) || address.ip().is_unspecified())
        };
        let mut bound = self.addresses.iter().filter_map(|bound| match bound {
            Address::Tcp(bound) => Some(bound),
            Address::Unix(_) => None,
        });
        match bound.find(overlaps) {
            Some(&earlier) if source.kind() == ErrorKind::AddrInUse => {
                StartError::Twice { address, earlier }
            }
            _ => refused(Address::Tcp(address), source),
        }
    }

    /// Binds the UDP port on every address of `interface` that can be bound, at least one.
    fn open_udp(
        &mut self,
        interface: &Interface,
        udp: &Udp,
        config: &Config,
    ) -> Result<(), StartError> {
        let before = self.udp.len();
        let mut last = StartError::NoAddress;
        for &address in &interface.addresses {
            let address = SocketAddr::new(address.ip(), udp.port);
            let opened = UdpListener::open(address, udp, config.item_bytes_max)
                .and_then(|listener| Ok((listener.address()?, listener)));
            match opened {
                Ok((bound, listener)) => {
                    self.udp_addresses.push(bound);
                    self.udp.push(listener);
                }
                Err(error) => {
                    last = StartError::ListenUdp {
                        address,
                        source: error,
                    }
                }
            }
        }
        if self.udp.len() == before {
            return Err(last);
        }
        Ok(())
    }
}

fn refused(address: Address, source: io::Error) -> StartError {
    if source.kind() == ErrorKind::AddrInUse {
        return StartError::InUse { address };
    }
    StartError::Listen { address, source }
}

/// As [`TcpListener::bind`], with the given backlog. IPv6 sockets are IPV6_V6ONLY, so that
/// `0.0.0.0` and `::` can be bound to the same port.
fn open_tcp(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    // Connections of an earlier server in TIME_WAIT do not keep the port (socket(7)).
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // Accepted connections inherit SO_KEEPALIVE. Without it a peer whose host or route has failed
    // would occupy one of the `-c` connections for good.
    sockopt::set_socket_keepalive(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &address)?;
    listen(&socket, backlog)?;
    Ok(TcpListener::from_std(socket.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_on(opened: &mut Opened, address: SocketAddr) -> Result<(), StartError> {
        opened.open_interface(&address.into(), &Config::default())
    }

    #[test]
    fn an_address_named_twice_is_not_that_of_another_process() {
        let mut opened = Opened::default();
        open_on(&mut opened, ([127, 0, 0, 1], 0).into()).unwrap();
        let Address::Tcp(first) = opened.addresses[0] else {
            panic!("no TCP");
        };
        let again = open_on(&mut opened, first);
        let Err(StartError::Twice { address, earlier }) = again else {
            panic!("{again:?}");
        };
        assert_eq!((address, earlier), (first, first));
        let all = SocketAddr::from(([0; 4], first.port()));
        let again = open_on(&mut opened, all);
        assert!(matches!(again, Err(StartError::Twice { .. })), "{again:?}");
        let mut other = Opened::default();
        let again = open_on(&mut other, first);
        assert!(matches!(again, Err(StartError::InUse { .. })), "{again:?}");
    }
}
