//! A UDP socket whose sends and receives are GSO and GRO batches: many datagrams of
//! equal length to one peer in one call.
//!
//! Its options make the IP header fields that the ICRC covers known to a receiver (`docs/roce.md`):
//! never connected and always "don't fragment", so that the kernel sets the identification to 0,
//! and counts up from it within a GSO batch.
//!
//! Circular import with `system`: the socket calls the functions there, which fill and read its buffers.

mod control;
mod name;
mod system;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, ipproto, socket_with, sockopt,
};

use control::{RECV_CONTROL_BYTES, RecvControl, SendControl};
pub(crate) use name::Name;

/// Maximum datagrams of a batch (Linux's UDP_MAX_SEGMENTS before 6.10).
pub(crate) const SEGMENTS_MAX: usize = 64;
/// Maximum bytes of a datagram that a UDP socket can receive, and so of a received GSO batch.
const DATAGRAM: usize = 65_536;
/// Maximum GSO batches sent by one call.
pub(crate) const SENDS: usize = 16;
/// Maximum GSO batches received by one call, which bounds the cost of one receive.
pub(crate) const RECEIVES: usize = 8;
/// Bytes of socket buffer requested in each direction; the kernel grants up to `net.core.rmem_max`
/// and `wmem_max`.
const BUFFER: usize = 4 << 20;

/// Returns the MTU of the route that a connected socket takes.
pub(crate) fn path_mtu(connected: BorrowedFd<'_>, v6: bool) -> io::Result<usize> {
    system::path_mtu(connected, v6)
}

/// A wakeup datagram: shorter than any packet, so the engine drops it.
const WAKE: [u8; 8] = [0; 8];

/// A bound UDP socket.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    local: SocketAddr,
}

/// The destination and source address of a batch, encoded for the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    name: Name,
    control: SendControl,
}

impl Destination {
    /// Makes the destination `to`, with source address `from` where routing alone may not choose
    /// it.
    pub(crate) fn new(to: SocketAddr, from: Option<IpAddr>) -> Self {
        let mut control = SendControl::NOTHING;
        if let Some(from) = from {
            control.source(from);
        }
        let name = to.into();
        Self { name, control }
    }
}

/// A GSO batch to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) to: &'a Destination,
    /// Datagrams of `segment` bytes, back to back; the last may be shorter.
    pub(crate) bytes: &'a [u8],
    pub(crate) segment: usize,
}

/// A received GSO batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming<'a> {
    pub(crate) from: SocketAddr,
    /// The destination address, where the socket is bound to several.
    pub(crate) to: Option<IpAddr>,
    /// Datagrams of `segment` bytes, back to back; the last may be shorter.
    pub(crate) bytes: &'a [u8],
    pub(crate) segment: usize,
    /// Type of service or traffic class.
    pub(crate) class: u8,
}

/// The result of a send.
#[derive(Debug)]
pub(crate) enum Sent {
    /// The kernel accepted this many GSO batches.
    All(usize),
    /// The socket's buffer is full: try again after it has drained.
    Full,
    /// The kernel refused the first GSO batch.
    Refused(io::Error),
}

