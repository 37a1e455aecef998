//! What a sleeping port listens to: one end of a socket pair for each domain.
//!
//! Not an eventfd: whoever holds one can read it empty, and so swallow what others rang, and can
//! clear the `O_NONBLOCK` that all its holders share, fill it, and so block whoever rings it next.
//! An end of a socket pair is its owner's alone, and says with each call that it will not wait.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{
        Timespec,
        epoll::{self, CreateFlags, EventData, EventFlags},
    },
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
        sockopt,
    },
};

/// One end.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    /// Both ends.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let (mine, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        Ok((Self(mine), theirs))
    }

    /// An end that came in a ticket; `None` if it is no such thing.
    pub(crate) fn open(fd: OwnedFd) -> Option<Self> {
        let domain = sockopt::socket_domain(&fd);
        let kind = sockopt::socket_type(&fd);
        let right = domain == Ok(AddressFamily::UNIX) && kind == Ok(SocketType::STREAM);
        right.then_some(Self(fd))
    }

    /// Wakes the other end. A peer that is gone, or does not listen, is its own affair.
    #[cold]
    pub(crate) fn ring(&self) {
        let _ = send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes what was rung; whether there is still somebody who could ring.
    fn drain(&self) -> bool {
        let mut rings = [MaybeUninit::<u8>::uninit(); 4096];
        match recv(&self.0, &mut rings[..], RecvFlags::DONTWAIT) {
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
        let data = EventData::new_u64(id.into());
        epoll::add(&self.0, &bell.0, data, EventFlags::IN)?;
        Ok(())
    }

    /// Takes `bell` down; harmless if it is down already.
    pub(crate) fn take_down(&self, bell: &Bell) {
        let _ = epoll::delete(&self.0, &bell.0);
    }

    /// Silences the bells that ring, [`EVENTS`] at most: the others would only wake again. Those
    /// whose other end is closed come down.
    pub(crate) fn silence<'a>(&self, bell: impl Fn(u32) -> Option<&'a Bell>) {
        let mut events = [MaybeUninit::uninit(); EVENTS];
        let at_once = Timespec::default();
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
