//! Plain datagrams in trains over the same sockets: what the fabric is measured against.

use std::{io, net::SocketAddr};

use arrayvec::ArrayVec;

use crate::socket::{Destination, Inbox, Outgoing, RECEIVES, SEGMENTS_MAX, Sent, Socket};

const _: () = assert!(RECEIVES <= crate::socket::SENDS);

/// An end that sends and receives datagrams, and nothing around them.
#[derive(Debug)]
pub struct BareEnd {
    socket: Socket,
    inbox: Inbox,
}

impl BareEnd {
    /// Most datagrams of one [`BareEnd::send`].
    pub const TRAIN: usize = SEGMENTS_MAX;

    /// Binds to `address`.
    ///
    /// # Errors
    /// The operating system's refusal.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Ok(Self {
            socket: Socket::bind(address, false)?,
            inbox: Inbox::new(),
        })
    }

    /// Where it is bound.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.socket.local()
    }

    /// Sends `bytes` to `to` as datagrams of `segment` bytes, at most [`BareEnd::TRAIN`]; `false`
    /// when the socket has no room now.
    ///
    /// # Errors
    /// The operating system's refusal.
    pub fn send(&self, to: SocketAddr, bytes: &[u8], segment: usize) -> io::Result<bool> {
        let to = &Destination::new(to, None);
        let train = Outgoing { to, bytes, segment };
        match self.socket.send(&[train]) {
            Sent::All(_) => Ok(true),
            Sent::Full => Ok(false),
            Sent::Refused(error) => Err(error),
        }
    }

    /// Shows `sink` what has come: the sender, the bytes of a train, and of each of its datagrams.
    /// Returns how many datagrams came.
    pub fn receive(&mut self, mut sink: impl FnMut(SocketAddr, &[u8], usize)) -> usize {
        let mut datagrams = 0;
        for index in 0..self.socket.receive(&mut self.inbox) {
            if let Some(train) = self.inbox.train(index) {
                datagrams += train.bytes.len().div_ceil(train.segment);
                sink(train.from, train.bytes, train.segment);
            }
        }
        datagrams
    }

    /// Answers each datagram that has come with one of `segment` bytes out of `bytes`, in trains
    /// like those that came. What the socket has no room for is lost. Returns how many came.
    ///
    /// # Panics
    /// When `bytes` are not a whole train.
    pub fn echo(&mut self, bytes: &[u8], segment: usize) -> usize {
        let mut trains = ArrayVec::<(Destination, usize), RECEIVES>::new();
        let came = self.receive(|from, train, length| {
            trains.push((Destination::new(from, None), train.len().div_ceil(length)));
        });
        let replies = trains.iter().map(|(to, count)| Outgoing {
            to,
            bytes: &bytes[..count * segment],
            segment,
        });
        self.socket
            .send(&replies.collect::<ArrayVec<_, RECEIVES>>());
        came
    }
}
