//! Listening unix sockets: bound at a path that one server at a time can take, and closed without
//! blocking on the descriptors in connections that were not accepted.

use std::{
    fs::{self, Permissions},
    io::{self, ErrorKind},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use mio::{
    Interest, Registry, Token,
    event::Source,
    net::{UnixListener, UnixStream},
};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen,
        shutdown, socket_with,
    },
    process::geteuid,
};

use super::{REFUSED, UnixSocket, closers};
use crate::file_lock::PathLock;

/// Most connections that are accepted when a listener is closed, to close each of them; the rest is
/// closed with the listener.
const UNACCEPTED_MAX: usize = 1024;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    /// `None` only while it is dropped.
    socket: Option<UnixListener>,
}

impl From<OwnedFd> for Listener {
    /// Takes a listening socket, which must not block.
    fn from(socket: OwnedFd) -> Self {
        let socket = Some(UnixListener::from(socket));
        Self { socket }
    }
}

impl Listener {
    /// Accepts a connection.
    ///
    /// # Errors
    /// The errors of `accept`; `QuotaExceeded` while too many sockets wait to be closed,
    /// `ConnectionAborted` for a connection of a user with too many of them: connections of other
    /// users may be behind it.
    pub(crate) fn accept(&self) -> io::Result<UnixSocket> {
        // Meanwhile connections wait in the kernel's queue.
        if closers::held() >= closers::HELD_MAX {
            return Err(ErrorKind::QuotaExceeded.into());
        }
        let listener = self.socket.as_ref().ok_or(ErrorKind::NotConnected)?;
        let (stream, _) = listener.accept()?;
        let socket = UnixSocket::new(stream);
        if closers::is_full(socket.user()) {
            REFUSED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return Err(ErrorKind::ConnectionAborted.into());
        }
        Ok(socket)
    }

    /// Accepts and closes the connections that wait; returns whether none is left.
    fn close_unaccepted(&self) -> bool {
        for _ in 0..UNACCEPTED_MAX {
            let Err(error) = self.accept() else {
                continue;
            };
            match error.kind() {
                ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                // EINVAL: the queue of a socket that was shut down is empty.
                ErrorKind::WouldBlock | ErrorKind::InvalidInput => return true,
                _ => return false,
            }
        }
        false
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }
}

impl Source for Listener {
    fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        let socket = self.socket.as_mut().ok_or(ErrorKind::NotConnected)?;
        socket.register(registry, token, interests)
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        let socket = self.socket.as_mut().ok_or(ErrorKind::NotConnected)?;
        socket.reregister(registry, token, interests)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        let socket = self.socket.as_mut().ok_or(ErrorKind::NotConnected)?;
        socket.deregister(registry)
    }
}

impl Drop for Listener {
    /// Closes the socket on this thread if no connection waits in it: such a connection is closed
    /// with it, and with the connection the descriptors that its client has sent.
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            // From here on connecting fails, so what waits is bounded by the backlog. Fails for no
            // listening socket.
            let _ = shutdown(socket, Shutdown::Read);
        }
        let empty = self.close_unaccepted();
        if let (false, Some(socket)) = (empty, self.socket.take()) {
            let socket = UnixStream::from(OwnedFd::from(socket));
            closers::close(geteuid().as_raw(), socket);
        }
    }
}

/// The file of a listening socket, removed on drop.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl SocketFile {
    /// Identifies the file of a socket that was just bound at `path`.
    fn at(path: &Path) -> io::Result<Self> {
        let file = identity(path)?;
        let path = path.to_owned();
        Ok(Self { path, file })
    }
}

impl Drop for SocketFile {
    /// Removes the file, unless another file has taken its path.
    fn drop(&mut self) {
        let lock = PathLock::take(&self.path);
        if matches!(&lock, Err(error) if error.kind() == ErrorKind::WouldBlock) {
            // A server that starts has the path, and replaces the file.
            return;
        }
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            // On failure the file stays; the next start replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Listens on a unix socket at `path`. Replaces a socket file on which no server listens any more,
/// and refuses to replace one on which a server does.
///
/// # Errors
/// `AddrInUse`: a server listens there, or starts to. `AlreadyExists`: a file that is no socket.
pub(crate) fn open(path: &Path, mode: u32, backlog: i32) -> io::Result<(Listener, SocketFile)> {
    // Without the lock a server that starts at the same time could find the file before anything
    // listens on it, and replace it.
    let _lock = PathLock::take(path).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => ErrorKind::AddrInUse.into(),
        _ => error,
    })?;
    remove_stale(path)?;
    let socket = stream_socket()?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    let file = SocketFile::at(path)?;
    // Before it listens: no client connects under the default mode.
    let listener = fs::set_permissions(path, Permissions::from_mode(mode))
        .and_then(|()| Ok(listen(&socket, backlog)?));
    match listener {
        Ok(()) => Ok((Listener::from(socket), file)),
        Err(error) => {
            // Before the lock is dropped, which `file` takes as well.
            let _ = fs::remove_file(path);
            Err(error)
        }
    }
}

