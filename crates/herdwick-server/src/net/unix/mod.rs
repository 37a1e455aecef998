//! Unix sockets. Clients are not trusted: the server reads and closes without blocking on descriptors
//! that they send.
//!
//! A unix socket carries descriptors as well as bytes. No client has to send any; but reading such bytes,
//! or closing the socket that holds them, also drops the descriptors, and dropping the last one of a TCP
//! socket that lingers, or of a FUSE file, blocks for as long as its owner likes.
//! So bytes are peeked at before they are read. If they carry descriptors, the connection ends, and
//! its socket is closed by a thread that does nothing else ([`closers`]).

mod closers;
mod listener;

use std::{
    io::{self, ErrorKind, IoSliceMut, Read, Write},
    net::Shutdown,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
        unix::net::SocketAddr,
    },
    sync::atomic::{AtomicU64, Ordering},
};

pub(crate) use listener::{Listener, SocketFile, open};
use mio::{Interest, Registry, Token, event::Source, net::UnixStream};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg, sockopt};

/// Most peeks of [`CHECK_BYTES`] each at the rest of a socket that is to be closed: more than a
/// socket holds under Linux's defaults.
const CHECKS_MAX: usize = 128;
const CHECK_BYTES: usize = 4096;

/// A connection.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    /// `None` only while it is dropped.
    stream: Option<UnixStream>,
    /// The peer's user, from SO_PEERCRED.
    user: u32,
}

impl UnixSocket {
    pub(crate) fn new(stream: UnixStream) -> Self {
        // Otherwise a byte sent out of band is skipped, unseen by any peek, and its descriptors are
        // dropped. Fails on kernels without out-of-band data for unix sockets.
        let _ = sockopt::set_socket_oobinline(&stream, true);
        let peer = sockopt::socket_peercred(&stream);
        Self {
            stream: Some(stream),
            // Peers without credentials share one quota.
            user: peer.map_or(u32::MAX, |peer| peer.uid.as_raw()),
        }
    }

    /// Returns the user that connected.
    pub(crate) fn user(&self) -> u32 {
        self.user
    }

    fn stream(&self) -> io::Result<&UnixStream> {
        let stream = self.stream.as_ref();
        stream.ok_or_else(|| ErrorKind::NotConnected.into())
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream()?.local_addr()
    }

    /// Peeks at the next bytes; an error if they carry descriptors.
    fn check(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut control = RecvAncillaryBuffer::default();
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let into = &mut [IoSliceMut::new(into)];
        let seen = recvmsg(self.stream()?, into, &mut control, flags)?;
        // The kernel ends each peek, and each read, after the first bytes that carry descriptors.
        if seen.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::new(
                ErrorKind::PermissionDenied,
                "the peer sends descriptors",
            ));
        }
        Ok(seen.bytes)
    }
}

impl Read for UnixSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.check(into)?;
        // Only bytes that the peek has seen are read: those behind them may carry descriptors.
        self.stream()?.read(&mut into[..count])
    }
}

impl Write for UnixSocket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream()?.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for UnixSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let stream = self.stream.as_ref();
        stream.expect("it is there until dropped").as_fd()
    }
}

impl AsRawFd for UnixSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Source for UnixSocket {
    fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        let stream = self.stream.as_mut().ok_or(ErrorKind::NotConnected)?;
        stream.register(registry, token, interests)
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        let stream = self.stream.as_mut().ok_or(ErrorKind::NotConnected)?;
        stream.reregister(registry, token, interests)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        let stream = self.stream.as_mut().ok_or(ErrorKind::NotConnected)?;
        stream.deregister(registry)
    }
}

impl Drop for UnixSocket {
    /// Closes the socket on this thread if it holds no descriptors.
    fn drop(&mut self) {
        // After this the peer cannot add data. Fails only if the peer has disconnected, and then it
        // cannot either.
        let shut = self.stream().map(|stream| stream.shutdown(Shutdown::Read));
        drop(shut);
        let mut bytes = [0; CHECK_BYTES];
        let empty = (0..CHECKS_MAX).find_map(|_| match self.read(&mut bytes) {
            Ok(0) => Some(true),
            Ok(_) => None,
            // A reset, of a peer that closed with bytes of ours unread, is reported once; what the
            // peer sent is still there, to be checked.
            Err(error) if is_passing(error.kind()) => None,
            // WouldBlock: the socket is empty. Any other error means descriptors.
            Err(error) => Some(error.kind() == ErrorKind::WouldBlock),
        });
        if let (false, Some(stream)) = (empty.unwrap_or(false), self.stream.take()) {
            close_elsewhere(self.user, stream);
        }
    }
}

/// Returns whether a read that failed so may succeed if it is tried again.
fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Interrupted | ErrorKind::ConnectionReset)
}

