use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
    os::fd::{AsRawFd, RawFd},
    sync::Arc,
};

use mio::net::UdpSocket;

use super::{FRAME_BYTES, HEADER_BYTES};

/// A request in a datagram, and the answer to it, as a byte stream that ends with the request.
#[derive(Debug)]
pub(crate) struct Exchange {
    socket: Arc<UdpSocket>,
    from: SocketAddr,
    id: [u8; 2],
    request: Vec<u8>,
    read: usize,
    has_ended: bool,
    reply: Vec<u8>,
    /// Most bytes of the answer, frame headers included.
    reply_bytes_max: usize,
}

/// What has become of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is on its way, or there was nothing to say.
    All,
    /// The kernel has taken a part of it, or nothing.
    Less,
}

impl Exchange {
    /// The request in a `datagram`; `None`: it is no whole one, or an answer.
    pub(super) fn new(
        socket: Arc<UdpSocket>,
        from: SocketAddr,
        datagram: &[u8],
        reply_bytes_max: usize,
    ) -> Option<Self> {
        let (header, request) = datagram.split_first_chunk::<HEADER_BYTES>()?;
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

    /// The descriptor of the socket it came by.
    pub(crate) fn number(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(crate) fn came_from(&self) -> SocketAddr {
        self.from
    }

    /// The address it came to.
    pub(crate) fn came_to(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Whether a read would find something, the end included.
    pub(crate) fn has_more(&self) -> bool {
        !self.has_ended
    }

    pub(crate) fn memory(&self) -> usize {
        self.request.capacity() + self.reply.capacity()
    }

    /// Sends the answer, in as many datagrams as it takes.
    pub(crate) fn answer(&self) -> Sent {
        let frames = self.reply.chunks(FRAME_BYTES);
        // The longest answer has fewer than 2^16 (`REPLY_BYTES_MAX`).
        let total = (frames.len() as u16).to_be_bytes();
        let mut datagram = Vec::with_capacity(HEADER_BYTES + FRAME_BYTES);
        for (number, frame) in (0u16..).zip(frames) {
            datagram.clear();
            datagram.extend_from_slice(&self.id);
            datagram.extend_from_slice(&number.to_be_bytes());
            datagram.extend_from_slice(&total);
            datagram.extend_from_slice(&[0, 0]);
            datagram.extend_from_slice(frame);
            if self.socket.send_to(&datagram, self.from).is_err() {
                return Sent::Less;
            }
        }
        Sent::All
    }
}

/// Whether this is how answers begin, and no command does: text in capitals or a number, packets with
/// 0x81. One forged datagram would otherwise have two servers answer each other's `ERROR` for ever.
fn begins_an_answer(byte: &u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == RESPONSE_MAGIC
}

/// The first byte of a response in the binary protocol.
const RESPONSE_MAGIC: u8 = 0x81;

/// Bytes of an answer of `count` bytes in frames.
fn framed(count: usize) -> usize {
    count + HEADER_BYTES * count.div_ceil(FRAME_BYTES)
}

impl Read for Exchange {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let rest = &self.request[self.read..];
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.read += count;
        self.has_ended = count == 0;
        Ok(count)
    }
}

impl Write for Exchange {
    /// # Errors
    /// The answer is longer than it may be.
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