impl Socket {
    /// Binds to `address`; with `shared` (SO_REUSEPORT), further sockets can bind to it.
    pub(crate) fn bind(address: SocketAddr, shared: bool) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
        // Before `bind`, which looks at it.
        if shared {
            sockopt::set_socket_reuseport(&fd, true)?;
        }
        // Before `bind`, so that no packet finds the default buffer.
        sockopt::set_socket_recv_buffer_size(&fd, BUFFER)?;
        sockopt::set_socket_send_buffer_size(&fd, BUFFER)?;
        // Before `bind`: each packet that arrives has its control messages.
        system::prepare(fd.as_fd(), &address)?;
        bind(&fd, &address)?;
        let local = getsockname(&fd)?.try_into()?;
        Ok(Self { fd, local })
    }

    /// Lets further sockets bind to its address, if they are of the same user and share as well.
    pub(crate) fn share(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_reuseport(&self.fd, true)?)
    }

    /// Makes the kernel deliver each datagram to the socket of the port's group whose index is the
    /// low byte of the destination queue pair number (bytes 5 to 7 of the BTH) modulo `sockets`.
    /// Refused before a second socket has bound to the address of a first that began to [`share`].
    ///
    /// [`share`]: Self::share
    pub(crate) fn steer(&self, sockets: usize) -> io::Result<()> {
        system::steer(self.fd.as_fd(), sockets)
    }

    /// Marks sent packets ECT(0): the transport reacts to congestion marks.
    pub(crate) fn mark_ecn_capable(&self) -> io::Result<()> {
        // The low two bits of the traffic class (RFC 3168).
        const ECT_0: u8 = 2;
        sockopt::set_ip_tos(&self.fd, ECT_0)?;
        if self.local.is_ipv6() {
            sockopt::set_ipv6_tclass(&self.fd, ECT_0.into())?;
        }
        Ok(())
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the bytes of receive buffer that the kernel granted, including its own overhead.
    pub(crate) fn receive_buffer(&self) -> io::Result<usize> {
        Ok(sockopt::socket_recv_buffer_size(&self.fd)?)
    }

    /// Sends the first of `batches`, at most [`SENDS`].
    pub(crate) fn send(&self, batches: &[Outgoing<'_>]) -> Sent {
        match system::send(self.fd.as_fd(), batches) {
            Ok(count) => Sent::All(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Sent::Full,
            Err(error) => Sent::Refused(error),
        }
    }

    /// Wakes the socket with number `shard` in the group of `address`: sends it an empty datagram
    /// whose queue pair byte makes the filter steer it there.
    pub(crate) fn wake(&self, address: SocketAddr, shard: usize) {
        let mut wake = WAKE;
        // The byte that the filter of `steer` reads.
        wake[7] = u8::try_from(shard).expect("256 sockets at most");
        let local = match address.ip() {
            // A socket bound to all addresses is reached by the loopback.
            ip if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let to = Destination::new(SocketAddr::new(local, address.port()), None);
        let batch = Outgoing {
            to: &to,
            bytes: &wake,
            segment: wake.len(),
        };
        // Errors are ignored: a socket whose buffer is full is readable anyway.
        let _ = system::send(self.fd.as_fd(), &[batch]);
    }

    /// Receives into `inbox`, at most [`RECEIVES`] GSO batches; returns how many.
    ///
    /// An error is the socket's (ENOBUFS, an ICMP message), not the caller's: it is counted, and
    /// nothing is received.
    pub(crate) fn receive(&self, inbox: &mut ReceiveBuffers) -> usize {
        // So that after an error no batch of an earlier receive is taken again.
        inbox.count = 0;
        match system::receive(self.fd.as_fd(), inbox) {
            Ok(count) => inbox.count = count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => inbox.failed += 1,
        }
        inbox.count
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Buffers to receive GSO batches into.
pub(crate) struct ReceiveBuffers {
    buffers: Box<[u8]>,
    arrivals: [Arrival; RECEIVES],
    count: usize,
    /// Datagrams dropped because the socket's buffer was full, as last reported.
    pub(crate) overflowed: u32,
    /// Receives that failed: no memory, or the error of an earlier packet.
    pub(crate) failed: u64,
}

/// The kernel's description of one received GSO batch.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
struct Arrival {
    control: [u8; RECV_CONTROL_BYTES],
    control_len: usize,
    from: Name,
    len: usize,
    truncated: bool,
}

impl ReceiveBuffers {
    pub(crate) fn new() -> Self {
        Self {
            buffers: vec![0; RECEIVES * DATAGRAM].into(),
            arrivals: [Arrival {
                control: [0; RECV_CONTROL_BYTES],
                control_len: 0,
                from: Name::BLANK,
                len: 0,
                truncated: false,
            }; RECEIVES],
            count: 0,
            overflowed: 0,
            failed: 0,
        }
    }

    /// Returns GSO batch `index` of the last receive; `None` for one that is truncated, or whose
    /// source address is invalid.
    pub(crate) fn batch(&mut self, index: usize) -> Option<Incoming<'_>> {
        let arrival = &self.arrivals[..self.count].get(index)?;
        let control = RecvControl::read(arrival.control.get(..arrival.control_len)?);
        // Before the batch is looked at: the counter is right in a truncated one, too.
        self.overflowed = control.overflowed.unwrap_or(self.overflowed);
        if arrival.truncated {
            return None;
        }
        let bytes = self.buffers[index * DATAGRAM..].get(..arrival.len)?;
        Some(Incoming {
            from: arrival.from.address()?,
            to: control.to,
            bytes,
            // `chunks` needs a length; an empty datagram has none.
            segment: control.segment.unwrap_or(bytes.len()).max(1),
            class: control.class,
        })
    }
}

impl std::fmt::Debug for ReceiveBuffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveBuffers")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::net::{RecvFlags, recv};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn loopback(shared: bool) -> Socket {
        let any = "127.0.0.1:0".parse().expect("an address");
        Socket::bind(any, shared).expect("a socket")
    }

    /// Waits until the socket is readable, then receives.
    fn receive(socket: &Socket, inbox: &mut ReceiveBuffers) -> usize {
        let limit = Timespec::try_from(Duration::from_secs(10)).expect("short");
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        poll(&mut fds, Some(&limit)).expect("poll");
        socket.receive(inbox)
    }

    fn send(from: &Socket, to: &Socket, bytes: &[u8], segment: usize) {
        let to = &Destination::new(to.local(), None);
        let batch = Outgoing { to, bytes, segment };
        assert!(matches!(from.send(&[batch]), Sent::All(1)));
    }

    #[test]
    fn gso_batch_is_received_as_one() {
        let (a, b) = (loopback(false), loopback(false));
        let bytes: Vec<u8> = (0..6_000u32).map(|i| i.to_le_bytes()[0]).collect();
        send(&a, &b, &bytes, 96);
        let mut inbox = ReceiveBuffers::new();
        let mut got = Vec::new();
        while got.len() < bytes.len() {
            let batches = receive(&b, &mut inbox);
            assert!(batches > 0, "the remaining packets do not arrive");
            for index in 0..batches {
                let batch = inbox.batch(index).expect("whole");
                assert_eq!((batch.segment, batch.from), (96, a.local()));
                got.extend_from_slice(batch.bytes);
            }
        }
        assert_eq!(got, bytes);
    }

    #[test]
    fn socket_filter_selects_the_socket_by_destination_queue_pair() {
        let first = loopback(false);
        first.share().expect("an option");
        let rest = [1, 2].map(|_| Socket::bind(first.local(), true).expect("a socket"));
        let [second, third] = rest;
        let group = [first, second, third];
        group[0].steer(3).expect("a filter");
        let from = loopback(false);
        for low in [0u8, 1, 2, 3, 7, 254, 255] {
            let datagram = [9, 9, 9, 9, 9, 8, 8, low, 9, 9, 9, 9];
            send(&from, &group[0], &datagram, 12);
            let mut inbox = ReceiveBuffers::new();
            assert_eq!(receive(&group[usize::from(low) % 3], &mut inbox), 1);
            assert_eq!(inbox.batch(0).expect("whole").bytes, datagram);
        }
    }

    #[test]
    fn ipv4_packets_of_an_ipv6_socket_have_identification_0_and_report_tos() {
        let any = "[::]:0".parse().expect("an address");
        let both = Socket::bind(any, false).expect("a socket");
        let other = loopback(false);
        sockopt::set_ip_tos(&other, 3).expect("a class");
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), both.local().port());
        let to = &Destination::new(at, None);
        let batch = Outgoing {
            to,
            bytes: b"hello",
            segment: 5,
        };
        assert!(matches!(other.send(&[batch]), Sent::All(1)));
        let mut inbox = ReceiveBuffers::new();
        assert_eq!(receive(&both, &mut inbox), 1);
        assert_eq!(inbox.batch(0).expect("whole").class, 3);

        // Only root can open a raw socket to see IP headers; the rest is skipped otherwise.
        let raw = socket_with(
            AddressFamily::INET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(ipproto::UDP),
        );
        let Ok(raw) = raw else {
            return;
        };
        for round in 0..3 {
            send(&both, &other, b"hello", 5);
            let mut packet = [0; 128];
            // IP header of 20 bytes with the identification at offset 4; then the UDP ports.
            loop {
                let (len, _) = recv(&raw, &mut packet, RecvFlags::empty())
                    .expect("packets of other programs arrive, too");
                assert!(len >= 28);
                let port = u16::from_be_bytes([packet[22], packet[23]]);
                if port == other.local().port() {
                    break;
                }
            }
            assert_eq!(packet[4..6], [0, 0], "packet {round}");
        }
    }

    #[test]
    fn wildcard_socket_receives_the_destination_address() {
        let any = "0.0.0.0:0".parse().expect("an address");
        let all = Socket::bind(any, false).expect("a socket");
        let port = all.local().port();
        let from = loopback(false);
        let to = &Destination::new(SocketAddr::new([127, 0, 0, 9].into(), port), None);
        let batch = Outgoing {
            to,
            bytes: b"hello",
            segment: 5,
        };
        assert!(matches!(from.send(&[batch]), Sent::All(1)));
        let mut inbox = ReceiveBuffers::new();
        assert_eq!(receive(&all, &mut inbox), 1);
        let to = inbox.batch(0).expect("whole").to;
        assert_eq!(to, Some([127, 0, 0, 9].into()));
    }
}
