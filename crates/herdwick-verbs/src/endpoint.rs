//! The endpoint of provider `verbs`, encoded and decoded (layout: docs/rdma.md).

use herdwick_fabric::{ConnectError, Endpoint, Psn, Qpn, Transport};
use herdwick_mem::crc32c;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32},
};

use crate::{place::LinkLayer, sys};

/// "HWV" and the version of the layout.
const MAGIC: [u8; 4] = *b"HWV\x01";

/// The encoded endpoint: 52 bytes, little-endian.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Blob {
    magic: [u8; 4],
    transport: u8,
    link: u8,
    /// The verbs' MTU code: 1 is 256 bytes, 5 is 4096.
    mtu: u8,
    reserved: u8,
    qpn: U32,
    psn: U32,
    qkey: U32,
    lid: U16,
    reserved2: U16,
    gid: [u8; 16],
    traffic_class: u8,
    sl: u8,
    pkey: U16,
    serves: u8,
    asks: u8,
    reserved3: U16,
    /// CRC-32C of everything before it, checked before anything is used.
    crc: U32,
}

const _: () = assert!(size_of::<Blob>() == 52);
const CRC_AT: usize = std::mem::offset_of!(Blob, crc);

/// A decoded endpoint: the peer's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) transport: Transport,
    pub(crate) link: LinkLayer,
    pub(crate) mtu: u8,
    pub(crate) qpn: Qpn,
    pub(crate) psn: Psn,
    pub(crate) qkey: u32,
    pub(crate) lid: u16,
    pub(crate) gid: [u8; 16],
    /// The marks of the packets that it sends.
    pub(crate) class: Class,
    /// The P_Key of its partition.
    pub(crate) pkey: u16,
    /// READs and atomics that it serves, and that it requests, at a time.
    pub(crate) fetches: Fetches,
}

/// The marks of packets that select their queues in switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Class {
    /// RoCEv2: DSCP and ECN of the IP header.
    pub(crate) traffic_class: u8,
    /// InfiniBand: the service level, 4 bits.
    pub(crate) sl: u8,
}

/// Outstanding READs and atomics of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fetches {
    /// Requested by the peer (responder resources).
    pub(crate) serves: u8,
    /// Requested of the peer (initiator depth).
    pub(crate) asks: u8,
}

impl Fetches {
    /// Returns the agreed limits: neither end requests more than the other serves.
    pub(crate) fn agreed(self, peer: Self) -> Self {
        Self {
            serves: self.serves.min(peer.asks),
            asks: self.asks.min(peer.serves),
        }
    }
}

impl Peer {
    pub(crate) fn encode(&self) -> Endpoint {
        let mut blob = Blob {
            magic: MAGIC,
            transport: u8::try_from(kind(self.transport)).unwrap_or(0),
            link: match self.link {
                LinkLayer::InfiniBand => 1,
                LinkLayer::Ethernet => 2,
            },
            mtu: self.mtu,
            reserved: 0,
            qpn: self.qpn.0.into(),
            psn: self.psn.0.into(),
            qkey: self.qkey.into(),
            lid: self.lid.into(),
            reserved2: 0.into(),
            gid: self.gid,
            traffic_class: self.class.traffic_class,
            sl: self.class.sl,
            pkey: self.pkey.into(),
            serves: self.fetches.serves,
            asks: self.fetches.asks,
            reserved3: 0.into(),
            crc: 0.into(),
        };
        // A digit that was changed on the way must not connect to another's queue pair.
        blob.crc = crc32c(0, &blob.as_bytes()[..CRC_AT]).into();
        Endpoint::new(blob.as_bytes()).expect("52 bytes fit")
    }

