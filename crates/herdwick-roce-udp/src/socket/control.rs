//! Control messages (cmsg(3)), encoded and decoded as bytes: they carry the segment size and the
//! addresses of a batch beside its data.
//!
//! ```text
//! len usize | level i32 | type i32 | data | padding to 8
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of the header of a control message.
const HEADER: usize = 16;
const _: () = assert!(size_of::<libc::cmsghdr>() == HEADER);

/// Maximum bytes sent with one message: a segment size and a source address.
const SAY_BYTES: usize = 24 + 40;
/// Maximum bytes received with one message: a segment size, an address, a traffic class and a drop
/// counter, with room for messages that other options may add.
pub(crate) const RECV_CONTROL_BYTES: usize = 192;

/// The control messages of a send.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct SendControl {
    bytes: [u8; SAY_BYTES],
    len: usize,
}

impl SendControl {
    pub(crate) const NOTHING: Self = Self {
        bytes: [0; SAY_BYTES],
        len: 0,
    };

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Sets the length of the datagrams to cut the data into (udp(7), UDP_SEGMENT).
    pub(crate) fn segment(&mut self, bytes: u16) {
        self.put(libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes());
    }

    /// Sets the source address, instead of the one that routing would choose (ip(7), IP_PKTINFO).
    pub(crate) fn source(&mut self, source: IpAddr) {
        match source {
            IpAddr::V4(ip) => {
                let mut info = [0; 12];
                // `ipi_spec_dst` of `struct in_pktinfo`, between `ipi_ifindex` and `ipi_addr`.
                info[4..8].copy_from_slice(&ip.octets());
                self.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            IpAddr::V6(ip) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&ip.octets());
                self.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        let len = (HEADER + data.len()) as u64;
        let header = &mut self.bytes[self.len..][..HEADER + data.len()];
        header[..8].copy_from_slice(&native(len));
        header[8..12].copy_from_slice(&level.to_ne_bytes());
        header[12..16].copy_from_slice(&kind.to_ne_bytes());
        header[HEADER..].copy_from_slice(data);
        // CMSG_ALIGN: the next header is aligned to a word.
        self.len += (HEADER + data.len()).next_multiple_of(8);
    }
}

/// Encodes a `size_t` in host byte order.
fn native(value: u64) -> [u8; 8] {
    if cfg!(target_endian = "little") {
        value.to_le_bytes()
    } else {
        value.to_be_bytes()
    }
}

/// The control messages of a receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecvControl {
    /// Bytes of each datagram of a batch except the last; `None`: one datagram.
    pub(crate) segment: Option<usize>,
    /// The destination address of the datagram.
    pub(crate) to: Option<IpAddr>,
    /// Type of service (IPv4) or traffic class (IPv6).
    pub(crate) class: u8,
    /// Datagrams dropped since the socket was made because its buffer was full (SO_RXQ_OVFL).
    pub(crate) overflowed: Option<u32>,
}

impl RecvControl {
    /// Decodes what the kernel wrote; stops at the first malformed message.
    pub(crate) fn read(mut bytes: &[u8]) -> Self {
        let mut control = Self::default();
        while let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() {
            let word = |at: usize| i32::from_ne_bytes(four(header, at));
            let len = u64::from_ne_bytes(*header.first_chunk().expect("16 bytes"));
            let Some(data) = usize::try_from(len)
                .ok()
                // The kernel's length includes the header.
                .and_then(|len| rest.get(..len.checked_sub(HEADER)?))
            else {
                break;
            };
            control.take(word(8), word(12), data);
            // The last message may have no padding.
            bytes = rest.get(data.len().next_multiple_of(8)..).unwrap_or(&[]);
        }
        control
    }

    fn take(&mut self, level: i32, kind: i32, data: &[u8]) {
        let first = data
            .first_chunk::<4>()
            .map(|four| i32::from_ne_bytes(*four));
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                self.segment = first.and_then(|bytes| usize::try_from(bytes).ok());
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                self.overflowed = first.map(i32::cast_unsigned)
            }
            // IP_TOS is one byte, IPV6_TCLASS an int.
            (libc::IPPROTO_IP, libc::IP_TOS) => self.class = data.first().copied().unwrap_or(0),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                self.class = first.map_or(0, |class| class.to_le_bytes()[0]);
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) if data.len() >= 12 => {
                // `ipi_addr`, the destination address in the IP header.
                self.to = Some(Ipv4Addr::from(four(data, 8)).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let ip = data.first_chunk::<16>();
                self.to = ip.map(|ip| Ipv6Addr::from(*ip).into());
            }
            _ => {}
        }
    }
}

fn four(bytes: &[u8], at: usize) -> [u8; 4] {
    std::array::from_fn(|index| bytes[at + index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_round_trip() {
        let mut control = SendControl::NOTHING;
        control.source("2001:db8::1".parse().expect("an address"));
        // The kernel reports an `int` (UDP_GRO) where a send passes a `u16` (UDP_SEGMENT).
        control.put(libc::SOL_UDP, libc::UDP_GRO, &96i32.to_ne_bytes());
        let control = RecvControl::read(control.as_bytes());
        assert_eq!(control.segment, Some(96));
        assert_eq!(control.to, Some("2001:db8::1".parse().expect("an address")));
    }

    #[test]
    fn malformed_control_message_ends_parsing() {
        let mut control = SendControl::NOTHING;
        control.segment(96);
        for cut in 0..control.as_bytes().len() {
            RecvControl::read(&control.as_bytes()[..cut]);
        }
        for len in [0u64, 15, 17, u64::MAX] {
            let mut bytes = control;
            bytes.bytes[..8].copy_from_slice(&native(len));
            assert_eq!(RecvControl::read(bytes.as_bytes()).segment, None);
        }
    }
}
