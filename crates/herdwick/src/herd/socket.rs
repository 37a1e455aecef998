use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

/// What a lease is made on: it blocks, for a time.
#[derive(Debug)]
pub(crate) enum LeaseSocket {
    /// The server's lease socket, over which descriptors come.
    Unix(UnixStream),
    /// A connection of its own to the memcached port.
    Tcp(TcpStream),
}

impl LeaseSocket {
    /// Lets no read or write take longer.
    pub(super) fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(socket) => {
                socket.set_read_timeout(limit)?;
                socket.set_write_timeout(limit)
            }
            Self::Tcp(socket) => {
                socket.set_read_timeout(limit)?;
                socket.set_write_timeout(limit)
            }
        }
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(socket) => Self::Unix(socket.try_clone()?),
            Self::Tcp(socket) => Self::Tcp(socket.try_clone()?),
        })
    }

    pub(super) fn shutdown(&self) -> io::Result<()> {
        match self {
            Self::Unix(socket) => socket.shutdown(Shutdown::Both),
            Self::Tcp(socket) => socket.shutdown(Shutdown::Both),
        }
    }
}

impl Read for LeaseSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.read(into),
            Self::Tcp(socket) => socket.read(into),
        }
    }
}

impl Write for LeaseSocket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.write(from),
            Self::Tcp(socket) => socket.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for LeaseSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(socket) => socket.as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
        }
    }
}
