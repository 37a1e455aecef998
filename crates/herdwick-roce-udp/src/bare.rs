//! Plain UDP datagrams in GSO batches over the same sockets: the baseline for benchmarks of the
//! fabric.

use std::{io, net::SocketAddr};

use arrayvec::ArrayVec;

use crate::socket::{Destination, Outgoing, RECEIVES, ReceiveBuffers, SEGMENTS_MAX, Sent, Socket};

// One call of `echo` answers all that one receive returns.
const _: () = assert!(RECEIVES <= crate::socket::SENDS);

/// A socket that sends and receives datagrams without a protocol on top.
#[derive(Debug)]
pub struct BareEnd {
    socket: Socket,
    inbox: ReceiveBuffers,
}

impl BareEnd {
    /// Maximum datagrams of one [`BareEnd::send`].
    pub const BATCH: usize = SEGMENTS_MAX;

    /// Binds to `address`.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Ok(Self {
            socket: Socket::bind(address, false)?,
            inbox: ReceiveBuffers::new(),
        })
    }

    /// Returns the address that it is bound to.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.socket.local()
    }

    /// Sends `bytes` to `to` as datagrams of `segment` bytes, at most [`BareEnd::BATCH`]; returns
    /// `false` when the socket has no room now.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn send(&self, to: SocketAddr, bytes: &[u8], segment: usize) -> io::Result<bool> {
        let to = &Destination::new(to, None);
        let batch = Outgoing { to, bytes, segment };
        match self.socket.send(&[batch]) {
            Sent::All(_) => Ok(true),
            Sent::Full => Ok(false),
            Sent::Refused(error) => Err(error),
        }
    }

    /// Receives once. Calls `sink` for each GSO batch with its sender, its bytes, and the length of
    /// its datagrams. Returns how many datagrams arrived.
    pub fn receive(&mut self, mut sink: impl FnMut(SocketAddr, &[u8], usize)) -> usize {
        let mut datagrams = 0;
        for index in 0..self.socket.receive(&mut self.inbox) {
            if let Some(batch) = self.inbox.batch(index) {
                datagrams += batch.bytes.len().div_ceil(batch.segment);
                sink(batch.from, batch.bytes, batch.segment);
            }
        }
        datagrams
    }

    /// Answers each datagram received with one of `segment` bytes out of `bytes`, in GSO batches of
    /// as many datagrams. Replies that the socket has no room for are lost. Returns how many
    /// datagrams arrived.
    ///
    /// # Panics
    /// When `bytes` is shorter than the replies to one GSO batch.
    pub fn echo(&mut self, bytes: &[u8], segment: usize) -> usize {
        let mut batches = ArrayVec::<(Destination, usize), RECEIVES>::new();
        let came = self.receive(|from, batch, length| {
            batches.push((Destination::new(from, None), batch.len().div_ceil(length)));
        });
        let replies = batches.iter().map(|(to, count)| Outgoing {
            to,
            bytes: &bytes[..count * segment],
            segment,
        });
        self.socket
            // The result is ignored: a reply without room is lost, as documented.
            .send(&replies.collect::<ArrayVec<_, RECEIVES>>());
        came
    }
}