    pub(crate) fn decode(endpoint: &Endpoint) -> Result<Self, ConnectError> {
        let no = |what| ConnectError::Endpoint(what);
        // The exact length: a longer blob is of another layout.
        let blob = Blob::read_from_bytes(endpoint.as_bytes()).map_err(|_| no("its length"))?;
        if blob.magic != MAGIC {
            return Err(no("not one of a verbs device"));
        }
        if blob.crc.get() != crc32c(0, &blob.as_bytes()[..CRC_AT]) {
            return Err(no("it is damaged"));
        }
        let link = match blob.link {
            1 => LinkLayer::InfiniBand,
            2 => LinkLayer::Ethernet,
            _ => return Err(no("its link")),
        };
        let transport = transport(blob.transport.into()).ok_or_else(|| no("its transport"))?;
        // Queue pair and sequence numbers have 24 bits.
        let numbers = blob.qpn.get().max(blob.psn.get()) < 1 << 24;
        // A privileged Q_Key would make the verbs send the sender's own instead.
        if !numbers || blob.sl > 15 || !(1..=5).contains(&blob.mtu) || blob.qkey.get() >> 31 != 0 {
            return Err(no("its numbers"));
        }
        Ok(Self {
            transport,
            link,
            mtu: blob.mtu,
            qpn: Qpn(blob.qpn.get()),
            psn: Psn(blob.psn.get()),
            qkey: blob.qkey.get(),
            lid: blob.lid.get(),
            gid: blob.gid,
            class: Class {
                traffic_class: blob.traffic_class,
                sl: blob.sl,
            },
            pkey: blob.pkey.get(),
            fetches: Fetches {
                serves: blob.serves,
                asks: blob.asks,
            },
        })
    }
}

/// Returns the verbs' number of a transport.
pub(crate) fn kind(transport: Transport) -> i32 {
    match transport {
        Transport::Rc => sys::IBV_QPT_RC,
        Transport::Uc => sys::IBV_QPT_UC,
        Transport::Ud => sys::IBV_QPT_UD,
    }
}

fn transport(number: i32) -> Option<Transport> {
    let all = [Transport::Rc, Transport::Uc, Transport::Ud];
    all.into_iter().find(|transport| kind(*transport) == number)
}

/// Returns the payload bytes for a verbs MTU code.
pub(crate) fn mtu_bytes(number: i32) -> usize {
    // Code 1 is 256 bytes, each further one twice as much.
    128 << number.clamp(1, 5)
}

/// Returns the largest verbs MTU code of at most `bytes` bytes.
pub(crate) fn mtu_number(bytes: usize) -> u8 {
    let fits = |number: &i32| mtu_bytes(*number) <= bytes;
    let number = (1..=5).rev().find(fits).unwrap_or(1);
    u8::try_from(number).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn endpoint_layout_matches_the_document() {
        let drawn = include_str!("../../../docs/rdma.md");
        let (_, drawn) = drawn.split_once("## The endpoint").expect("a section");
        // A row names its first byte, and the one behind its last unless that is the next.
        let rows = drawn.lines().filter_map(|line| {
            let cell = line.split('|').nth(1)?.trim();
            let (from, to) = match cell.split_once("..") {
                Some((from, to)) => (from.parse().ok()?, to.parse().ok()?),
                None => (cell.parse().ok()?, cell.parse::<usize>().ok()? + 1),
            };
            Some((from, to))
        });
        let offsets = [
            offset_of!(Blob, magic),
            offset_of!(Blob, transport),
            offset_of!(Blob, link),
            offset_of!(Blob, mtu),
            offset_of!(Blob, reserved),
            offset_of!(Blob, qpn),
            offset_of!(Blob, psn),
            offset_of!(Blob, qkey),
            offset_of!(Blob, lid),
            offset_of!(Blob, reserved2),
            offset_of!(Blob, gid),
            offset_of!(Blob, traffic_class),
            offset_of!(Blob, sl),
            offset_of!(Blob, pkey),
            offset_of!(Blob, serves),
            offset_of!(Blob, asks),
            offset_of!(Blob, reserved3),
            offset_of!(Blob, crc),
            size_of::<Blob>(),
        ];
        let fields = offsets.windows(2).map(|ends| (ends[0], ends[1]));
        assert!(rows.eq(fields));
    }

    #[test]
    fn mtus_round_trip() {
        for (number, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!(mtu_bytes(number), bytes);
            assert_eq!(i32::from(mtu_number(bytes)), number);
        }
    }
}
