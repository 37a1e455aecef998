//! BTH opcodes: transport, operation, and the position of a packet in its message.

/// The transport of a packet: the upper three bits of its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl Class {
    /// Returns the transport bits of an opcode.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
        }
    }
}

/// The position of a packet in its message. Bit 0 is set if the message starts with the packet, bit
/// 1 if it ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Place {
    /// Neither first nor last.
    Middle = 0b00,
    /// The first of several.
    First = 0b01,
    /// The last of several.
    Last = 0b10,
    /// The only one.
    Only = 0b11,
}

impl Place {
    /// Returns the position of packet `index` of `count`.
    #[inline]
    #[must_use]
    pub const fn of(index: u32, count: u32) -> Self {
        match (index == 0, index + 1 >= count) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }

    /// Returns whether the packet starts a message.
    #[inline]
    #[must_use]
    pub const fn starts(self) -> bool {
        self as u8 & Self::First as u8 != 0
    }

    /// Returns whether the packet ends a message.
    #[inline]
    #[must_use]
    pub const fn ends(self) -> bool {
        self as u8 & Self::Last as u8 != 0
    }
}

/// The operation that a packet requests or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A packet of a SEND; `imm` on the last packet only.
    Send {
        /// Its position.
        place: Place,
        /// Whether an immediate follows.
        imm: bool,
    },
    /// A packet of a WRITE; `imm` on the last packet only.
    Write {
        /// Its position.
        place: Place,
        /// Whether an immediate follows.
        imm: bool,
    },
    /// A READ request.
    ReadRequest,
    /// A packet of a READ response.
    ReadResponse(Place),
    /// An ACK or NAK.
    Acknowledge,
    /// The response to an atomic.
    AtomicAcknowledge,
    /// COMPARE_SWAP.
    CompareSwap,
    /// FETCH_ADD.
    FetchAdd,
}

/// The opcode of a congestion notification packet (CNP); it belongs to none of the three
/// transports.
pub const CONGESTION: u8 = 0x81;
/// Length of the reserved field after its BTH, in bytes.
pub const CONGESTION_BYTES: usize = 16;

/// A supported opcode, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketOp {
    /// Its transport.
    pub class: Class,
    /// Its operation.
    pub operation: Operation,
}

impl PacketOp {
    /// Decodes an opcode byte; `None` for one that is not supported (reserved codes, RD, XRC, SEND
    /// with invalidate, FLUSH, ATOMIC WRITE).
    #[inline]
    #[must_use]
    pub const fn decode(byte: u8) -> Option<Self> {
        KNOWN[byte as usize]
    }

    const fn meant_by(byte: u8) -> Option<Self> {
        let class = match byte >> 5 {
            0 => Class::Rc,
            1 => Class::Uc,
            3 => Class::Ud,
            _ => return None,
        };
        let Some(operation) = Operation::decode(byte & 0x1f) else {
            return None;
        };
        if operation.exists_on(class) {
            Some(Self { class, operation })
        } else {
            None
        }
    }

    /// Returns the opcode byte.
    #[inline]
    #[must_use]
    pub const fn encode(self) -> u8 {
        self.class.bits() | self.operation.encode()
    }
}

/// The decoded opcodes, by byte.
static KNOWN: [Option<PacketOp>; 256] = {
    // Computed by the compiler, so that a packet's opcode is decoded by one load.
    let mut known = [None; 256];
    let mut byte = 0;
    while byte < known.len() {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let code = byte as u8;
        known[byte] = PacketOp::meant_by(code);
        byte += 1;
    }
    known
};

impl Operation {
    const fn decode(code: u8) -> Option<Self> {
        let imm = matches!(code, 0x03 | 0x05 | 0x09 | 0x0b);
        Some(match code {
            0x00 => Self::send(Place::First, imm),
            0x01 => Self::send(Place::Middle, imm),
            0x02 | 0x03 => Self::send(Place::Last, imm),
            0x04 | 0x05 => Self::send(Place::Only, imm),
            0x06 => Self::write(Place::First, imm),
            0x07 => Self::write(Place::Middle, imm),
            0x08 | 0x09 => Self::write(Place::Last, imm),
            0x0a | 0x0b => Self::write(Place::Only, imm),
            0x0c => Self::ReadRequest,
            0x0d => Self::ReadResponse(Place::First),
            0x0e => Self::ReadResponse(Place::Middle),
            0x0f => Self::ReadResponse(Place::Last),
            0x10 => Self::ReadResponse(Place::Only),
            0x11 => Self::Acknowledge,
            0x12 => Self::AtomicAcknowledge,
            0x13 => Self::CompareSwap,
            0x14 => Self::FetchAdd,
            _ => return None,
        })
    }

    const fn send(place: Place, imm: bool) -> Self {
        Self::Send { place, imm }
    }

    const fn write(place: Place, imm: bool) -> Self {
        Self::Write { place, imm }
    }

    const fn encode(self) -> u8 {
        match self {
            Self::Send { place, imm } => Self::part(place, imm),
            Self::Write { place, imm } => 0x06 + Self::part(place, imm),
            Self::ReadRequest => 0x0c,
            Self::ReadResponse(Place::First) => 0x0d,
            Self::ReadResponse(Place::Middle) => 0x0e,
            Self::ReadResponse(Place::Last) => 0x0f,
            Self::ReadResponse(Place::Only) => 0x10,
            Self::Acknowledge => 0x11,
            Self::AtomicAcknowledge => 0x12,
            Self::CompareSwap => 0x13,
            Self::FetchAdd => 0x14,
        }
    }

    const fn part(place: Place, imm: bool) -> u8 {
        let with = imm as u8;
        match place {
            Place::First => 0,
            Place::Middle => 1,
            Place::Last => 2 + with,
            Place::Only => 4 + with,
        }
    }

    /// Returns whether the transport carries the operation (HERD paper, Table 1; a UD message is
    /// one packet).
    const fn exists_on(self, class: Class) -> bool {
        match class {
            Class::Rc => true,
            Class::Uc => matches!(self, Self::Send { .. } | Self::Write { .. }),
            Class::Ud => matches!(
                self,
                Self::Send {
                    place: Place::Only,
                    ..
                }
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::PacketOp;

    #[test]
    fn opcodes_round_trip() {
        let known: Vec<u8> = (0..=255)
            .filter(|byte| PacketOp::decode(*byte).is_some())
            .collect();
        let expected: Vec<u8> = (0x00..=0x14)
            .chain(0x20..=0x2b)
            .chain(0x64..=0x65)
            .collect();
        assert_eq!(known, expected);
        for byte in known {
            assert_eq!(PacketOp::decode(byte).unwrap().encode(), byte);
        }
    }
}
