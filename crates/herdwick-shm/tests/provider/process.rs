//! Another process: this test binary again, which runs one ignored test, with a socket as its
//! standard input.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{fd::AsFd, unix::net::UnixStream},
    process::Child,
};

use herdwick_fabric::PdTicket;
use herdwick_shm::{TICKET_BYTES, TICKET_FDS};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Starts the ignored test called `name` in a process of its own.
pub(crate) fn start(name: &str) -> (Child, UnixStream) {
    herdwick_check::start_ignored(name).unwrap()
}

/// In such a process: the other end of the socket. `None` if the ignored tests are run by hand.
pub(crate) fn other_end() -> Option<UnixStream> {
    herdwick_check::other_end().unwrap()
}

const SPACE: usize = rustix::cmsg_space!(ScmRights(TICKET_FDS));

/// Sends a ticket; an error if the other end has closed.
pub(crate) fn send_ticket(stream: &UnixStream, ticket: &PdTicket) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = ticket.fds.iter().map(AsFd::as_fd).collect();
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let blob = [IoSlice::new(&ticket.blob)];
    let sent = sendmsg(stream, &blob, &mut control, SendFlags::NOSIGNAL)?;
    assert_eq!(sent, ticket.blob.len());
    Ok(())
}

pub(crate) fn receive_ticket(stream: &UnixStream) -> PdTicket {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut blob = vec![0; TICKET_BYTES];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let received = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut blob)],
        &mut control,
        flags,
    );
    assert_eq!(received.unwrap().bytes, TICKET_BYTES);
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    PdTicket { fds, blob }
}
