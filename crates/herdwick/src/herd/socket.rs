use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::Path,
};

use rustix::net::sockopt::{self, Timeout};

use crate::{due::Due, stream};

/// What a lease is made on. It blocks, but no longer than until it is due.
#[derive(Debug)]
pub(crate) struct LeaseSocket {
    kind: Kind,
    due: Option<Due>,
}

#[derive(Debug)]
enum Kind {
    /// The server's lease socket, over which descriptors come.
    Unix(UnixStream),
    /// A connection of its own to the memcached port.
    Tcp(TcpStream),
}

impl LeaseSocket {
    /// Connects to a server's lease socket.
    pub(crate) fn unix(path: &Path, due: Due) -> io::Result<Self> {
        Ok(Self {
            kind: Kind::Unix(stream::unix(path, due)?),
            due: Some(due),
        })
    }

    /// Connects to a memcached port.
    pub(crate) fn tcp(peer: SocketAddr, due: Due) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&peer, due.left()?)?;
        socket.set_nodelay(true)?;
        Ok(Self {
            kind: Kind::Tcp(socket),
            due: Some(due),
        })
    }

    /// One whose other end a test holds.
    #[cfg(test)]
    pub(super) fn of(socket: UnixStream) -> Self {
        Self {
            kind: Kind::Unix(socket),
            due: None,
        }
    }

    /// When everything said here has to be said by.
    pub(super) fn due(&self) -> Option<Due> {
        self.due
    }

    /// Lets no read take longer than there is time; to be called before each that goes past
    /// [`Read`].
    pub(super) fn limit_read(&self) -> io::Result<()> {
        self.limit(Timeout::Recv)
    }

    fn limit(&self, which: Timeout) -> io::Result<()> {
        let Some(due) = self.due else { return Ok(()) };
        sockopt::set_socket_timeout(self, which, Some(due.left()?))?;
        Ok(())
    }

    /// The lease stands: from now on it blocks for as long as it takes.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        self.due = None;
        sockopt::set_socket_timeout(&*self, Timeout::Recv, None)?;
        sockopt::set_socket_timeout(&*self, Timeout::Send, None)?;
        Ok(())
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            kind: match &self.kind {
                Kind::Unix(socket) => Kind::Unix(socket.try_clone()?),
                Kind::Tcp(socket) => Kind::Tcp(socket.try_clone()?),
            },
            due: self.due,
        })
    }

    pub(super) fn shutdown(&self) -> io::Result<()> {
        match &self.kind {
            Kind::Unix(socket) => socket.shutdown(Shutdown::Both),
            Kind::Tcp(socket) => socket.shutdown(Shutdown::Both),
        }
    }
}

impl Read for LeaseSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.limit(Timeout::Recv)?;
        in_time(match &mut self.kind {
            Kind::Unix(socket) => socket.read(into),
            Kind::Tcp(socket) => socket.read(into),
        })
    }
}

impl Write for LeaseSocket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.limit(Timeout::Send)?;
        in_time(match &mut self.kind {
            Kind::Unix(socket) => socket.write(from),
            Kind::Tcp(socket) => socket.write(from),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for LeaseSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Unix(socket) => socket.as_fd(),
            Kind::Tcp(socket) => socket.as_fd(),
        }
    }
}

/// A socket with a timeout says that it would block, when it ends.
pub(super) fn in_time<T>(result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    })
}
