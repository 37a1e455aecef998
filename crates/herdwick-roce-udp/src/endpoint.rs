//! The endpoint of provider `roce`, encoded and decoded: address, socket, queue pair, first PSN,
//! MTU. Everything that a peer sent is checked.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use herdwick_fabric::{ConnectError, Endpoint, Psn, Qpn, Transport};
use herdwick_roce::{Mtu, Secret};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32},
};

/// Version of the layout, and of the same followed by a secret.
const PLAIN: u8 = 1;
const KEYED: u8 = 2;
/// Queue pair and packet sequence numbers have 24 bits.
const BITS_24: u32 = 0x00ff_ffff;

/// How a queue pair is reached, as a grant or an acceptance carries it (`docs/roce.md`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Blob {
    version: u8,
    /// 0 RC, 1 UC, 2 UD.
    transport: u8,
    channel: U16,
    qpn: U32,
    psn: U32,
    qkey: U32,
    /// As IPv6, or mapped into it; all zero: the address at which the reader reached its writer.
    ip: [u8; 16],
    port: U16,
    /// Maximum bytes of payload in a packet.
    mtu: U16,
    /// READs and atomics that the queue pair serves at a time.
    reads: u8,
    reserved: [u8; 3],
}

pub(crate) const BLOB_BYTES: usize = 40;
const _: () = assert!(size_of::<Blob>() == BLOB_BYTES);

/// The secret of a keyed queue pair follows the blob.
const SECRET_BYTES: usize = 16;

/// The decoded endpoint of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) transport: Transport,
    /// Index of its socket among those at its address.
    pub(crate) channel: u16,
    pub(crate) qpn: Qpn,
    /// The number of the first packet that it will send.
    pub(crate) psn: Psn,
    pub(crate) qkey: u32,
    /// The address; unspecified where it is bound to all, and the reader knows one of them.
    pub(crate) address: SocketAddr,
    /// The largest packet payload that it accepts.
    pub(crate) mtu: Mtu,
    /// READs and atomics that it serves at a time, on RC.
    pub(crate) reads: u8,
    /// Its contribution to the key; `None`: its packets are not keyed.
    pub(crate) secret: Option<Secret>,
}

