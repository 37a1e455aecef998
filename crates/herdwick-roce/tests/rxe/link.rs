//! The wire between guest and host: each datagram of a UDP socket is one Ethernet frame. It loses
//! packets by a seed, and records the traffic in a file that Wireshark reads.

use std::{
    fs::File,
    io::{BufWriter, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::Path,
    time::Duration,
};

use herdwick_check::Rng;

/// MAC and IP addresses of the RNIC under test and of the guest.
pub(crate) const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(crate) const OURS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub(crate) const GUEST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
pub(crate) const OURS_V6: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1);
pub(crate) const GUEST_V6: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2);
/// The UDP port of RoCEv2.
pub(crate) const ROCE: u16 = 4791;

const ETHERNET: usize = 14;
const UDP: usize = 8;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// The pcap link type of Ethernet.
const LINKTYPE_ETHERNET: u32 = 1;

/// A UDP datagram without its headers.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    /// The IPv4 identification; 0 over IPv6.
    pub(crate) ip_id: u16,
    pub(crate) tos: u8,
    pub(crate) bytes: Vec<u8>,
}

impl Datagram {
    /// Returns the frame that carries it to the guest.
    pub(crate) fn to_frame(&self) -> Vec<u8> {
        let mut frame = [GUEST_MAC, OUR_MAC].concat();
        let udp = u16::try_from(UDP + self.bytes.len()).expect("a packet's length");
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame.extend(IPV4.to_be_bytes());
                let mut header = [0; 20];
                header[0] = 0x45;
                header[1] = self.tos;
                header[2..4].copy_from_slice(&(udp + 20).to_be_bytes());
                header[4..6].copy_from_slice(&self.ip_id.to_be_bytes());
                header[6] = 0x40;
                header[8..10].copy_from_slice(&[64, 17]);
                header[12..16].copy_from_slice(&from.octets());
                header[16..].copy_from_slice(&to.octets());
                let sum = checksum(&header);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                frame.extend(header);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend(IPV6.to_be_bytes());
                frame.extend([0x60, 0, 0, 0]);
                frame.extend(udp.to_be_bytes());
                frame.extend([17, 64]);
                frame.extend(from.octets());
                frame.extend(to.octets());
            }
            mixed => panic!("one family: {mixed:?}"),
        }
        frame.extend(self.from.port().to_be_bytes());
        frame.extend(self.to.port().to_be_bytes());
        frame.extend(udp.to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(&self.bytes);
        frame
    }

    /// Returns the UDP datagram in a frame, if there is one.
    pub(crate) fn from_frame(frame: &[u8]) -> Option<Self> {
        let ip = frame.get(ETHERNET..)?;
        let kind = u16::from_be_bytes([frame[12], frame[13]]);
        let (from, to, ip_id, tos, udp): (IpAddr, IpAddr, _, _, _) = match kind {
            IPV4 if ip.len() >= 28 && ip[0] == 0x45 && ip[9] == 17 => {
                let end = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
                let from: [u8; 4] = ip[12..16].try_into().ok()?;
                let to: [u8; 4] = ip[16..20].try_into().ok()?;
                let id = u16::from_be_bytes([ip[4], ip[5]]);
                (from.into(), to.into(), id, ip[1], ip.get(20..end)?)
            }
            IPV6 if ip.len() >= 48 && ip[6] == 17 => {
                let end = 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
                let from: [u8; 16] = ip[8..24].try_into().ok()?;
                let to: [u8; 16] = ip[24..40].try_into().ok()?;
                let class = ip[0] << 4 | ip[1] >> 4;
                (from.into(), to.into(), 0, class, ip.get(40..end)?)
            }
            _ => return None,
        };
        let port = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
        Some(Self {
            from: (from, port(0)).into(),
            to: (to, port(2)).into(),
            ip_id,
            tos,
            bytes: udp.get(UDP..)?.to_vec(),
        })
    }
}

/// Returns the Internet checksum of whole 16-bit words.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2);
    let sum: u32 = words
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).expect("the sum was folded")
}

/// Selects packets to lose.
pub(crate) struct Loss {
    per_mille: u32,
    chance: Rng,
    /// Number of packets lost.
    pub(crate) lost: usize,
}

impl Loss {
    pub(crate) fn new(per_mille: u32, seed: u64) -> Self {
        Self {
            per_mille,
            chance: Rng::new(seed),
            lost: 0,
        }
    }

    pub(crate) fn loses(&mut self) -> bool {
        let lost = self.chance.below(1000) < u64::from(self.per_mille);
        self.lost += usize::from(lost);
        lost
    }
}

/// The host's end of the wire.
pub(crate) struct Link {
    socket: UdpSocket,
    guest: SocketAddr,
    record: Option<BufWriter<File>>,
}

impl Link {
    pub(crate) fn new(socket: UdpSocket, guest: SocketAddr) -> Self {
        Self {
            socket,
            guest,
            record: None,
        }
    }

    /// Records the traffic from now on, for Wireshark.
    pub(crate) fn record(&mut self, path: &Path) {
        let mut file = BufWriter::new(File::create(path).expect("a writable target"));
        let head = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, LINKTYPE_ETHERNET];
        for word in head {
            file.write_all(&word.to_le_bytes())
                .expect("the file is writable");
        }
        self.record = Some(file);
    }

    pub(crate) fn send(&mut self, now: Duration, frame: &[u8]) {
        self.keep(now, frame);
        // Ignored: a frame that the guest's end does not accept is lost, as on any wire.
        let _ = self.socket.send_to(frame, self.guest);
    }

    /// Flushes the record.
    pub(crate) fn flush(&mut self) {
        if let Some(file) = &mut self.record {
            file.flush().expect("the file is writable");
        }
    }

    /// Records a frame.
    pub(crate) fn keep(&mut self, now: Duration, frame: &[u8]) {
        let Some(file) = &mut self.record else {
            return;
        };
        let len = u32::try_from(frame.len()).expect("a frame's length");
        let seconds = u32::try_from(now.as_secs()).expect("a short test");
        for word in [seconds, now.subsec_micros(), len, len] {
            file.write_all(&word.to_le_bytes())
                .expect("the file is writable");
        }
        file.write_all(frame).expect("the file is writable");
    }
}
