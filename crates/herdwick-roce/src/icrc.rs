//! The invariant CRC that ends every RoCE packet.
//!
//! CRC-32 (IEEE, reflected) over eight bytes of ones, the IP and UDP headers and the packet, with
//! ones in place of all that routers may change: TOS and TTL, both checksums, and the BTH byte with
//! the congestion bits. It covers the IPv4 identification, which a UDP socket neither sets nor
//! shows. CRC is linear, so [`check`] can solve for it; sixteen of the 32 bits remain as a check.

use core::{
    array,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use crate::packet::{BTH_BYTES, ICRC_BYTES};

/// The fields of the IP and UDP headers that the ICRC covers, other than lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Source address and port. Both addresses have the same family; an IPv4-mapped IPv6 address
    /// counts as IPv4.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
    /// The don't-fragment bit of the IPv4 header; not used with IPv6.
    pub dont_fragment: bool,
}

/// A receiver's knowledge of the IPv4 identification of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpId {
    /// Known from the IP header. IPv6 has no identification; any value will do.
    Known(u16),
    /// A value to try first: in a batch that the sender's kernel segmented, it counts from 0.
    Hint(u16),
    /// Unknown.
    Unknown,
}

/// Writes the ICRC into the last four bytes of `packet`, which starts at the BTH, for IPv4
/// identification `ip_id` (IPv6: ignored).
///
/// # Panics
/// When `packet` is shorter than BTH and ICRC.
#[inline]
pub fn seal(packet: &mut [u8], route: &Route, ip_id: u16) {
    put(packet, Masked::new(packet, route, ip_id).crc(packet));
}

#[inline]
fn ends_with(packet: &[u8], icrc: u32) -> bool {
    packet.last_chunk() == Some(&icrc.to_le_bytes())
}

/// Writes `icrc` into the last four bytes.
#[inline]
fn put(packet: &mut [u8], icrc: u32) {
    // Least significant byte first, unlike all other fields of a packet.
    let end = packet.len() - ICRC_BYTES;
    packet[end..].copy_from_slice(&icrc.to_le_bytes());
}

/// Checks the ICRC of `packet`, which starts at the BTH. Returns the IPv4 identification with which
/// it is correct, or `None`.
#[inline]
#[must_use]
pub fn check(packet: &[u8], route: &Route, ip_id: IpId) -> Option<u16> {
    if packet.len() < BTH_BYTES + ICRC_BYTES {
        return None;
    }
    // The length was checked: a BTH is needed for the mask below.
    let (_, last) = packet.split_last_chunk::<ICRC_BYTES>()?;
    let found = u32::from_le_bytes(*last);
    let guess = match ip_id {
        IpId::Known(id) | IpId::Hint(id) => id,
        IpId::Unknown => 0,
    };
    let masked = Masked::new(packet, route, guess);
    let difference = masked.crc(packet) ^ found;
    match (difference, ip_id) {
        (0, _) => Some(guess),
        (_, IpId::Known(_)) => None,
        // IPv6 has no identification, so there is nothing to solve for.
        _ if masked.len == MASKED_6 => None,
        _ => solve(difference, packet.len()).map(|wrong_by| guess ^ wrong_by),
    }
}

/// Headers in front of a packet, as the ICRC covers them: those of IP without options, and of UDP.
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const UDP_PROTOCOL: u8 = 17;
const MASKED_4: usize = IPV4 + UDP + BTH_BYTES;
const MASKED_6: usize = IPV6 + UDP + BTH_BYTES;
/// CRC-32 of eight bytes of ones, which stand for the LRH of InfiniBand.
const PREFIX: u32 = 0x2144_df1c;
/// The CRC-32 polynomial, bit-reflected.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// IP header, UDP header and BTH with ones in place of the fields that routers may change.
struct Masked {
    bytes: [u8; MASKED_6],
    len: usize,
}

