use std::{
    io,
    net::SocketAddr,
    os::fd::{AsRawFd, RawFd},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use mio::{Interest, Registry, Token, net::UdpSocket};

use super::{Exchange, FRAME_BYTES, HEADER_BYTES, Refused, Udp};

/// The longest datagram.
const DATAGRAM_BYTES: usize = 64 << 10;
/// Requests of one socket that are being answered at a time: 16 MiB of them.
const EXCHANGES_MAX: usize = 256;
/// Datagrams taken in before connections have their turn.
const TURN: usize = 64;
/// What a source that may be forged gets for each byte that it has sent.
const AMPLIFICATION_MAX: usize = 3;
/// Beside the largest value, in the longest answer.
const REPLY_SLACK: usize = 64 << 10;
/// The longest answer at all: sequence numbers have 16 bits.
const REPLY_BYTES_MAX: usize = u16::MAX as usize * (HEADER_BYTES + FRAME_BYTES);
/// What is asked for to put answers in until the network takes them; the kernel gives what it may.
const SEND_BUFFER_BYTES: usize = 4 << 20;

/// A socket that requests come from.
pub(crate) struct UdpListener {
    /// Shared with the requests that are being answered.
    socket: Arc<UdpSocket>,
    udp: Udp,
    whole_bytes_max: usize,
    buffer: Box<[u8]>,
}

impl UdpListener {
    /// On `address`; values are of `item_bytes_max` at most.
    pub(crate) fn open(address: SocketAddr, udp: &Udp, item_bytes_max: usize) -> io::Result<Self> {
        let socket = bind(address)?;
        let whole = item_bytes_max + item_bytes_max / FRAME_BYTES * HEADER_BYTES + REPLY_SLACK;
        Ok(Self {
            socket: Arc::new(socket),
            udp: udp.clone(),
            whole_bytes_max: whole.min(REPLY_BYTES_MAX),
            buffer: vec![0; DATAGRAM_BYTES].into(),
        })
    }

    /// Its descriptor.
    pub(crate) fn number(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Announces datagrams from now on, by edges.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        // Nobody has a part in it yet.
        match Arc::get_mut(&mut self.socket) {
            Some(socket) => registry.register(socket, token, Interest::READABLE),
            None => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }

    /// Takes in what has arrived; `false`: there may be more.
    pub(crate) fn take_in(&mut self, refused: &Refused, mut deal: impl FnMut(Exchange)) -> bool {
        for _ in 0..TURN {
            let (length, from) = match self.socket.recv_from(&mut self.buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // An answer to somebody has bounced, or the call was interrupted.
                Err(_) => continue,
            };
            if Arc::strong_count(&self.socket) > EXCHANGES_MAX {
                refused.crowded.fetch_add(1, Relaxed);
                continue;
            }
            let bound = if from.ip().is_loopback()
                || self.udp.trusted.iter().any(|net| net.contains(from.ip()))
            {
                self.whole_bytes_max
            } else {
                self.whole_bytes_max.min(AMPLIFICATION_MAX * length)
            };
            let socket = Arc::clone(&self.socket);
            match Exchange::new(socket, from, &self.buffer[..length], bound) {
                Some(exchange) => deal(exchange),
                None => {
                    refused.malformed.fetch_add(1, Relaxed);
                }
            }
        }
        false
    }
}

fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    // Best effort: what does not fit is counted.
    let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES);
    bind(&socket, &address)?;
    Ok(UdpSocket::from_std(socket.into()))
}