/// Sockets closed on another thread since the start.
static CLOSED: AtomicU64 = AtomicU64::new(0);
/// Connections refused since the start because their user had too many sockets waiting.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Counters and gauges of this process.
pub(crate) struct Counts {
    /// Sockets closed on another thread since the start.
    pub(crate) descriptors_refused: u64,
    /// Connections refused since the start because their user had too many sockets waiting.
    pub(crate) users_refused: u64,
    /// Sockets that wait to be closed or are being closed.
    pub(crate) sockets_closing: u64,
    /// Threads that have been closing one socket for long.
    pub(crate) closers_stuck: u64,
}

pub(crate) fn counts() -> Counts {
    Counts {
        descriptors_refused: CLOSED.load(Ordering::Relaxed),
        users_refused: REFUSED.load(Ordering::Relaxed),
        sockets_closing: closers::held() as u64,
        closers_stuck: closers::stuck() as u64,
    }
}

/// Has `stream` closed on another thread. Its peer finds it closed at once.
#[cold]
fn close_elsewhere(user: u32, stream: UnixStream) {
    // Fails only if the peer has disconnected.
    let _ = stream.shutdown(Shutdown::Both);
    CLOSED.fetch_add(1, Ordering::Relaxed);
    closers::close(user, stream);
}

#[cfg(test)]
mod tests {
    use std::{
        io::IoSlice,
        net::{TcpListener, TcpStream},
        os::unix::net::UnixStream as Plain,
        time::Duration,
    };

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    fn pair() -> (UnixSocket, Plain) {
        let (ours, theirs) = Plain::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (UnixSocket::new(UnixStream::from_std(ours)), theirs)
    }

    /// Returns a connection with so much unsent data that closing it blocks for its linger time.
    pub(super) fn lingering() -> (TcpStream, TcpListener) {
        let far = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(far.local_addr().unwrap()).unwrap();
        let timeout = Duration::from_secs(60);
        sockopt::set_socket_linger(&near, Some(timeout)).unwrap();
        near.set_nonblocking(true).unwrap();
        while (&near).write(&[0; 1 << 16]).is_ok() {}
        (near, far)
    }

    pub(super) fn send_with(socket: &Plain, bytes: &[u8], fd: impl AsFd, flags: SendFlags) {
        let fds = [fd.as_fd()];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
        assert_eq!(sent, Ok(bytes.len()));
    }

    #[test]
    fn unix_socket_bytes_arrive_as_sent() {
        let (mut ours, mut theirs) = pair();
        let mut bytes = [0; 8];
        assert_eq!(
            ours.read(&mut bytes).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        theirs.write_all(b"some bytes").unwrap();
        assert_eq!(ours.read(&mut bytes).unwrap(), 8);
        assert_eq!(&bytes, b"some byt");
        assert_eq!(ours.read(&mut bytes).unwrap(), 2);
        drop(theirs);
        assert_eq!(ours.read(&mut bytes).unwrap(), 0);
    }

    #[test]
    fn bytes_with_descriptors_are_refused_and_earlier_bytes_are_read() {
        let (mut ours, mut theirs) = pair();
        theirs.write_all(b"first").unwrap();
        let (end, _) = Plain::pair().unwrap();
        send_with(&theirs, b"second", &end, SendFlags::empty());
        let mut bytes = [0; 64];
        // The first read may end before the descriptors, or find them.
        let first = ours.read(&mut bytes);
        assert!(matches!(&first, Ok(5)) || first.is_err());
        for _ in 0..2 {
            let refused = ours.read(&mut bytes).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        }
    }

    /// Only a closer thread waits for a lingering socket, whether sent in band or out of band.
    #[test]
    fn socket_with_descriptors_is_closed_by_a_closer_thread() {
        let mut kept = Vec::new();
        for flags in [SendFlags::empty(), SendFlags::OOB] {
            let (mut ours, theirs) = pair();
            let (near, far) = lingering();
            send_with(&theirs, b"x", &near, flags);
            drop(near);
            // The last descriptor of the lingering connection is in our socket now.
            let refused = ours.read(&mut [0; 64]).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{flags:?}");
            let closed = CLOSED.load(Ordering::Relaxed);
            drop(ours);
            assert!(CLOSED.load(Ordering::Relaxed) > closed);
            kept.push(far);
        }
        // Its owner holds on to it, but a signal interrupts the close.
        while closers::held() > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn socket_with_unread_bytes_is_closed_at_once() {
        let (ours, mut theirs) = pair();
        theirs.set_nonblocking(true).unwrap();
        while theirs.write(&[0; 4096]).is_ok() {}
        let number = ours.as_raw_fd();
        drop(ours);
        // Another test may reuse the number, but not for this socket.
        let link = std::fs::read_link(format!("/proc/self/fd/{number}"));
        theirs.set_nonblocking(false).unwrap();
        assert_eq!(theirs.read(&mut [0; 8]).unwrap(), 0, "{link:?}");
    }
}