impl Masked {
    #[inline]
    fn new(packet: &[u8], route: &Route, ip_id: u16) -> Self {
        let source = route.source.ip().to_canonical();
        let destination = route.destination.ip().to_canonical();
        // What is not set below stays ones: TOS, TTL and both checksums.
        let mut bytes = [0xff; MASKED_6];
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a UDP datagram has at most 65,507 bytes"
        )]
        let udp_len = (UDP + packet.len()) as u16;
        let ip = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                // Version 4, a header of five words: without options.
                bytes[0] = 0x45;
                // Wraps only for lengths that no datagram has; the checksum is wrong then, and the
                // packet is dropped.
                let total = udp_len.wrapping_add(IPV4 as u16);
                bytes[2..4].copy_from_slice(&total.to_be_bytes());
                bytes[4..6].copy_from_slice(&ip_id.to_be_bytes());
                bytes[6] = if route.dont_fragment { 0x40 } else { 0 };
                bytes[7] = 0;
                bytes[9] = UDP_PROTOCOL;
                bytes[12..16].copy_from_slice(&source.octets());
                bytes[16..20].copy_from_slice(&destination.octets());
                IPV4
            }
            // A socket reports both addresses in one family. Were they of two, the checksum would
            // be wrong.
            _ => {
                // Version 6; the traffic class and the flow label are masked, as is the hop limit.
                bytes[0] = 0x6f;
                bytes[4..6].copy_from_slice(&udp_len.to_be_bytes());
                bytes[6] = UDP_PROTOCOL;
                bytes[8..24].copy_from_slice(&v6(source));
                bytes[24..40].copy_from_slice(&v6(destination));
                IPV6
            }
        };
        let (udp, bth) = bytes[ip..].split_at_mut(UDP);
        udp[0..2].copy_from_slice(&route.source.port().to_be_bytes());
        udp[2..4].copy_from_slice(&route.destination.port().to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        bth[..BTH_BYTES].copy_from_slice(&packet[..BTH_BYTES]);
        // FECN, BECN and the reserved bits next to them.
        bth[4] = 0xff;
        Self {
            bytes,
            len: ip + UDP + BTH_BYTES,
        }
    }

    #[inline]
    fn crc(&self, packet: &[u8]) -> u32 {
        // `crc32fast` takes the finalised CRC of what came before.
        let mut hasher = crc32fast::Hasher::new_with_initial(PREFIX);
        hasher.update(&self.bytes[..self.len]);
        hasher.update(&packet[BTH_BYTES..packet.len() - ICRC_BYTES]);
        hasher.finalize()
    }
}

const _: () = assert!(MASKED_4 == 40 && MASKED_6 == 60);

/// Packets of a batch whose ICRCs are computed together, so that the CPU overlaps them.
pub(crate) const INTERLEAVED: usize = 4;

/// ICRC state for consecutive packets of one route and length: the CRC of their common headers is
/// computed once, and each packet costs one run over its own bytes.
#[derive(Clone, Debug)]
pub struct Run {
    route: Route,
    len: usize,
    v4: bool,
    /// The CRC of the headers before the BTH, for identification 0.
    before: u32,
    /// The change of the CRC when ones replace a congestion byte of zero.
    ones: u32,
}

impl Run {
    /// Makes a state without a route.
    #[must_use]
    pub const fn new() -> Self {
        const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        Self {
            route: Route {
                source: NOWHERE,
                destination: NOWHERE,
                // Differs from every real route, so the first packet computes the common part.
                dont_fragment: false,
            },
            len: 0,
            v4: true,
            before: 0,
            ones: 0,
        }
    }

    /// Seals a packet as [`seal`] does.
    ///
    /// # Panics
    /// When `packet` is shorter than BTH and ICRC.
    #[inline]
    pub fn seal(&mut self, packet: &mut [u8], route: &Route, ip_id: u16) {
        self.follow(route);
        put(packet, self.crc(packet, ip_id));
    }

    /// Seals a batch: packets of `segment` bytes, the last perhaps shorter, back to back. Their
    /// identifications count from 0.
    ///
    /// # Panics
    /// When a packet is shorter than BTH and ICRC.
    #[inline]
    pub fn seal_batch(&mut self, batch: &mut [u8], segment: usize, route: &Route) {
        self.follow(route);
        // The kernel gives segment i of a GSO batch the identification i, since the socket is not
        // connected.
        let mut first = 0_u16;
        for group in batch.chunks_mut(segment.saturating_mul(INTERLEAVED)) {
            if let Some(sums) = self.interleaved(group, segment, first) {
                for (packet, sum) in group.chunks_mut(segment).zip(sums) {
                    put(packet, sum);
                }
            } else {
                // The last group is seldom a full one, and its last packet may be shorter.
                for (packet, nth) in group.chunks_mut(segment).zip(0..) {
                    put(packet, self.crc(packet, first.wrapping_add(nth)));
                }
            }
            first = first.wrapping_add(INTERLEAVED as u16);
        }
    }

