//! Probes what UDP on this host supports: GSO and GRO, and the size of the receive buffer.

use std::{io, net::Ipv4Addr, time::Duration};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::socket::{Destination, Outgoing, ReceiveBuffers, Sent, Socket};

/// What UDP on this host supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpProbe {
    /// How GSO batches pass over the loopback.
    pub gso: GsoSupport,
    /// Bytes of receive buffer granted, including the kernel's own overhead.
    pub receive_buffer: usize,
}

/// How a GSO batch passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoSupport {
    /// Sent in one call, received in one.
    Whole,
    /// Sent in one call, received datagram by datagram: no UDP_GRO (Linux 5.0).
    Split,
    /// Sent datagram by datagram: no UDP_SEGMENT (Linux 4.18).
    None,
}

/// Sends a GSO batch over the loopback and reports how it arrives.
///
/// # Errors
/// UDP sockets cannot be made, or do not deliver what is sent.
pub fn probe() -> io::Result<UdpProbe> {
    // Enough to tell a batch from single datagrams; small enough for any socket buffer.
    const DATAGRAMS: usize = 8;
    const BYTES: usize = 64;
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let (from, to) = (Socket::bind(any, false)?, Socket::bind(any, false)?);
    let destination = Destination::new(to.local(), None);
    let batch = Outgoing {
        to: &destination,
        bytes: &[0; DATAGRAMS * BYTES],
        segment: BYTES,
    };
    let gso = match from.send(&[batch]) {
        Sent::All(_) => receive(&to, DATAGRAMS * BYTES)?,
        Sent::Full => return Err(io::ErrorKind::WouldBlock.into()),
        Sent::Refused(_) => GsoSupport::None,
    };
    Ok(UdpProbe {
        gso,
        receive_buffer: to.receive_buffer()?,
    })
}

fn receive(socket: &Socket, bytes: usize) -> io::Result<GsoSupport> {
    let mut inbox = ReceiveBuffers::new();
    // The loopback delivers at once; the limit is for a host that filters it.
    let limit = Timespec::try_from(Duration::from_secs(1)).map_err(io::Error::other)?;
    let (mut got, mut calls) = (0, 0);
    while got < bytes {
        if poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        for index in 0..socket.receive(&mut inbox) {
            got += inbox.batch(index).map_or(0, |batch| batch.bytes.len());
            calls += 1;
        }
    }
    Ok(if calls == 1 {
        GsoSupport::Whole
    } else {
        GsoSupport::Split
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's release is independent evidence of what must be supported.
    #[test]
    fn kernel_5_0_or_later_supports_gso_and_gro() {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc");
        let major = release.split('.').next().map(str::parse::<u32>);
        let found = probe().expect("UDP");
        if major.expect("a release").expect("a number") >= 5 {
            assert_eq!(found.gso, GsoSupport::Whole);
        }
        assert!(found.receive_buffer > 64 << 10, "{found:?}");
    }
}
