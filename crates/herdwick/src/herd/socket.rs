//! The socket of a lease: blocking, but bounded by a deadline until the lease is established.

use std::{
    io::{self, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::Path,
};

use rustix::net::sockopt::{self, Timeout};

use crate::{due::Due, stream};

/// The socket of a lease. Its calls block, but not beyond `due`.
#[derive(Debug)]
pub(crate) struct LeaseSocket {
    kind: SocketKind,
    due: Option<Due>,
}

#[derive(Debug)]
enum SocketKind {
    /// The server's lease socket, which transfers descriptors.
    Unix(UnixStream),
    /// A separate connection to the memcached port.
    Tcp(TcpStream),
}

impl LeaseSocket {
    /// Connects to a server's lease socket.
    pub(crate) fn unix(path: &Path, due: Due) -> io::Result<Self> {
        Ok(Self {
            kind: SocketKind::Unix(stream::unix(path, due)?),
            due: Some(due),
        })
    }

    /// Connects to a memcached port.
    pub(crate) fn tcp(peer: SocketAddr, due: Due) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&peer, due.left()?)?;
        // A frame is not to wait for the acknowledgement of the one before it.
        socket.set_nodelay(true)?;
        Ok(Self {
            kind: SocketKind::Tcp(socket),
            due: Some(due),
        })
    }

    /// Makes one with its other end held by a test.
    #[cfg(test)]
    pub(super) fn of(socket: UnixStream) -> Self {
        Self {
            kind: SocketKind::Unix(socket),
            due: None,
        }
    }

    /// The deadline of the handshake.
    pub(crate) fn due(&self) -> Option<Due> {
        self.due
    }

    /// Limits a read to the time left. Call it before each.
    pub(super) fn limit_read(&self) -> io::Result<()> {
        self.limit(Timeout::Recv)
    }

    fn limit(&self, which: Timeout) -> io::Result<()> {
        let Some(due) = self.due else { return Ok(()) };
        sockopt::set_socket_timeout(self, which, Some(due.left()?))?;
        Ok(())
    }

    /// Removes the deadline: the lease is established, and its calls may block for ever.
    pub(crate) fn settle(&mut self) -> io::Result<()> {
        self.due = None;
        sockopt::set_socket_timeout(&*self, Timeout::Recv, None)?;
        sockopt::set_socket_timeout(&*self, Timeout::Send, None)?;
        Ok(())
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            kind: match &self.kind {
                SocketKind::Unix(socket) => SocketKind::Unix(socket.try_clone()?),
                SocketKind::Tcp(socket) => SocketKind::Tcp(socket.try_clone()?),
            },
            due: self.due,
        })
    }

    pub(super) fn shutdown(&self) -> io::Result<()> {
        match &self.kind {
            SocketKind::Unix(socket) => socket.shutdown(Shutdown::Both),
            SocketKind::Tcp(socket) => socket.shutdown(Shutdown::Both),
        }
    }
}

impl Write for LeaseSocket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.limit(Timeout::Send)?;
        in_time(match &mut self.kind {
            SocketKind::Unix(socket) => socket.write(from),
            SocketKind::Tcp(socket) => socket.write(from),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for LeaseSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            SocketKind::Unix(socket) => socket.as_fd(),
            SocketKind::Tcp(socket) => socket.as_fd(),
        }
    }
}

/// Maps the error of a socket timeout: the socket reports that it would block.
pub(super) fn in_time<T>(result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    })
}