    /// Returns the ICRCs of [`INTERLEAVED`] packets of `segment` bytes, back to back, with
    /// identifications that count from `first`. `None` if there are fewer packets, if one has
    /// congestion bits set, or if an identification is beyond the table.
    #[inline]
    pub(crate) fn interleaved(
        &mut self,
        group: &[u8],
        segment: usize,
        first: u16,
    ) -> Option<[u32; INTERLEAVED]> {
        // A slice of the table that ends beyond it means an identification of 128 or more: no batch
        // has so many packets.
        let changes: &[u32; INTERLEAVED] = IDS.get(usize::from(first)..)?.first_chunk()?;
        if segment < BTH_BYTES + ICRC_BYTES || group.len() != segment.saturating_mul(INTERLEAVED) {
            return None;
        }
        let packets: [&[u8]; INTERLEAVED] = array::from_fn(|i| &group[i * segment..][..segment]);
        // `ones` replaces a byte of zero only. A sender sets FECN and BECN in CNPs alone, so few
        // packets are refused here.
        if packets.iter().any(|packet| packet[CONGESTION_BITS] != 0) {
            return None;
        }
        if self.len != segment {
            self.turn(packets[0]);
        }
        // A mask instead of a branch, for it applies to four packets at once.
        let v4 = if self.v4 { !0 } else { 0 };
        let before = changes.map(|change| self.before ^ change & v4);
        let bodies = packets.map(|packet| &packet[..segment - ICRC_BYTES]);
        Some(summed(before, bodies).map(|sum| sum ^ self.ones))
    }

    /// Sets the route of the packets from now on.
    #[inline]
    pub fn follow(&mut self, route: &Route) {
        if self.route != *route {
            self.route = *route;
            // No packet has this length, so the next one recomputes the common part.
            self.len = 0;
        }
    }

    /// Checks a packet as [`check`] does, on the route last followed or sealed for. A new state has
    /// no route, and no packet is correct.
    #[inline]
    #[must_use]
    pub fn check(&mut self, packet: &[u8], ip_id: IpId) -> Option<u16> {
        if let IpId::Hint(id) = ip_id
            && packet.len() >= BTH_BYTES + ICRC_BYTES
            && ends_with(packet, self.crc(packet, id))
        {
            return Some(id);
        }
        // Also after a wrong hint: a batch that was segmented elsewhere has other identifications.
        check(packet, &self.route, ip_id)
    }

    /// Returns whether [`Run::check`] would accept the packet, given its ICRC `sum` for the
    /// identification in `ip_id`.
    #[inline]
    pub(crate) fn confirms(&self, packet: &[u8], sum: u32, ip_id: IpId) -> bool {
        // A mismatch is no proof: the identification may differ from the hint.
        ends_with(packet, sum) || check(packet, &self.route, ip_id).is_some()
    }

    /// Returns the ICRC of a packet. Recomputes the common part if the length changed.
    #[inline]
    fn crc(&mut self, packet: &[u8], ip_id: u16) -> u32 {
        if self.len != packet.len() {
            self.turn(packet);
        }
        let change = IDS
            .get(usize::from(ip_id))
            // As in `interleaved`: `ones` stands for the replacement of a zero byte.
            .filter(|_| packet[CONGESTION_BITS] == 0);
        let Some(change) = change else {
            return Masked::new(packet, &self.route, ip_id).crc(packet);
        };
        let change = if self.v4 { *change } else { 0 };
        let body = &packet[..packet.len() - ICRC_BYTES];
        // CRC is linear: the sum over the packet as it is, XORed with what the replaced byte
        // changes.
        let [sum] = summed([self.before ^ change], [body]);
        sum ^ self.ones
    }

    /// Computes the common part for packets of this length.
    #[cold]
    fn turn(&mut self, packet: &[u8]) {
        let masked = Masked::new(packet, &self.route, 0);
        let mut hasher = crc32fast::Hasher::new_with_initial(PREFIX);
        hasher.update(&masked.bytes[..masked.len - BTH_BYTES]);
        self.v4 = masked.len == MASKED_4;
        self.before = hasher.finalize();
        self.len = packet.len();
        // Zeros behind the changed byte shift its effect through the register.
        self.ones = fed(0xff, packet.len() - ICRC_BYTES - CONGESTION_BITS);
    }
}

