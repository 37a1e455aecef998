//! Non-blocking sockets to a memcached port, TCP or unix; only dialling waits, until a deadline.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
        sockopt::{self, Timeout},
    },
};

use crate::{
    Address, DialError,
    due::Due,
    tls::{Tls, TlsStream},
};

/// Idle time after which a connection sends keepalive probes, so that a NAT in between does not
/// forget it.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// A connected socket that never blocks.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream>),
}

impl Stream {
    /// Connects; tries each address of a name until `due`.
    pub(crate) fn dial(address: &Address, due: Due) -> Result<Self, DialError> {
        match address {
            Address::Tcp(host) => tcp(host, due).map(Self::Tcp),
            Address::Unix(path) => {
                let stream = unix(path, due)?;
                stream.set_nonblocking(true)?;
                Ok(Self::Unix(stream))
            }
        }
    }

    /// Returns the local and the peer's address, if it has addresses.
    pub(crate) fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        match self {
            Self::Tcp(stream) => Some((stream.local_addr().ok()?, stream.peer_addr().ok()?)),
            Self::Tls(stream) => {
                let socket = stream.socket();
                Some((socket.local_addr().ok()?, socket.peer_addr().ok()?))
            }
            Self::Unix(_) => None,
        }
    }

    /// The same connection under TLS.
    pub(crate) fn encrypted(self, tls: &Tls, due: Due) -> Result<Self, DialError> {
        match self {
            Self::Tcp(socket) => Ok(Self::Tls(tls.connect(socket, due)?.into())),
            other => Ok(other),
        }
    }

    /// Whether a read would find something that no wait for the descriptor shows.
    pub(crate) fn has_unread(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            Self::Tls(stream) => stream.has_unread(),
        }
    }

    /// Writes what the socket accepts; `None`: nothing now.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        unless_blocked(match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        })
    }

    /// Reads what has arrived; `None`: nothing now; 0: the peer has closed.
    pub(crate) fn read(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        unless_blocked(match self {
            Self::Tcp(stream) => stream.read(room),
            Self::Unix(stream) => stream.read(room),
            Self::Tls(stream) => stream.read(room),
        })
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.as_fd(),
        }
    }
}

fn tcp(host: &str, due: Due) -> Result<TcpStream, DialError> {
    let addresses = host
        .to_socket_addrs()
        .map_err(|error| DialError::Name(error.to_string()))?;
    let mut outcome = Err(DialError::Name("it has no address".into()));
    for address in addresses {
        let connected = due
            .left()
            .and_then(|left| TcpStream::connect_timeout(&address, left));
        match connected {
            Ok(stream) => {
                // A request must not wait until the one before is acknowledged (Nagle's algorithm).
                stream.set_nodelay(true)?;
                keep_alive(&stream)?;
                stream.set_nonblocking(true)?;
                return Ok(stream);
            }
            Err(error) => outcome = Err(error.into()),
        }
    }
    outcome
}

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_IDLE)?;
    Ok(())
}

/// Connects to a unix socket. If the server's backlog is full, waits for a place in it until `due`.
pub(crate) fn unix(path: &Path, due: Due) -> io::Result<UnixStream> {
    // `UnixStream::connect` would wait without limit while the backlog is full: the timeout has to
    // be set before.
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(due.left()?))?;
        match connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            // EAGAIN is how connect reports that a socket's send timeout has passed.
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
    // It would bound later writes, too.
    sockopt::set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(UnixStream::from(socket))
}

fn unless_blocked(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(len) => Ok(Some(len)),
        Err(error) => match error.kind() {
            // After an interrupted call the caller waits and tries again, too.
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        },
    }
}
