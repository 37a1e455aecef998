use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    os::fd::AsRawFd,
};

use mio::{Interest, Registry, Token, net};

/// A byte stream to a client.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(net::TcpStream),
    Unix(net::UnixStream),
}

impl Stream {
    /// Announces both directions from now on, by edges.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        match self {
            Self::Tcp(stream) => registry.register(stream, token, both),
            Self::Unix(stream) => registry.register(stream, token, both),
        }
    }

    /// Its descriptor, and where it comes from; from nowhere if from a unix socket.
    pub(crate) fn origin(&self) -> (i32, Option<SocketAddr>) {
        match self {
            Self::Tcp(stream) => (stream.as_raw_fd(), stream.peer_addr().ok()),
            Self::Unix(stream) => (stream.as_raw_fd(), None),
        }
    }

    /// Takes back [`register`](Self::register).
    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => registry.deregister(stream),
            Self::Unix(stream) => registry.deregister(stream),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(from),
            Self::Unix(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