impl Place {
    pub(crate) fn endpoint(&self) -> Endpoint {
        let transport = match self.transport {
            Transport::Rc => 0,
            Transport::Uc => 1,
            Transport::Ud => 2,
        };
        let ip = match self.address.ip() {
            // IPv4's unspecified address too is encoded as all zeros, not as mapped.
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv6Addr::UNSPECIFIED,
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let blob = Blob {
            version: if self.secret.is_some() { KEYED } else { PLAIN },
            transport,
            channel: self.channel.into(),
            qpn: self.qpn.0.into(),
            psn: self.psn.0.into(),
            qkey: self.qkey.into(),
            ip: ip.octets(),
            port: self.address.port().into(),
            mtu: u16::try_from(self.mtu.bytes())
                .expect("4096 at most")
                .into(),
            reads: self.reads,
            reserved: [0; 3],
        };
        let secret = self.secret.as_ref().map_or(&[][..], |secret| &secret.0);
        Endpoint::new(&[blob.as_bytes(), secret].concat()).expect("56 bytes fit")
    }

    /// Decodes and checks what a peer sent; `host` replaces an address left open.
    pub(crate) fn read(endpoint: &Endpoint, host: Option<IpAddr>) -> Result<Self, ConnectError> {
        let malformed = ConnectError::Endpoint("it is malformed");
        let Ok((blob, secret)) = Blob::read_from_prefix(endpoint.as_bytes()) else {
            return Err(malformed);
        };
        let secret = match (blob.version, secret.len()) {
            (PLAIN, 0) => None,
            (KEYED, SECRET_BYTES) => secret.try_into().ok().map(Secret),
            _ => return Err(malformed),
        };
        let transport = match blob.transport {
            0 => Transport::Rc,
            1 => Transport::Uc,
            2 => Transport::Ud,
            _ => return Err(malformed),
        };
        let (qpn, psn) = (blob.qpn.get(), blob.psn.get());
        // 0 and 1 are management queue pairs, the last number is multicast.
        let numbers = (2..BITS_24).contains(&qpn) && psn <= BITS_24;
        let bytes = usize::from(blob.mtu.get());
        let mtu = Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == bytes);
        // The kernel sends nothing to port 0.
        let Some(mtu) = mtu.filter(|_| numbers && blob.port != 0) else {
            return Err(malformed);
        };
        // So that a later version can give these bytes a meaning.
        if blob.reserved != [0; 3] {
            return Err(malformed);
        }
        let ip = match Ipv6Addr::from(blob.ip) {
            Ipv6Addr::UNSPECIFIED => host.ok_or(ConnectError::Endpoint("it names no address"))?,
            ip => ip.to_canonical(),
        };
        // One reply would go to many hosts.
        if ip.is_multicast() || ip.is_unspecified() {
            return Err(ConnectError::Endpoint("its address belongs to no host"));
        }
        Ok(Self {
            transport,
            channel: blob.channel.get(),
            qpn: Qpn(qpn),
            psn: Psn(psn),
            qkey: blob.qkey.get(),
            address: SocketAddr::new(ip, blob.port.get()),
            mtu,
            reads: blob.reads,
            secret,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    fn place(address: &str) -> Place {
        Place {
            transport: Transport::Uc,
            channel: 3,
            qpn: Qpn(0x0012_3456),
            psn: Psn(0x00ff_ffff),
            qkey: 0x1111_1111,
            address: address.parse().expect("an address"),
            mtu: Mtu::B1024,
            reads: 64,
            secret: None,
        }
    }

    fn keyed() -> Place {
        Place {
            secret: Some(Secret([0x5a; SECRET_BYTES])),
            ..place("10.0.0.1:4791")
        }
    }

    #[test]
    fn place_round_trips_through_an_endpoint() {
        for address in ["10.0.0.1:4791", "[2001:db8::1]:9"] {
            let place = place(address);
            let read = Place::read(&place.endpoint(), None);
            assert_eq!(read.expect("an endpoint"), place);
        }
        let read = Place::read(&keyed().endpoint(), None);
        assert_eq!(read.expect("an endpoint"), keyed());
    }

    #[test]
    fn debug_output_hides_the_secret() {
        let shown = format!("{:?}", keyed());
        assert!(!shown.contains(&0x5a_u8.to_string()), "{shown}");
    }

    #[test]
    fn unspecified_address_is_replaced_by_the_hellos() {
        let host = "192.0.2.7".parse().expect("an address");
        let open = place("0.0.0.0:4791").endpoint();
        assert!(Place::read(&open, None).is_err());
        let read = Place::read(&open, Some(host)).expect("an endpoint");
        assert_eq!(read.address, "192.0.2.7:4791".parse().expect("an address"));
    }

    #[test]
    fn invalid_values_are_refused() {
        let good = place("10.0.0.1:4791").endpoint();
        // Version, transport, queue pair 0, a PSN of 25 bits, port 0, an invalid MTU, and reserved
        // bytes that are not 0.
        let spoiled: [(usize, &[u8]); 8] = [
            (0, &[9]),
            (1, &[3]),
            (4, &[0, 0, 0, 0]),
            (11, &[1]),
            (32, &[0, 0]),
            (34, &[1, 4]),
            (37, &[1]),
            (39, &[1]),
        ];
        for (at, bytes) in spoiled {
            let mut blob = good.as_bytes().to_vec();
            blob[at..at + bytes.len()].copy_from_slice(bytes);
            let read = Place::read(&Endpoint::new(&blob).expect("short"), None);
            assert!(read.is_err(), "byte {at}");
        }
        for whole in [good, keyed().endpoint()] {
            let bytes = whole.as_bytes();
            for len in 0..bytes.len() {
                let cut = Endpoint::new(&bytes[..len]).expect("short");
                assert!(Place::read(&cut, None).is_err(), "{len} bytes");
            }
            let longer = Endpoint::new(&[bytes, &[0]].concat()).expect("short");
            assert!(Place::read(&longer, None).is_err());
        }
    }

    #[test]
    fn endpoint_layout_matches_the_document() {
        let drawn = include_str!("../../../docs/roce.md");
        let (_, drawn) = drawn.split_once("## An endpoint").expect("a section");
        let rows = drawn.lines().filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let number = |cell: Option<&str>| cell?.parse::<usize>().ok();
            Some((number(cells.next())?, number(cells.next())?))
        });
        let offsets = [
            offset_of!(Blob, version),
            offset_of!(Blob, transport),
            offset_of!(Blob, channel),
            offset_of!(Blob, qpn),
            offset_of!(Blob, psn),
            offset_of!(Blob, qkey),
            offset_of!(Blob, ip),
            offset_of!(Blob, port),
            offset_of!(Blob, mtu),
            offset_of!(Blob, reads),
            offset_of!(Blob, reserved),
            BLOB_BYTES,
            keyed().endpoint().as_bytes().len(),
        ];
        let fields = offsets.windows(2).map(|ends| (ends[0], ends[1] - ends[0]));
        assert!(rows.eq(fields));
    }
}
