//! Packets built by hand from the specification, valid or not. No code of the engine is used, so
//! that the two can be compared.

use std::net::{IpAddr, SocketAddr};

/// Default partition key.
pub const PKEY: u16 = 0xffff;
/// Bytes of the invariant CRC.
pub const ICRC: usize = 4;

/// Opcodes by transport and operation (IBTA, table 38).
pub mod op {
    pub const RC: u8 = 0x00;
    pub const UC: u8 = 0x20;
    pub const UD: u8 = 0x60;
    pub const SEND_FIRST: u8 = 0x00;
    pub const SEND_MIDDLE: u8 = 0x01;
    pub const SEND_LAST: u8 = 0x02;
    pub const SEND_ONLY: u8 = 0x04;
    pub const SEND_ONLY_IMM: u8 = 0x05;
    pub const WRITE_FIRST: u8 = 0x06;
    pub const WRITE_MIDDLE: u8 = 0x07;
    pub const WRITE_LAST: u8 = 0x08;
    pub const WRITE_ONLY: u8 = 0x0a;
    pub const READ_REQUEST: u8 = 0x0c;
    pub const READ_RESPONSE_ONLY: u8 = 0x10;
    pub const ACK: u8 = 0x11;
    pub const ATOMIC_ACK: u8 = 0x12;
    pub const COMPARE_SWAP: u8 = 0x13;
    pub const FETCH_ADD: u8 = 0x14;
    /// Congestion notification: an opcode outside the transports.
    pub const CNP: u8 = 0x81;
}

/// A packet from its base transport header to its last pad byte.
#[derive(Clone, Debug)]
pub struct Packet {
    pub opcode: u8,
    /// Solicited event, MigReq, pad count and version, as on the wire; `None`: computed from the
    /// payload.
    pub second: Option<u8>,
    pub pkey: u16,
    /// FECN, BECN and reserved bits.
    pub fourth: u8,
    pub qpn: u32,
    pub ack: bool,
    pub psn: u32,
    pub headers: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Packet {
    pub fn new(opcode: u8, qpn: u32, psn: u32) -> Self {
        Self {
            opcode,
            second: None,
            pkey: PKEY,
            fourth: 0,
            qpn,
            ack: false,
            psn,
            headers: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// Adds a RETH.
    pub fn reth(mut self, addr: u64, rkey: u32, len: u32) -> Self {
        self.headers.extend(addr.to_be_bytes());
        self.headers.extend(rkey.to_be_bytes());
        self.headers.extend(len.to_be_bytes());
        self
    }

    /// Adds a DETH.
    pub fn deth(mut self, qkey: u32, source: u32) -> Self {
        self.headers.extend(qkey.to_be_bytes());
        self.headers.extend(source.to_be_bytes());
        self
    }

    /// Adds an AtomicETH.
    pub fn atomic(mut self, addr: u64, rkey: u32, swap_or_add: u64, compare: u64) -> Self {
        self.headers.extend(addr.to_be_bytes());
        self.headers.extend(rkey.to_be_bytes());
        self.headers.extend(swap_or_add.to_be_bytes());
        self.headers.extend(compare.to_be_bytes());
        self
    }

    /// Adds an AETH.
    pub fn aeth(mut self, syndrome: u8, msn: u32) -> Self {
        self.headers
            .extend((u32::from(syndrome) << 24 | msn).to_be_bytes());
        self
    }

    pub fn payload(mut self, bytes: &[u8]) -> Self {
        self.payload = bytes.to_vec();
        self
    }

    pub fn ack(mut self) -> Self {
        self.ack = true;
        self
    }

    /// Returns the bytes, padded, without the ICRC.
    pub fn bytes(&self) -> Vec<u8> {
        let pad = self.payload.len().wrapping_neg() % 4;
        let pads = u8::try_from(pad).expect("at most 3");
        let mut bytes = vec![self.opcode, self.second.unwrap_or(pads << 4)];
        bytes.extend(self.pkey.to_be_bytes());
        bytes.extend((u32::from(self.fourth) << 24 | self.qpn & 0xff_ffff).to_be_bytes());
        bytes.extend((u32::from(self.ack) << 31 | self.psn & 0xff_ffff).to_be_bytes());
        bytes.extend(&self.headers);
        bytes.extend(&self.payload);
        bytes.extend(&[0; 3][..pad]);
        bytes
    }

    /// Returns the bytes with the correct ICRC for this route.
    pub fn sealed(&self, way: &Way) -> Vec<u8> {
        way.seal(&self.bytes())
    }
}

/// The addresses of a packet, and the other IP header fields that the ICRC covers.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// The IPv4 identification; "don't fragment" is set.
    pub ip_id: u16,
}

impl Way {
    pub fn new(from: SocketAddr, to: SocketAddr) -> Self {
        Self { from, to, ip_id: 0 }
    }

    /// Returns `bytes`, from the BTH to the last pad byte, followed by their ICRC.
    pub fn seal(&self, bytes: &[u8]) -> Vec<u8> {
        let icrc = self.icrc(bytes);
        [bytes, &icrc.to_le_bytes()].concat()
    }

    /// Returns the ICRC of `bytes`, from the BTH to the last pad byte.
    pub fn icrc(&self, bytes: &[u8]) -> u32 {
        let udp = u16::try_from(8 + bytes.len() + ICRC).unwrap_or(u16::MAX);
        let mut covered = vec![0xff; 8];
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                covered.extend([0x45, 0xff]);
                covered.extend(udp.saturating_add(20).to_be_bytes());
                covered.extend(self.ip_id.to_be_bytes());
                covered.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
                covered.extend(from.octets());
                covered.extend(to.octets());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                covered.extend([0x6f, 0xff, 0xff, 0xff]);
                covered.extend(udp.to_be_bytes());
                covered.extend([17, 0xff]);
                covered.extend(from.octets());
                covered.extend(to.octets());
            }
            mixed => panic!("one family: {mixed:?}"),
        }
        covered.extend(self.from.port().to_be_bytes());
        covered.extend(self.to.port().to_be_bytes());
        covered.extend(udp.to_be_bytes());
        covered.extend([0xff, 0xff]);
        let begin = covered.len();
        covered.extend(bytes);
        if let Some(masked) = covered.get_mut(begin + 4) {
            *masked = 0xff;
        }
        crc32(&covered)
    }
}

