use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    os::fd::{AsRawFd, RawFd},
};

use mio::{Interest, Registry, Token, net};

use crate::{
    tls::TlsStream,
    udp::{Exchange, Sent},
    unix::UnixSocket,
};

/// A byte stream to a client.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(net::TcpStream),
    Unix(UnixSocket),
    Tls(Box<TlsStream>),
    /// One request; the answer leaves when all of it is there.
    Datagram(Box<Exchange>),
}

impl Stream {
    /// Announces both directions from now on, by edges.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        match self {
            Self::Tcp(stream) => registry.register(stream, token, both),
            Self::Unix(stream) => registry.register(stream, token, both),
            Self::Tls(stream) => registry.register(stream.socket_mut(), token, both),
            // All has arrived.
            Self::Datagram(_) => Ok(()),
        }
    }

    /// Its descriptor.
    pub(crate) fn number(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Tls(stream) => stream.socket().as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
            Self::Datagram(exchange) => exchange.number(),
        }
    }

    /// Its descriptor, and where it comes from; from nowhere if from a unix socket.
    pub(crate) fn origin(&self) -> (RawFd, Option<SocketAddr>) {
        // A peer that is gone already has no address.
        let from = match self {
            Self::Tcp(stream) => stream.peer_addr().ok(),
            Self::Tls(stream) => stream.socket().peer_addr().ok(),
            Self::Datagram(exchange) => Some(exchange.came_from()),
            Self::Unix(_) => None,
        };
        (self.number(), from)
    }

    /// Whether a read would find something that no event announces: a short read has emptied the
    /// socket, but not always what stands before it.
    pub(crate) fn has_more(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            Self::Tls(stream) => stream.has_more(),
            Self::Datagram(exchange) => exchange.has_more(),
        }
    }

    /// Most bytes that can still be read of those that have come; `None`: that cannot be told.
    pub(crate) fn unread(&self) -> Option<usize> {
        let unread = match self {
            Self::Tcp(stream) => rustix::io::ioctl_fionread(stream),
            Self::Unix(stream) => rustix::io::ioctl_fionread(stream),
            Self::Tls(stream) => return stream.unread_most(),
            Self::Datagram(_) => return None,
        };
        usize::try_from(unread.ok()?).ok()
    }

    /// Bytes that wait to leave, beside what the caller has to write again.
    pub(crate) fn owed(&self) -> usize {
        match self {
            Self::Tls(stream) => stream.owed(),
            Self::Tcp(_) | Self::Unix(_) | Self::Datagram(_) => 0,
        }
    }

    /// Bytes of memory that it takes outside the kernel as long as it lives.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Tcp(_) | Self::Unix(_) => 0,
            Self::Tls(stream) => stream.memory(),
            Self::Datagram(exchange) => exchange.memory(),
        }
    }

    /// Whether it is one request, and no connection.
    pub(crate) fn is_datagram(&self) -> bool {
        matches!(self, Self::Datagram(_))
    }

    /// All is said that will be.
    pub(crate) fn conclude(&self) -> Sent {
        match self {
            Self::Datagram(exchange) => exchange.answer(),
            _ => Sent::All,
        }
    }

    /// Takes back [`register`](Self::register).
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

    /// Sends what a write, or what stands before it, has kept back.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(_) | Self::Unix(_) | Self::Datagram(_) => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
