//! The UDP socket of a listener: receives datagrams and bounds the reply to each.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsRawFd, RawFd},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use mio::{Interest, Registry, Token, net::UdpSocket};

use super::{FRAME_BYTES, HEADER_BYTES, Refused, UdpExchange};
use crate::settings::udp::Udp;

/// Maximum length of a datagram in bytes.
const DATAGRAM_BYTES: usize = 64 << 10;
/// Maximum number of requests of one socket that are answered at a time: at most 16 MiB of
/// requests.
const EXCHANGES_MAX: usize = 256;
/// Maximum number of datagrams received before other sockets have their turn.
const TURN: usize = 64;
/// Maximum bytes of reply for each byte received from a source that may be forged.
const AMPLIFICATION_MAX: usize = 3;
/// Bytes of a reply besides a value of the maximum size.
const REPLY_SLACK: usize = 64 << 10;
/// Maximum length of any reply in bytes: sequence numbers have 16 bits.
const REPLY_BYTES_MAX: usize = u16::MAX as usize * (HEADER_BYTES + FRAME_BYTES);
/// Requested size of the socket's send buffer; the kernel may grant less.
const SEND_BUFFER_BYTES: usize = 4 << 20;

/// A socket that receives requests.
pub(crate) struct UdpListener {
    /// Shared with the requests that are being answered.
    socket: Arc<UdpSocket>,
    udp: Udp,
    whole_bytes_max: usize,
    buffer: Box<[u8]>,
}

impl UdpListener {
    /// Opens a socket on `address`, for values of at most `item_bytes_max` bytes.
    pub(crate) fn open(address: SocketAddr, udp: &Udp, item_bytes_max: usize) -> io::Result<Self> {
        let socket = bind(address)?;
        // A value of the maximum size, the headers of its frames, and the rest.
        let whole = item_bytes_max + item_bytes_max / FRAME_BYTES * HEADER_BYTES + REPLY_SLACK;
        Ok(Self {
            socket: Arc::new(socket),
            udp: udp.clone(),
            whole_bytes_max: whole.min(REPLY_BYTES_MAX),
            buffer: vec![0; DATAGRAM_BYTES].into(),
        })
    }

    /// Returns its descriptor.
    pub(crate) fn number(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Registers the socket with the poller, edge-triggered.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        // No request shares the socket before it is registered.
        match Arc::get_mut(&mut self.socket) {
            Some(socket) => registry.register(socket, token, Interest::READABLE),
            None => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }

    /// Receives datagrams and passes each request to `deal`. Returns false if there may be more.
    pub(crate) fn take_in(&mut self, refused: &Refused, mut deal: impl FnMut(UdpExchange)) -> bool {
        for _ in 0..TURN {
            let (length, from) = match self.socket.recv_from(&mut self.buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // An ICMP error for an earlier reply, or an interrupted call: neither concerns the
                // next datagram.
                Err(_) => continue,
            };
            // One of the references is the listener's own; each exchange holds one until it is
            // answered.
            if Arc::strong_count(&self.socket) > EXCHANGES_MAX {
                refused.over_limit.fetch_add(1, Relaxed);
                continue;
            }
            let bound = if from.ip().is_loopback()
                || self.udp.trusted.iter().any(|net| net.contains(from.ip()))
            {
                self.whole_bytes_max
            } else {
                // QUIC has the same bound for addresses that are not validated (RFC 9000, 8.1).
                self.whole_bytes_max.min(AMPLIFICATION_MAX * length)
            };
            let socket = Arc::clone(&self.socket);
            match UdpExchange::new(socket, from, &self.buffer[..length], bound) {
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
    // Best effort: replies that do not fit are counted (`udp_unsent`).
    let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES);
    bind(&socket, &address)?;
    Ok(UdpSocket::from_std(socket.into()))
}
