use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use crate::{Address, DialError};

/// A connected socket that never blocks.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects, trying each address of a name until `deadline` has gone by.
    pub(crate) fn dial(address: &Address, deadline: Duration) -> Result<Self, DialError> {
        match address {
            Address::Tcp(host) => tcp(host, deadline).map(Self::Tcp),
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Ok(Self::Unix(stream))
            }
        }
    }

    /// Its addresses, ours and the peer's, where it has any.
    pub(crate) fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        match self {
            Self::Tcp(stream) => Some((stream.local_addr().ok()?, stream.peer_addr().ok()?)),
            Self::Unix(_) => None,
        }
    }

    /// Writes what the socket takes; `None`: nothing now.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        unless_blocked(match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        })
    }

    /// Reads what has arrived; `None`: nothing now; 0: the peer has closed.
    pub(crate) fn read(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        unless_blocked(match self {
            Self::Tcp(stream) => stream.read(room),
            Self::Unix(stream) => stream.read(room),
        })
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

fn tcp(host: &str, deadline: Duration) -> Result<TcpStream, DialError> {
    let addresses = host
        .to_socket_addrs()
        .map_err(|error| DialError::Name(error.to_string()))?;
    let start = clock();
    let mut outcome = Err(DialError::Name("it has no address".into()));
    for address in addresses {
        let left = deadline
            .saturating_sub(clock() - start)
            .max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                return Ok(stream);
            }
            Err(error) => outcome = Err(error.into()),
        }
    }
    outcome
}

#[expect(
    clippy::disallowed_methods,
    reason = "dialling blocks, and must end in time"
)]
pub(crate) fn clock() -> Instant {
    Instant::now()
}

fn unless_blocked(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(len) => Ok(Some(len)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        },
    }
}
