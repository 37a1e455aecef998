use std::{
    io::{self, ErrorKind, Write},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
    time::Duration,
};

use herdwick_mem::spsc::Producer;
use herdwick_memcache::text;
use mio::{
    Events, Interest, Poll, Token,
    net::{TcpListener, UnixListener},
};

use crate::{
    config::{Address, Listen, StartError},
    facts::Facts,
    parking::Bell,
    stopping::Stopping,
    tcp::Stream,
};

/// How long accepting rests when the process has no descriptors left, or no connections.
const PAUSE: Duration = Duration::from_millis(50);
/// The token of the waker; listeners count from 0.
pub(crate) const WAKE: Token = Token(usize::MAX);

/// A socket that connections come from.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Opens every listener of `listen`.
pub(crate) fn open(listen: &Listen, backlog: u32) -> Result<Vec<(Listener, Address)>, StartError> {
    match listen {
        Listen::Tcp(addresses) => addresses
            .iter()
            .map(|&address| {
                let opened = open_tcp(address, backlog)
                    .and_then(|listener| Ok((listener.local_addr()?, listener)));
                let (bound, listener) =
                    opened.map_err(|error| refused(Address::Tcp(address), error))?;
                Ok((Listener::Tcp(listener), Address::Tcp(bound)))
            })
            .collect(),
        Listen::Unix { path, mode } => {
            let address = Address::Unix(path.clone());
            let listener =
                open_unix(path, *mode).map_err(|error| refused(address.clone(), error))?;
            Ok(vec![(Listener::Unix(listener), address)])
        }
    }
}

fn refused(address: Address, source: io::Error) -> StartError {
    if source.kind() == ErrorKind::AddrInUse {
        return StartError::InUse { address };
    }
    StartError::Listen { address, source }
}

/// As [`TcpListener::bind`], with a backlog of one's own, and with IPv6 sockets for IPv6 only: so
/// that `0.0.0.0` and `::` may stand side by side.
fn open_tcp(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &address)?;
    listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(TcpListener::from_std(socket.into()))
}

/// Takes the place of a socket whose owner is gone, never that of one who listens.
fn open_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    use std::os::unix::{fs::FileTypeExt, net::UnixStream};
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket {
        if UnixStream::connect(path).is_ok() {
            return Err(ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))?;
    Ok(listener)
}

/// The thread that accepts, and deals connections out to the workers in turn.
pub(crate) struct Acceptor {
    pub(crate) poll: Poll,
    pub(crate) listeners: Vec<Listener>,
    /// One for each worker. A queue holds as many as there may be connections, so it has room.
    pub(crate) intakes: Vec<(Producer<Stream>, Bell)>,
    pub(crate) facts: Arc<Facts>,
    pub(crate) stopping: Arc<Stopping>,
    pub(crate) next: usize,
}

impl Acceptor {
    /// Watches the listeners.
    pub(crate) fn register(&mut self) -> io::Result<()> {
        for (index, listener) in self.listeners.iter_mut().enumerate() {
            let registry = self.poll.registry();
            match listener {
                Listener::Tcp(tcp) => registry.register(tcp, Token(index), Interest::READABLE)?,
                Listener::Unix(unix) => {
                    registry.register(unix, Token(index), Interest::READABLE)?
                }
            }
        }
        Ok(())
    }

    /// Accepts until the server stops.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(16);
        let mut patience = None;
        while !self.stopping.is_set() {
            // After an interruption, as after an event, all listeners are looked at.
            let _ = self.poll.poll(&mut events, patience);
            let exhausted = (0..self.listeners.len()).any(|index| !self.accept_all(index));
            self.facts.limits.rest(exhausted);
            patience = exhausted.then_some(PAUSE);
        }
    }

    /// Accepts all that wait; `false`: some may be left for want of descriptors, or of room.
    fn accept_all(&mut self, index: usize) -> bool {
        loop {
            if !self.facts.settings.refuse_at_once && self.facts.limits.is_full() {
                return false;
            }
            let accepted = match &self.listeners[index] {
                Listener::Tcp(tcp) => tcp.accept().map(|(stream, _)| {
                    // Replies leave as they are written; a refusal costs latency only.
                    let _ = stream.set_nodelay(true);
                    Stream::Tcp(stream)
                }),
                Listener::Unix(unix) => unix.accept().map(|(stream, _)| Stream::Unix(stream)),
            };
            match accepted {
                Ok(stream) => self.deal(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if is_exhaustion(&error) => return false,
                // The peer is gone already, or the call was interrupted.
                Err(_) => {}
            }
        }
    }

    fn deal(&mut self, mut stream: Stream) {
        if !self.facts.limits.enter() {
            // Best effort: the connection ends either way.
            let _ = stream.write(text::TOO_MANY_CONNECTIONS);
            return;
        }
        let (intake, bell) = &mut self.intakes[self.next];
        if intake.push(stream).is_err() {
            self.facts.limits.leave();
        }
        bell.ring();
        self.next = (self.next + 1) % self.intakes.len();
    }
}

/// No descriptors or memory: accepting again at once would spin.
fn is_exhaustion(error: &io::Error) -> bool {
    use rustix::io::Errno;
    Errno::from_io_error(error).is_some_and(|errno| {
        [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].contains(&errno)
    })
}
