//! One UDP request and its reply, presented as a byte stream: reads end with the request, writes
//! collect the reply, which is sent at the end.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
    os::fd::{AsRawFd, RawFd},
    sync::Arc,
};

use mio::net::UdpSocket;

use super::{FRAME_BYTES, HEADER_BYTES};

/// A request in a datagram and the reply to it.
#[derive(Debug)]
pub(crate) struct UdpExchange {
    socket: Arc<UdpSocket>,
    from: SocketAddr,
    id: [u8; 2],
    request: Vec<u8>,
    read: usize,
    has_ended: bool,
    reply: Vec<u8>,
    /// Maximum length of the reply in bytes, frame headers included.
    reply_bytes_max: usize,
}

/// The result of sending a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The kernel has accepted all of it, or there was no reply.
    All,
    /// The kernel has accepted only a part of it, or nothing.
    Less,
}

impl UdpExchange {
    /// Parses a `datagram`. Returns `None` if it is malformed, a part of a longer request, or a
    /// reply.
    pub(super) fn new(
        socket: Arc<UdpSocket>,
        from: SocketAddr,
        datagram: &[u8],
        reply_bytes_max: usize,
    ) -> Option<Self> {
        let (header, request) = datagram.split_first_chunk::<HEADER_BYTES>()?;
        // The count of datagrams has to be 1: as in memcached, a request is one datagram.
        let &[id_high, id_low, _, _, 0, 1, _, _] = header else {
            return None;
        };
        if request.first().is_some_and(begins_an_answer) {
            return None;
        }
        Some(Self {
            socket,
            from,
            id: [id_high, id_low],
            request: request.to_vec(),
            read: 0,
            has_ended: false,
            reply: Vec::new(),
            reply_bytes_max,
        })
    }

    /// Returns the descriptor of the socket that received it.
    pub(crate) fn number(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(crate) fn came_from(&self) -> SocketAddr {
        self.from
    }

    /// Returns the address that it was sent to.
    pub(crate) fn came_to(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns whether a read would return data or the end.
    pub(crate) fn has_more(&self) -> bool {
        !self.has_ended
    }

    pub(crate) fn memory(&self) -> usize {
        self.request.capacity() + self.reply.capacity()
    }

    /// Sends the reply, in as many datagrams as it takes.
    pub(crate) fn answer(&self) -> Sent {
        let frames = self.reply.chunks(FRAME_BYTES);
        // No truncation: the longest reply has fewer than 2^16 frames (`REPLY_BYTES_MAX`).
        let total = (frames.len() as u16).to_be_bytes();
        let mut datagram = Vec::with_capacity(HEADER_BYTES + FRAME_BYTES);
        for (number, frame) in (0u16..).zip(frames) {
            datagram.clear();
            datagram.extend_from_slice(&self.id);
            datagram.extend_from_slice(&number.to_be_bytes());
            datagram.extend_from_slice(&total);
            datagram.extend_from_slice(&[0, 0]);
            datagram.extend_from_slice(frame);
            // The rest would be of no use: a client cannot complete a reply that lacks a part.
            if self.socket.send_to(&datagram, self.from).is_err() {
                return Sent::Less;
            }
        }
        Sent::All
    }
}

/// Returns whether a message with this first byte is a reply: in text a capital or a digit, in
/// packets 0x81, which begin no command. Otherwise one forged datagram would make two servers
/// answer each other's `ERROR` forever.
fn begins_an_answer(byte: &u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == RESPONSE_MAGIC
}

/// The first byte of a response in the binary protocol.
const RESPONSE_MAGIC: u8 = 0x81;

/// Returns the length of a reply of `count` bytes with its frame headers.
fn framed(count: usize) -> usize {
    count + HEADER_BYTES * count.div_ceil(FRAME_BYTES)
}

impl Read for UdpExchange {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let rest = &self.request[self.read..];
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.read += count;
        // The end is a read of its own, as on a socket.
        self.has_ended = count == 0;
        Ok(count)
    }
}

impl Write for UdpExchange {
    /// Appends to the reply.
    ///
    /// # Errors
    /// [`ErrorKind::FileTooLarge`] if the reply would exceed its maximum length.
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        if framed(self.reply.len() + from.len()) > self.reply_bytes_max {
            return Err(ErrorKind::FileTooLarge.into());
        }
        self.reply.extend_from_slice(from);
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
