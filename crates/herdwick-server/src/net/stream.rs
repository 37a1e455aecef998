//! The byte stream of a connection: TCP, TLS, a unix socket, or one UDP datagram.

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    os::fd::{AsRawFd, RawFd},
};

use mio::{Interest, Registry, Token, net};

use crate::net::{
    tls::TlsStream,
    udp::{Sent, UdpExchange},
    unix::UnixSocket,
};

/// A byte stream to a client.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(net::TcpStream),
    Unix(UnixSocket),
    Tls(Box<TlsStream>),
    /// One datagram; the reply is sent when it is complete.
    Datagram(Box<UdpExchange>),
}

impl Stream {
    /// Registers both directions with the poller, edge-triggered.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        // Edge-triggered, an interest in writing has no events while nothing changes.
        let both = Interest::READABLE | Interest::WRITABLE;
        match self {
            Self::Tcp(stream) => registry.register(stream, token, both),
            Self::Unix(stream) => registry.register(stream, token, both),
            Self::Tls(stream) => registry.register(stream.socket_mut(), token, both),
            // A datagram has arrived completely.
            Self::Datagram(_) => Ok(()),
        }
    }

    /// Returns its descriptor.
    pub(crate) fn number(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Tls(stream) => stream.socket().as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
            Self::Datagram(exchange) => exchange.number(),
        }
    }

    /// Returns its descriptor and the peer's address; `None` for a unix socket or a peer that has
    /// gone.
    pub(crate) fn origin(&self) -> (RawFd, Option<SocketAddr>) {
        // `peer_addr` fails if the peer has gone.
        let from = match self {
            Self::Tcp(stream) => stream.peer_addr().ok(),
            Self::Tls(stream) => stream.socket().peer_addr().ok(),
            Self::Datagram(exchange) => Some(exchange.came_from()),
            Self::Unix(_) => None,
        };
        (self.number(), from)
    }

    /// Returns whether a read would return data that no event announces: a short read has emptied
    /// the socket, but not always the TLS buffer or the datagram in front of it.
    pub(crate) fn has_more(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            Self::Tls(stream) => stream.has_more(),
            Self::Datagram(exchange) => exchange.has_more(),
        }
    }

    /// Returns an upper bound of the bytes that have arrived and can still be read; `None` if it is
    /// unknown.
    pub(crate) fn unread(&self) -> Option<usize> {
        let unread = match self {
            Self::Tcp(stream) => rustix::io::ioctl_fionread(stream),
            Self::Unix(stream) => rustix::io::ioctl_fionread(stream),
            Self::Tls(stream) => return stream.unread_most(),
            Self::Datagram(_) => return None,
        };
        usize::try_from(unread.ok()?).ok()
    }

    /// Returns the bytes in the kernel that the peer has not acknowledged, for a unix socket that
    /// it has not read; `None` if it is unknown.
    pub(crate) fn untaken(&self) -> Option<usize> {
        let untaken = match self {
            Self::Tcp(stream) => herdwick_mem::unread_bytes(stream),
            Self::Unix(stream) => herdwick_mem::unread_bytes(stream),
            Self::Tls(stream) => herdwick_mem::unread_bytes(stream.socket()),
            Self::Datagram(_) => return None,
        };
        untaken.ok()
    }

    /// Returns the accepted bytes that are not in the kernel yet.
    pub(crate) fn owed(&self) -> usize {
        match self {
            Self::Tls(stream) => stream.owed(),
            Self::Tcp(_) | Self::Unix(_) | Self::Datagram(_) => 0,
        }
    }

    /// Returns the bytes of user memory that it takes as long as it lives.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Tcp(_) | Self::Unix(_) => 0,
            Self::Tls(stream) => stream.memory(),
            Self::Datagram(exchange) => exchange.memory(),
        }
    }

    /// Returns whether it is one datagram instead of a connection.
    pub(crate) fn is_datagram(&self) -> bool {
        matches!(self, Self::Datagram(_))
    }

    /// Ends the output: sends the reply to a datagram.
    pub(crate) fn conclude(&self) -> Sent {
        match self {
            Self::Datagram(exchange) => exchange.answer(),
            _ => Sent::All,
        }
    }

    /// Undoes [`register`](Self::register).
    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => registry.deregister(stream),
            Self::Unix(stream) => registry.deregister(stream),
            Self::Tls(stream) => registry.deregister(stream.socket_mut()),
            Self::Datagram(_) => Ok(()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
            Self::Tls(stream) => stream.read(into),
            Self::Datagram(exchange) => exchange.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(from),
            Self::Unix(stream) => stream.write(from),
            Self::Tls(stream) => stream.write(from),
            Self::Datagram(exchange) => exchange.write(from),
        }
    }

    /// Sends the bytes that TLS has buffered.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(_) | Self::Unix(_) | Self::Datagram(_) => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
