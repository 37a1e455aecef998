//! A connection to a server's memcached port for programs that speak its protocol themselves, such
//! as load generators: dialled, under TLS and logged in like those of a session.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
};

use crate::{Address, DialError, Options, due::Due, memcached_port::MemcachedPort, stream::Stream};

/// A byte stream to a server's memcached port that never blocks: reads and writes that have to wait
/// return [`ErrorKind::WouldBlock`].
///
/// A write that returns `WouldBlock` must be repeated with the same bytes first: under TLS they may be
/// encrypted already.
#[derive(Debug)]
pub struct Connection(Stream);

impl Connection {
    /// Connects to `address` within [`Options::deadline`], with TLS if [`Options::tls`] is set. Sends
    /// [`Options::login`] to a server that requires it.
    ///
    /// # Errors
    /// [`DialError`].
    pub fn dial(address: &Address, options: &Options) -> Result<Self, DialError> {
        let memcached_port = MemcachedPort::new(address, options);
        Ok(Self(memcached_port.open(Due::after(options.deadline))?))
    }

    /// The server's address; `None` over a unix socket.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.0.ends().map(|(_, peer)| peer)
    }

    /// Whether the connection is under TLS. Then a read that fills less than its buffer does not mean
    /// that the socket is empty.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        matches!(self.0, Stream::Tls(_))
    }
}

impl Read for Connection {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0
            .read(room)?
            .ok_or_else(|| ErrorKind::WouldBlock.into())
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .write(bytes)?
            .ok_or_else(|| ErrorKind::WouldBlock.into())
    }

    /// Does nothing: a write returns when its bytes have been given to the socket.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
