//! How the two ends of a domain wake each other: a way each, made so that nothing which a guest does
//! with its ends can make the host wait.
//!
//! **Towards the host: an eventfd**, of which the host only hears that something was added. It never
//! reads it, so there is nothing that a guest could empty, or whose `O_NONBLOCK` it could clear.
//!
//! **Towards the guest: a socket pair**, into which the host sends without waiting. The host's end is
//! shut for reading before the guest has the other one. So nothing can lie in it: above all no
//! descriptors, which the host would have to close, and closing a socket that lingers, or a file of
//! FUSE, takes as long as its owner likes.
//!
//! Not an eventfd towards the guest: it could clear the `O_NONBLOCK` that both share, fill it, and so
//! block the host's next write. Not a pipe either way: whoever reads or writes one holds its lock
//! while memory of its own is paged in, and with that it may take all the time it wants.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{
        EventfdFlags, Timespec,
        epoll::{self, CreateFlags, EventData, EventFlags},
        eventfd,
    },
    fs::{OFlags, fcntl_getfl},
    io::{Errno, write},
    net::{
        AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send,
        shutdown, socketpair, sockopt,
    },
};

/// What one side rings and hears by.
#[derive(Debug)]
pub(crate) enum Bell {
    /// The host's: rings the socket, hears the eventfd.
    Host { socket: OwnedFd, event: OwnedFd },
    /// The guest's: rings the eventfd, hears the socket.
    Guest { socket: OwnedFd, event: OwnedFd },
}

/// What a guest gets.
#[derive(Debug)]
pub(crate) struct GuestEnds {
    pub(crate) socket: OwnedFd,
    pub(crate) event: OwnedFd,
}

impl Bell {
    /// The host's bell, and what the guest gets.
    pub(crate) fn pair() -> io::Result<(Self, GuestEnds)> {
        let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let (socket, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        shutdown(&socket, Shutdown::Read)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ends = GuestEnds {
            socket: theirs,
            event: event.try_clone()?,
        };
        Ok((Self::Host { socket, event }, ends))
    }

    /// A guest's, of what came in a ticket; `None` if it is no such thing.
    pub(crate) fn open(ends: GuestEnds) -> Option<Self> {
        let GuestEnds { socket, event } = ends;
        let domain = sockopt::socket_domain(&socket);
        let kind = sockopt::socket_type(&socket);
        let waits_for_nobody = OFlags::RDWR | OFlags::NONBLOCK;
        let right = domain == Ok(AddressFamily::UNIX)
            && kind == Ok(SocketType::STREAM)
            && fcntl_getfl(&event).is_ok_and(|flags| flags.contains(waits_for_nobody));
        right.then_some(Self::Guest { socket, event })
    }

    /// Wakes the other end. A peer that is gone, or does not listen, is its own affair.
    #[cold]
    pub(crate) fn ring(&self) {
        // What can fail is that it is full, and then it has been rung; or that nobody is there.
        match self {
            Self::Host { socket, .. } => {
                let _ = send(socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
            Self::Guest { event, .. } => {
                // Nobody reads the counter, so the order of its bytes matters little.
                let _ = write(event, &1_u64.to_le_bytes());
            }
        }
    }

    /// What to wait for, and how: a host hears of each ring once, a guest until it has taken it.
    fn heard(&self) -> (&OwnedFd, EventFlags) {
        match self {
            Self::Host { event, .. } => (event, EventFlags::IN | EventFlags::ET),
            Self::Guest { socket, .. } => (socket, EventFlags::IN),
        }
    }

    /// Takes what was rung; whether there is still somebody who could ring.
    fn drain(&self) -> bool {
        let Self::Guest { socket, .. } = self else {
            return true;
        };
        let mut rings = [MaybeUninit::<u8>::uninit(); 4096];
        match recv(socket, &mut rings[..], RecvFlags::DONTWAIT) {
            Ok((_, len)) => len != 0,
            Err(error) => error == Errno::AGAIN || error == Errno::INTR,
        }
    }
}

/// All bells of a port, as one descriptor.
#[derive(Debug)]
pub(crate) struct Belfry(OwnedFd);

/// Bells drained per system call.
const EVENTS: usize = 32;

impl Belfry {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Hangs `bell`, to be told apart by `id`.
    pub(crate) fn hang(&self, bell: &Bell, id: u32) -> io::Result<()> {
        let (fd, flags) = bell.heard();
        epoll::add(&self.0, fd, EventData::new_u64(id.into()), flags)?;
        Ok(())
    }

    /// Takes `bell` down; harmless if it is down already.
    pub(crate) fn take_down(&self, bell: &Bell) {
        // It refuses only what is not there.
        let _ = epoll::delete(&self.0, bell.heard().0);
    }

    /// Silences the bells that ring, [`EVENTS`] at most: the others would only wake again. Those
    /// whose other end is closed come down.
    pub(crate) fn silence<'a>(&self, bell: impl Fn(u32) -> Option<&'a Bell>) {
        let mut events = [MaybeUninit::uninit(); EVENTS];
        let at_once = Timespec::default();
        // What is refused here (EINTR) wakes again.
        let Ok((events, _)) = epoll::wait(&self.0, &mut events[..], Some(&at_once)) else {
            return;
        };
        for event in events {
            let id = u32::try_from(event.data.u64()).ok();
            if let Some(bell) = id.and_then(&bell)
                && !bell.drain()
            {
                self.take_down(bell);
            }
        }
    }
}

impl AsFd for Belfry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