/// IEEE 802.3 CRC-32, by nibbles.
fn crc32(bytes: &[u8]) -> u32 {
    const NIBBLES: [u32; 16] = {
        let mut table = [0; 16];
        let mut n = 0;
        while n < 16 {
            let mut crc = n as u32;
            let mut bit = 0;
            while bit < 4 {
                crc = if crc & 1 == 1 {
                    crc >> 1 ^ 0xedb8_8320
                } else {
                    crc >> 1
                };
                bit += 1;
            }
            table[n] = crc;
            n += 1;
        }
        table
    };
    let step = |crc: u32, nibble: u32| NIBBLES[((crc ^ nibble) & 15) as usize] ^ crc >> 4;
    let whole = |crc, byte: &u8| step(step(crc, u32::from(byte & 15)), u32::from(byte >> 4));
    !bytes.iter().fold(!0, whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An RC ACK and a UD SEND as rdma_rxe sent them.
    const CAPTURED: &[&str] = &[
        "450000308da64000401199020a0900010a090002c12112b7001c00001100ffff0000001100108f441f000001dd61d44a",
        "450000481e7d4000401108140a0900020a090001c24012b7003400001400ffff0000001880b96535000055f81e965000000009e4000000000000000100000000000000006102eb73",
    ];

    #[test]
    fn captured_packets_have_the_crc_that_we_compute() {
        for hex in CAPTURED {
            let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            let ip: Vec<u8> = (0..hex.len()).step_by(2).map(digit).collect();
            let quad = |at: usize| -> [u8; 4] { ip[at..at + 4].try_into().unwrap() };
            let pair = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
            let way = Way {
                from: (quad(12), pair(20)).into(),
                to: (quad(16), pair(22)).into(),
                ip_id: pair(4),
            };
            assert_eq!(way.seal(&ip[28..ip.len() - ICRC]), &ip[28..]);
        }
    }

    #[test]
    fn hand_built_acknowledgement_matches_the_captured_one() {
        let way = Way {
            from: ([10, 9, 0, 1], 0xc121).into(),
            to: ([10, 9, 0, 2], 4791).into(),
            ip_id: 0x8da6,
        };
        let ack = Packet::new(op::ACK, 0x11, 0x10_8f44)
            .aeth(0x1f, 1)
            .sealed(&way);
        let hex: String = ack.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(CAPTURED[0].ends_with(&hex), "{hex}");
    }
}