/// Removes a socket file on which nothing listens.
fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => {
            let reason = "there is a file, which is not a socket";
            return Err(io::Error::new(ErrorKind::AlreadyExists, reason));
        }
        // The attempt to bind there reports what is wrong with the path.
        Err(_) => return Ok(()),
    }
    match connect(&stream_socket()?, &SocketAddrUnix::new(path)?) {
        // EAGAIN: the backlog of who listens is full.
        Ok(()) | Err(Errno::AGAIN) => Err(ErrorKind::AddrInUse.into()),
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn stream_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::net::{UnixListener as Plain, UnixStream as Client},
        sync::{Barrier, atomic::Ordering, mpsc},
        thread,
        time::Duration,
    };

    use rustix::net::SendFlags;

    use super::*;
    use crate::net::unix::{
        CLOSED,
        tests::{lingering, send_with},
    };

    /// A bound for failures, which no passing test reaches.
    const TIMEOUT: Duration = Duration::from_secs(20);

    /// A path for this test, removed on drop.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let name = format!("herdwick-listener-{}-{name}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        fn open(&self) -> io::Result<(Listener, SocketFile)> {
            open(&self.0, 0o700, 16)
        }

        fn refused(&self) -> Option<ErrorKind> {
            self.open().err().map(|error| error.kind())
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    /// A client that was not accepted has sent the last descriptor of a connection that lingers.
    #[test]
    fn descriptors_in_a_connection_not_accepted_are_closed_elsewhere() {
        let place = Place::new("unaccepted");
        let (listener, _file) = place.open().unwrap();
        let client = Client::connect(&place.0).unwrap();
        let (near, _far) = lingering();
        send_with(&client, b"x", &near, SendFlags::empty());
        drop(near);
        let closed = CLOSED.load(Ordering::Relaxed);
        drop(listener);
        assert!(CLOSED.load(Ordering::Relaxed) > closed);
    }

    /// Each finds a file on which nothing listens. What one has bound, the other does not replace,
    /// nor remove when it fails.
    #[test]
    fn of_two_that_open_one_path_at_the_same_time_one_fails() {
        let place = Place::new("race");
        let mut opened = 0;
        for round in 0..500 {
            drop(Plain::bind(&place.0).unwrap());
            let start = Barrier::new(2);
            let both = || {
                start.wait();
                let opened = place.open().ok();
                start.wait();
                opened
            };
            let listening: Vec<_> = thread::scope(|scope| {
                let other = scope.spawn(both);
                [both(), other.join().unwrap()]
                    .into_iter()
                    .flatten()
                    .collect()
            });
            assert!(listening.len() <= 1, "round {round}");
            if let Some((_, file)) = listening.first() {
                assert_eq!(identity(&place.0).unwrap(), file.file);
                Client::connect(&place.0).unwrap();
                opened += 1;
            }
            drop(listening);
            let _ = fs::remove_file(&place.0);
        }
        assert!(opened > 0);
    }

    #[test]
    fn a_path_is_in_use_although_the_backlog_of_its_server_is_full() {
        let place = Place::new("backlog");
        let socket = stream_socket().unwrap();
        let address = SocketAddrUnix::new(&place.0).unwrap();
        bind(&socket, &address).unwrap();
        listen(&socket, 0).unwrap();
        let waiting = [(); 8].map(|()| stream_socket().unwrap());
        let full = waiting.iter().find(|one| connect(one, &address).is_err());
        assert!(full.is_some());
        let (told, result) = mpsc::channel();
        let path = place.0.clone();
        thread::spawn(move || told.send(open(&path, 0o700, 16).err().map(|error| error.kind())));
        let refused = result.recv_timeout(TIMEOUT).expect("it does not wait");
        assert_eq!(refused, Some(ErrorKind::AddrInUse));
        assert!(place.0.exists());
    }

    #[test]
    fn only_a_socket_without_a_listener_is_replaced() {
        let place = Place::new("stale");
        fs::write(&place.0, "a letter").unwrap();
        assert_eq!(place.refused(), Some(ErrorKind::AlreadyExists));
        assert_eq!(fs::read_to_string(&place.0).unwrap(), "a letter");
        fs::remove_file(&place.0).unwrap();
        let foreign = Plain::bind(&place.0).unwrap();
        assert_eq!(place.refused(), Some(ErrorKind::AddrInUse));
        drop(foreign);
        let (listener, file) = place.open().unwrap();
        assert_eq!(place.refused(), Some(ErrorKind::AddrInUse));
        // Another server has the path by now.
        fs::remove_file(&place.0).unwrap();
        let _other = Plain::bind(&place.0).unwrap();
        drop((listener, file));
        Client::connect(&place.0).unwrap();
    }
}
