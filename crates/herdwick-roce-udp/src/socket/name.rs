//! Socket addresses encoded as `sockaddr_in` and `sockaddr_in6`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Bytes of the longer encoding, `sockaddr_in6`.
const NAME_BYTES: usize = 28;
/// Bytes of `sockaddr_in`.
const NAME_BYTES_V4: usize = 16;

const _: () = assert!(size_of::<libc::sockaddr_in6>() == NAME_BYTES);
const _: () = assert!(size_of::<libc::sockaddr_in>() == NAME_BYTES_V4);

/// A socket address as the kernel encodes it.
///
/// ```text
/// sockaddr_in    family u16 | port u16 BE | address 4 | zero 8
/// sockaddr_in6   family u16 | port u16 BE | flow label 4 | address 16 | scope u32
/// ```
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct Name {
    bytes: [u8; NAME_BYTES],
    len: u32,
}

impl Name {
    /// An empty address for the kernel to fill in.
    pub(crate) const BLANK: Self = Self {
        bytes: [0; NAME_BYTES],
        len: NAME_BYTES as u32,
    };

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    pub(crate) fn as_mut_bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Decodes the address that the kernel wrote; `None` for another family than IPv4 and IPv6.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        let at = |from: usize| self.bytes[from..].first_chunk::<4>();
        // The family is in the host's order, the port in the network's.
        let family = i32::from(u16::from_ne_bytes([self.bytes[0], self.bytes[1]]));
        let port = u16::from_be_bytes([self.bytes[2], self.bytes[3]]);
        match family {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(*at(4)?);
                Some(SocketAddrV4::new(ip, port).into())
            }
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(*self.bytes[8..].first_chunk::<16>()?);
                let scope = u32::from_ne_bytes(*at(24)?);
                // The flow label is not ours to keep: 0 in replies.
                Some(SocketAddrV6::new(ip, port, 0, scope).into())
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for Name {
    fn from(address: SocketAddr) -> Self {
        let mut bytes = [0; NAME_BYTES];
        let (family, len) = match address.ip() {
            IpAddr::V4(_) => (libc::AF_INET, NAME_BYTES_V4),
            IpAddr::V6(_) => (libc::AF_INET6, NAME_BYTES),
        };
        let family = u16::try_from(family).expect("families are small");
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(address) => bytes[4..8].copy_from_slice(&address.ip().octets()),
            SocketAddr::V6(address) => {
                bytes[8..24].copy_from_slice(&address.ip().octets());
                bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
            }
        }
        Self {
            bytes,
            len: u32::try_from(len).expect("28 at most"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_address_round_trips_through_name() {
        for text in ["10.1.2.3:4791", "[::1]:1", "[fe80::1%7]:65535"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(Name::from(address).address(), Some(address));
        }
    }

    #[test]
    fn zeroed_name_has_no_address() {
        assert_eq!(Name::BLANK.address(), None);
    }
}