impl Default for Run {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the CRC-32 of packets, continued from `crcs`.
#[cfg(feature = "std")]
#[inline]
fn summed<const N: usize>(crcs: [u32; N], packets: [&[u8]; N]) -> [u32; N] {
    herdwick_mem::crc32_interleaved(crcs, packets)
}

#[cfg(not(feature = "std"))]
#[inline]
fn summed<const N: usize>(crcs: [u32; N], packets: [&[u8]; N]) -> [u32; N] {
    array::from_fn(|i| {
        let mut hasher = crc32fast::Hasher::new_with_initial(crcs[i]);
        hasher.update(packets[i]);
        hasher.finalize()
    })
}

/// Offset in the BTH of the byte that routers may change (FECN and BECN).
const CONGESTION_BITS: usize = 4;

/// The change of the header CRC caused by each identification from 0 up to 127, enough for the
/// largest GSO batch.
const IDS: [u32; 128] = {
    let mut ids = [0; 128];
    let mut id = 0;
    while id < ids.len() {
        // The register's low byte is the first of the message; the field is big-endian.
        ids[id] = fed((id as u16).swap_bytes() as u32, BEFORE);
        id += 1;
    }
    ids
};

/// Returns a CRC register after `bytes` bytes of zeros.
const fn fed(mut register: u32, bytes: usize) -> u32 {
    let mut bit = 0;
    while bit < FORTH.len() {
        if bytes >> bit & 1 == 1 {
            register = multiply(register, FORTH[bit]);
        }
        bit += 1;
    }
    register
}

/// x^8, x^16, x^32 ...: the factors that advance a register over 1, 2, 4 ... bytes of zeros.
// 17 powers reach 2^17 - 1 bytes, more than the largest IP packet. x^0 is the highest bit, so x^8
// is eight below.
const FORTH: [u32; 17] = squares(1 << (31 - 8));

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Bytes from the identification to the end of the UDP header.
const BEFORE: usize = IPV4 - 4 + UDP;

/// Returns the change (XOR) of the IPv4 identification that changes the CRC by `difference`, if
/// there is one.
///
/// Feeding zeros to a CRC register multiplies it by a power of x. So the difference is divided by
/// that power, back to the position of the identification; if what remains fits in its two bytes,
/// it is the change.
fn solve(difference: u32, packet_len: usize) -> Option<u16> {
    let back = BEFORE + packet_len - ICRC_BYTES;
    let mut register = difference;
    for (bit, power) in BACK.iter().enumerate() {
        if back >> bit & 1 == 1 {
            register = multiply(register, *power);
        }
    }
    let bytes = u16::try_from(register).ok()?;
    Some(bytes.swap_bytes())
}

/// x^-8, x^-16, x^-32 ...: the factors that take a register back over 1, 2, 4 ... bytes of zeros.
const BACK: [u32; 17] = {
    let mut byte = 1 << 31;
    let mut bit = 0;
    while bit < 8 {
        // Division by x shifts the other way. If the coefficient of x^0 is set, the polynomial is
        // added first, which clears it; the polynomial's x^32 then becomes x^31, the lowest bit.
        byte = if byte >> 31 == 1 {
            (byte ^ POLYNOMIAL) << 1 | 1
        } else {
            byte << 1
        };
        bit += 1;
    }
    squares(byte)
};

/// Returns a polynomial, its square, the square of that, and so on.
const fn squares(first: u32) -> [u32; 17] {
    let mut powers = [first; 17];
    let mut i = 1;
    while i < powers.len() {
        powers[i] = multiply(powers[i - 1], powers[i - 1]);
        i += 1;
    }
    powers
}

/// Returns the product of two polynomials modulo that of CRC-32, the coefficient of x^0 in the
/// highest bit.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        // Bit 31 is the coefficient of x^0; `b` is multiplied by x in each round.
        if a >> bit & 1 == 1 {
            product ^= b;
        }
        b = if b & 1 == 1 {
            b >> 1 ^ POLYNOMIAL
        } else {
            b >> 1
        };
    }
    product
}
