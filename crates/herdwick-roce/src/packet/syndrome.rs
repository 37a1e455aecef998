//! The AETH: acknowledgements, negative acknowledgements and their delays.

use core::time::Duration;

use super::{LOW_24, headers::Aeth};

/// The decoded syndrome of an AETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// All requests up to this PSN are done. The credit code (0x1f: no credits reported) is
    /// accepted and ignored: a requester that exceeds its credits gets [`Syndrome::NotReady`] at
    /// worst.
    Ack(u8),
    /// No RECV is posted: retry after [`rnr_delay`] of this code.
    NotReady(u8),
    /// The request is refused.
    Nak(Nak),
    /// A reserved code.
    Reserved(u8),
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// A packet is missing; the BTH of the NAK carries the expected PSN.
    Sequence,
    /// A wrong length, order of opcodes, or alignment.
    Invalid,
    /// A wrong rkey, range or right.
    Access,
    /// The responder failed.
    Operational,
}

/// The credit code that reports no credits.
const NO_CREDITS: u8 = 0x1f;

impl Syndrome {
    /// An ACK without credits, as `rdma_rxe` sends it.
    pub const ACK: Self = Self::Ack(NO_CREDITS);

    /// Decodes a syndrome byte.
    #[must_use]
    pub const fn decode(byte: u8) -> Self {
        match (byte >> 5, byte & 0x1f) {
            (0, credits) => Self::Ack(credits),
            (1, timer) => Self::NotReady(timer),
            (3, 0) => Self::Nak(Nak::Sequence),
            (3, 1) => Self::Nak(Nak::Invalid),
            (3, 2) => Self::Nak(Nak::Access),
            (3, 3) => Self::Nak(Nak::Operational),
            _ => Self::Reserved(byte),
        }
    }

    /// Returns the syndrome byte.
    #[must_use]
    pub const fn encode(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 0x1f,
            Self::NotReady(timer) => 0x20 | timer & 0x1f,
            Self::Nak(Nak::Sequence) => 0x60,
            Self::Nak(Nak::Invalid) => 0x61,
            Self::Nak(Nak::Access) => 0x62,
            Self::Nak(Nak::Operational) => 0x63,
            Self::Reserved(byte) => byte,
        }
    }
}

impl Aeth {
    /// Makes a header with `syndrome`, after `msn` completed messages.
    #[must_use]
    pub fn new(syndrome: Syndrome, msn: u32) -> Self {
        let word = u32::from(syndrome.encode()) << 24 | msn & LOW_24;
        Self { word: word.into() }
    }

    /// Returns the decoded syndrome.
    #[must_use]
    pub fn syndrome(&self) -> Syndrome {
        let [byte, ..] = self.word.get().to_be_bytes();
        Syndrome::decode(byte)
    }

    /// Returns the number of request messages completed so far, modulo 2^24.
    #[must_use]
    pub fn msn(&self) -> u32 {
        self.word.get() & LOW_24
    }
}

/// Returns the wait after an RNR NAK with timer `code` (IBTA table 45); only the low five bits are
/// used.
#[must_use]
pub const fn rnr_delay(code: u8) -> Duration {
    /// In units of 10 us.
    const UNITS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(10 * UNITS[(code & 0x1f) as usize])
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::{Aeth, Syndrome, rnr_delay};

    #[test]
    fn syndrome_bytes_round_trip() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::decode(byte).encode(), byte);
            let aeth = Aeth::new(Syndrome::decode(byte), 0x01ab_cdef);
            assert_eq!(aeth.syndrome(), Syndrome::decode(byte));
            assert_eq!(aeth.msn(), 0xab_cdef);
        }
    }

    #[test]
    fn rnr_delays_match_the_specifications_table() {
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(12), Duration::from_micros(640));
        assert_eq!(rnr_delay(14), Duration::from_micros(1280));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
    }
}
