//! Wakeup descriptors: how the two ends of a domain wake each other. There is one channel each way,
//! made so that nothing that a client does with its descriptors can make the host wait.
//!
//! **Towards the host: an eventfd**, of which the host waits only for the edge that a write causes.
//! It never reads it, so a client gains nothing by emptying it or by clearing its `O_NONBLOCK`.
//!
//! **Towards the client: a socket pair**, into which the host sends without waiting. The host's end
//! is shut down for reading before the client gets the other end. So nothing can be queued in it:
//! above all no descriptors, which the host would have to close, and closing a socket that lingers,
//! or a file of FUSE, takes as long as its owner likes.
//!
//! An eventfd towards the client would not do: the client could clear the `O_NONBLOCK` that both
//! ends share, fill it, and so block the host's next write. Nor would a pipe either way: its reader
//! or writer holds its lock while a page of its own buffer is faulted in, and can make that take
//! any amount of time.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{
        EventfdFlags, PollFd, PollFlags, Timespec,
        epoll::{self, CreateFlags, EventData, EventFlags},
        eventfd, poll,
    },
    fs::{OFlags, fcntl_getfl},
    io::{Errno, write},
    net::{
        AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send,
        shutdown, socketpair, sockopt,
    },
};

/// One side's wakeup descriptors: one to wake the peer, one to be woken by.
#[derive(Debug)]
pub(crate) enum Wakeup {
    /// The host's: it sends into the socket and waits for the eventfd.
    Host { socket: OwnedFd, event: OwnedFd },
    /// The client's: it writes to the eventfd and waits for the socket.
    Client { socket: OwnedFd, event: OwnedFd },
}

/// The descriptors that the client gets.
#[derive(Debug)]
pub(crate) struct ClientWakeup {
    pub(crate) socket: OwnedFd,
    pub(crate) event: OwnedFd,
}

impl Wakeup {
    /// Makes the host's wakeup descriptors and those for the client.
    pub(crate) fn pair() -> io::Result<(Self, ClientWakeup)> {
        let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let (socket, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        // Before the client has the other end, so that nothing was ever queued here.
        shutdown(&socket, Shutdown::Read)?;
        // The client's writes must not block either, should the counter be full.
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ends = ClientWakeup {
            socket: theirs,
            event: event.try_clone()?,
        };
        Ok((Self::Host { socket, event }, ends))
    }

    /// Makes the client's, from the descriptors of a ticket; `None` if they are of another kind.
    pub(crate) fn open(ends: ClientWakeup) -> Option<Self> {
        let ClientWakeup { socket, event } = ends;
        let domain = sockopt::socket_domain(&socket);
        let kind = sockopt::socket_type(&socket);
        let waits_for_nobody = OFlags::RDWR | OFlags::NONBLOCK;
        // Another kind of descriptor, or one without O_NONBLOCK, could make the client wait in `ring`.
        let right = domain == Ok(AddressFamily::UNIX)
            && kind == Ok(SocketType::STREAM)
            && fcntl_getfl(&event).is_ok_and(|flags| flags.contains(waits_for_nobody));
        right.then_some(Self::Client { socket, event })
    }

    /// Wakes the other end. An error is ignored: a peer that has ended or does not wait needs no
    /// wakeup.
    #[cold]
    pub(crate) fn ring(&self) {
        // It fails when the descriptor is full, that is, signaled already, or when the peer has
        // ended.
        match self {
            Self::Host { socket, .. } => {
                // On each call, for the client can clear `O_NONBLOCK` of a descriptor that it
                // shares, but not this flag.
                let _ = send(socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
            Self::Client { event, .. } => {
                // The host never reads the counter, so the byte order does not matter.
                let _ = write(event, &1_u64.to_le_bytes());
            }
        }
    }

    /// Returns whether a client's host is gone: its process has ended, or it has destroyed the domain.
    /// Of a host always false; the owner of its port knows when a client goes.
    pub(crate) fn is_closed(&self) -> bool {
        let Self::Client { socket, .. } = self else {
            return false;
        };
        // HUP is reported whether it is asked for or not (poll(2)).
        let mut socket = [PollFd::new(socket, PollFlags::empty())];
        let at_once = Timespec::default();
        matches!(poll(&mut socket, Some(&at_once)), Ok(1))
            && socket[0].revents().contains(PollFlags::HUP)
    }

    /// The descriptor to wait for, and how: edge-triggered for the host, which does not read it;
    /// level-triggered for the client, until it has drained it.
    fn heard(&self) -> (&OwnedFd, EventFlags) {
        match self {
            Self::Host { event, .. } => (event, EventFlags::IN | EventFlags::ET),
            Self::Client { socket, .. } => (socket, EventFlags::IN),
        }
    }

    /// Drains the descriptor. Returns whether the other end is still open.
    fn drain(&self) -> bool {
        let Self::Client { socket, .. } = self else {
            return true;
        };
        // A host may have sent many bytes; what a page does not hold wakes the port once more.
        let mut rings = [MaybeUninit::<u8>::uninit(); 4096];
        match recv(socket, &mut rings[..], RecvFlags::DONTWAIT) {
            Ok((_, len)) => len != 0,
            // Neither says that the host is gone.
            Err(error) => error == Errno::AGAIN || error == Errno::INTR,
        }
    }
}

/// The wakeup descriptors of all domains of a port, as one epoll descriptor.
#[derive(Debug)]
pub(crate) struct WakeupSet(OwnedFd);

/// Descriptors drained per system call.
const EVENTS: usize = 32;

impl WakeupSet {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Adds `wakeup` under the number `id`.
    pub(crate) fn add(&self, wakeup: &Wakeup, id: u32) -> io::Result<()> {
        let (fd, flags) = wakeup.heard();
        epoll::add(&self.0, fd, EventData::new_u64(id.into()), flags)?;
        Ok(())
    }

    /// Removes `wakeup`; has no effect if it was removed already.
    pub(crate) fn take_down(&self, wakeup: &Wakeup) {
        // The only possible error is that the descriptor is not registered.
        let _ = epoll::delete(&self.0, wakeup.heard().0);
    }

    /// Drains the descriptors that are signaled, at most [`EVENTS`] of them: the others only wake
    /// the port once more. Removes those whose other end is closed, and returns whether there were any.
    pub(crate) fn silence<'a>(&self, wakeup: impl Fn(u32) -> Option<&'a Wakeup>) -> bool {
        let mut events = [MaybeUninit::uninit(); EVENTS];
        let at_once = Timespec::default();
        // After an error (EINTR) the descriptors stay signaled and wake the port again.
        let Ok((events, _)) = epoll::wait(&self.0, &mut events[..], Some(&at_once)) else {
            return false;
        };
        let mut any_closed = false;
        for event in events {
            let id = u32::try_from(event.data.u64()).ok();
            if let Some(wakeup) = id.and_then(&wakeup)
                && !wakeup.drain()
            {
                self.take_down(wakeup);
                any_closed = true;
            }
        }
        any_closed
    }
}

impl AsFd for WakeupSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
